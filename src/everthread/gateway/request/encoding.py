"""Decode compressed bodies within a limit."""

from __future__ import annotations

import functools
import sys
import zlib
from collections.abc import Callable
from typing import Protocol, TypeAlias

from everthread.gateway.request.body_limits import make_too_large_error

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DECODING_ERRORS = (zlib.error, zstd.ZstdError)
"""Errors that decoders raise for a body that does not match its header."""
_WINDOW_LOG = 23
"""Limit for the window of a zstd frame: 8 MB, the maximum for HTTP (RFC 9659)."""


_PIECE_BYTES = 16 * 1024
_MAX_MEMBERS = 4_000
"""Maximum members of a body, which is decoded in pieces, because each member copies the rest of its piece."""


SUPPORTED_ENCODINGS = ("gzip", "deflate", "zstd", "identity", "x-gzip")
"""Supported encodings, by their HTTP names."""


@functools.lru_cache(maxsize=64)
def keep_supported_encodings(accepted: bytes) -> bytes:
    """Remove unsupported encodings from `accept-encoding`, because an unreadable answer could not be charged."""
    names = [part.strip() for part in accepted.decode("latin-1").split(",")]
    readable = [
        name for name in names if name.partition(";")[0].strip().lower() in SUPPORTED_ENCODINGS
    ]
    return ", ".join(readable or ["identity"]).encode("latin-1")


class Decoder(Protocol):
    """A decoder that is fed piece by piece."""

    @property
    def is_complete(self) -> bool:
        """Whether the bytes so far are a whole body."""
        ...

    def feed(self, data: bytes) -> bytes: ...


_Member: TypeAlias = "zlib._Decompress | zstd.ZstdDecompressor"
"""The decoder of one member of a body."""


class _IdentityDecoder:
    is_complete = True

    def feed(self, data: bytes) -> bytes:
        return data


class _MemberDecoder:
    """Decodes a body of one or more members, each with its own decoder.

    Raise `RequestRefused` if the decoded body has more than `max_bytes` bytes.
    """

    def __init__(self, max_bytes: int, make_member: Callable[[], _Member]) -> None:
        self._remaining_bytes = max_bytes
        self._make_member = make_member
        self._member = make_member()
        self._count = 1

    @property
    def is_complete(self) -> bool:
        return self._member.eof

    def feed(self, data: bytes) -> bytes:
        pieces: list[bytes] = []
        for start in range(0, len(data), _PIECE_BYTES):
            undecoded_bytes = data[start : start + _PIECE_BYTES]
            while undecoded_bytes:
                if self._member.eof and not self._begin_next_member():
                    break
                piece = self._decompress(undecoded_bytes)
                self._remaining_bytes -= len(piece)
                if self._remaining_bytes < 0:
                    raise make_too_large_error()
                pieces.append(piece)
                undecoded_bytes = self._member.unused_data
        return b"".join(pieces)

    def _begin_next_member(self) -> bool:
        """Begin the next member; return False if none may follow."""
        self._count += 1
        if self._count > _MAX_MEMBERS:
            raise zlib.error(f"the body has more than {_MAX_MEMBERS:,} members")
        self._member = self._make_member()
        return True

    def _decompress(self, data: bytes) -> bytes:
        return self._member.decompress(data, self._remaining_bytes + 1)


class _DeflateDecoder(_MemberDecoder):
    """Decodes deflate with or without its header, and ignores bytes after its end."""

    _has_started = False

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes, zlib.decompressobj)

    def _begin_next_member(self) -> bool:
        return False

    def _decompress(self, data: bytes) -> bytes:
        has_started = self._has_started
        self._has_started = True
        try:
            return super()._decompress(data)
        except zlib.error:
            if has_started:
                raise
            self._member = zlib.decompressobj(-15)
            return super()._decompress(data)


def _make_gzip_member() -> _Member:
    return zlib.decompressobj(31)


def _make_zstd_member() -> _Member:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})


def make_decoder(encoding: str, max_bytes: int) -> Decoder | None:
    """Return the decoder of a `content-encoding`, or None if it is not supported."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _IdentityDecoder()
    if name == "zstd":
        return _MemberDecoder(max_bytes, _make_zstd_member)
    if name in ("gzip", "x-gzip"):
        return _MemberDecoder(max_bytes, _make_gzip_member)
    return _DeflateDecoder(max_bytes) if name == "deflate" else None


def decode_body(body: bytes, encoding: str, max_bytes: int) -> bytes | None:
    """Return the decoded body, or None if it is broken or its encoding is not supported.

    Raise `RequestRefused` if it is larger than the limit once decoded.
    """
    reader = make_decoder(encoding, max_bytes)
    if reader is None:
        return None
    try:
        decoded_body = reader.feed(body)
    except DECODING_ERRORS:
        return None
    return decoded_body if reader.is_complete or not body else None
