"""Find the fields of a body's outermost object without decoding the rest of it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.json_slices import (
    MAX_ALL_VALUES,
    MAX_FIELDS,
    BodySlices,
    SpanByField,
    has_too_many_values,
)
from everthread.thread.wire_messages import decode_value

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
MAX_TRIES = 4
"""Maximum inner keys of the same name to skip; after that the whole body is decoded."""
_COLON_PATTERN = re.compile(rb"\s*:\s*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Field:
    """The value of a field, and the position of the value in the body; -1 if that is unknown."""

    value: Any
    start: int


_UNIQUE_FIELDS = (
    "model",
    "messages",
    "input",
    "stream",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
)
"""Fields that must occur once, because the gateway and the upstream might use different ones of two."""
_ESCAPED_KEY_PATTERN = re.compile(
    rb'(?<!\\)"(?=\w*\\u00)('
    + b"|".join(
        b"".join(b"(?:%c|\\\\u00(?i:%02x))" % (letter, letter) for letter in name.encode())
        for name in _UNIQUE_FIELDS
    )
    + rb')"\s*:'
)
"""A key of `_UNIQUE_FIELDS` that is spelt with escapes."""
_OUTER_KEY_PATTERN = re.compile(rb'[ \t\n\r]*"((?:[^"\\]|\\.)*)"[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_AFTER_VALUE_PATTERN = re.compile(rb"[ \t\n\r]*([,}])")


class OuterFields:
    """The fields of a body's outermost object and the positions of their values, found in one pass.

    Raise `RequestRefused` if a field of `_UNIQUE_FIELDS` is given twice, or is spelt with escapes to hide that. Parsers
    differ in which of two fields they use, so that one model could be charged while another one answers.

    `slices`: the slices body, if there is one. `known_size`: number of bytes that were read with an earlier body.
    """

    def __init__(self, body: bytes, slices: BodySlices | None = None, known_size: int = 0) -> None:
        self._body = body
        self._sliced = slices
        self.new_size = len(body) - known_size
        """Maximum number of bytes that were not read before."""
        self.is_excessive = self.new_size > MAX_ALL_VALUES and has_too_many_values(body)
        self._spans = (
            None if self.is_excessive or slices is not None else _locate_outer_fields(body)
        )
        if self._spans is None and slices is None:
            _refuse_duplicates(body, is_excessive=self.is_excessive)

    def find(self, name: str) -> Field | None:
        """Return the field, or None if it is absent."""
        if self._sliced is not None:
            if name not in self._sliced.fields:
                return None
            return Field(self._sliced.fields[name], self._sliced.spans[name][0])
        if self._spans is None:  # Python's parser may accept a body that msgspec refuses
            return peek_field(self._body, name)
        span = self._spans.get(name)
        if span is None:
            return None
        start, end = span
        return Field(decode_value(self._body[start:end]), start)

    def has(self, name: str) -> bool:
        """Return whether there is such a field, without decoding it."""
        if self._sliced is not None:
            return name in self._sliced.spans
        if self._spans is None:
            return peek_field(self._body, name) is not None
        return name in self._spans

    @property
    def model(self) -> str | None:
        field = self.find("model")
        if field is None or not isinstance(field.value, str):
            return None
        return field.value

    @property
    def wants_stream(self) -> bool:
        field = self.find("stream")
        return field is not None and field.value is True


def _locate_outer_fields(body: bytes) -> SpanByField | None:
    """Return the positions of the values, or None if the body needs a closer check.

    Check that keys and values follow each other up to the end of the body, which proves that no key is given twice.
    """
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(fields) > MAX_FIELDS:
        return None
    position = len(body) - len(body.lstrip())
    spans: SpanByField = {}
    expected_sign = b"{"
    for key, raw in fields.items():
        if body[position : position + 1] != expected_sign:
            return None
        match = _OUTER_KEY_PATTERN.match(body, position + 1)
        # A key that is spelt with escapes needs a closer check.
        if match is None or match[1] != key.encode("utf-8", "surrogatepass"):
            return None
        start = match.end()
        end = start + len(memoryview(raw))
        following_match = _AFTER_VALUE_PATTERN.match(body, end)
        if following_match is None or not body.startswith(memoryview(raw), start):
            return None
        spans[key] = (start, end)
        position = following_match.start(1)
        expected_sign = b","
    is_end = body[position : position + 1] == b"}" and not body[position + 1 :].strip()
    return spans if not fields or is_end else None


def _refuse_duplicates(body: bytes, *, is_excessive: bool) -> None:
    """Raise `RequestRefused` if a field of `_UNIQUE_FIELDS` is given twice. Read the whole body if necessary."""
    escaped = _ESCAPED_KEY_PATTERN.search(body) if b"\\u00" in body else None
    if escaped is not None:
        raise _make_duplicate_error(json.loads(b'"' + escaped[1] + b'"'))
    doubtful_names = [name for name in _UNIQUE_FIELDS if body.count(b'"%s"' % name.encode()) > 1]
    if not doubtful_names:
        return
    if is_excessive:  # to look closely would take seconds
        raise _make_duplicate_error(doubtful_names[0])
    outermost_pairs: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        outermost_pairs[:] = pairs  # the outermost object is the last to be complete

    try:
        json.loads(body, object_pairs_hook=keep)
    except (ValueError, RecursionError):
        return  # not JSON: the upstream says so
    names = [name for name, _ in outermost_pairs]
    for name in doubtful_names:
        if names.count(name) > 1:
            raise _make_duplicate_error(name)


def _make_duplicate_error(name: str) -> RequestRefused:
    return RequestRefused(
        400,
        "duplicate_field",
        f"The request has the field `{name}` twice, or spelt with escapes; send it once.",
    )


def peek_field(body: bytes, name: str) -> Field | None:
    """Return a field of the outermost object, the last one of several, or None if it is absent."""
    key = b'"%s"' % name.encode()
    end = len(body)
    tries = 0
    while (position := body.rfind(key, 0, end)) >= 0:
        end = position
        match = _COLON_PATTERN.match(body, position + len(key))
        if match is None or body[position - 1 : position] == b"\\":
            continue
        if _is_outermost(body, position):
            return _read_value(body, match.end())
        tries += 1
        if tries == MAX_TRIES:
            return _decode_and_find(body, name)
    return None


def _is_outermost(body: bytes, position: int) -> bool:
    if position < len(body) // 2:
        return _is_json_object(body[:position] + b'"":0}')
    return _is_json_object(b"{" + body[position:])


def _is_json_object(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    else:
        return text.lstrip().startswith(b"{")
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _read_value(body: bytes, position: int) -> Field | None:
    """Decode the value at a position if it ends within a thousand bytes; return None if it does not."""
    text = body[position : position + 1_000].decode("utf-8", "ignore")
    try:
        return Field(_DECODER.raw_decode(text)[0], position)
    except (ValueError, RecursionError):
        return None


def _decode_and_find(body: bytes, name: str) -> Field | None:
    """Decode the whole body and return a field; its position is unknown and set to -1."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return Field(value[name], -1) if isinstance(value, dict) and name in value else None
