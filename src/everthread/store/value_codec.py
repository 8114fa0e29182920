"""Encode Python values for the databases, and decode them: JSON, message bodies, text, dollars."""

from __future__ import annotations

import json
import zlib
from decimal import Decimal
from typing import Any

import msgspec

from everthread.errors import InputError, StoreDamagedError

_JSON_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode_json(value: Any) -> str:
    """Return compact JSON that every database stores unchanged; escape it only if the text is not valid Unicode."""
    try:
        text = _JSON_ENCODER.encode(value)
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"this is not a JSON value and cannot be stored: {error}") from error
    return text


def decode_json(text: str | bytes) -> Any:
    """Return the value of stored JSON, or raise `StoreDamagedError`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # msgspec refuses values that the standard library writes and reads: NaN, lone surrogates.
        return _decode_with_standard_library(text)


def _decode_with_standard_library(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoreDamagedError(
            f"the stored value is damaged: {text[:40]!r} … is not JSON ({error})"
        ) from error


MIN_COMPRESSED_BYTES = 300
"""Minimum size of a body to compress; a shorter one saves too little."""
_COMPRESSION_LEVEL = 1
_UNCOMPRESSED_FIRST_BYTE = b"{"[0]
"""The first byte of every body that is not compressed, and of no compressed body."""


def pack_body(body: str) -> bytes:
    """Return a message's JSON in its stored form: compressed unless it is short."""
    encoded_body = body.encode()
    if len(encoded_body) < MIN_COMPRESSED_BYTES:
        return encoded_body
    return zlib.compress(encoded_body, _COMPRESSION_LEVEL)


def unpack_body(stored: bytes) -> str:
    """Return a message's JSON, or raise `StoreDamagedError`."""
    try:
        if stored[0] != _UNCOMPRESSED_FIRST_BYTE:
            stored = zlib.decompress(stored)
        return stored.decode()
    except (IndexError, UnicodeDecodeError, zlib.error) as error:
        raise StoreDamagedError(
            f"a stored message is damaged: {stored[:40]!r} ({error})"
        ) from error


def decode_body(stored: bytes) -> Any:
    """Return the message of a stored body, or raise `StoreDamagedError`."""
    return decode_json(unpack_body(stored))


def checksum(stored: bytes) -> int:
    """Return the checksum of a stored body, to find damage later."""
    return zlib.crc32(stored)


def clean_text(text: str) -> str:
    """Replace characters that a database refuses with question marks. For names and labels, never for content."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


PICO_DOLLARS_PER_DOLLAR = Decimal(10) ** 12
MAX_CALL_DOLLARS = 1_000_000


def to_pico_dollars(cost: Decimal | None) -> int | None:
    """Return dollars in their stored form: a whole number of pico-dollars."""
    if cost is None:
        return None
    if not cost.is_finite() or abs(cost) > MAX_CALL_DOLLARS:
        raise InputError(f"a call cannot cost {cost} dollars")
    return int((cost * PICO_DOLLARS_PER_DOLLAR).to_integral_value())


def from_pico_dollars(pico_dollars: int | None) -> Decimal | None:
    """Return stored pico-dollars as dollars."""
    return None if pico_dollars is None else Decimal(pico_dollars) / PICO_DOLLARS_PER_DOLLAR
