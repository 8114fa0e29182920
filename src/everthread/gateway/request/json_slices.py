"""Locate the fields and messages of a JSON body in its bytes.

Parts that are not rewritten keep the client's own bytes, with spaces, key order and number formats. If a body partly
equals an earlier one, only the new part is read. A message is decoded on first use.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, overload

import msgspec

from everthread.core.types import Api
from everthread.errors import WireError
from everthread.thread.wire_messages import JSON_ERRORS, decode_value, encode_value
from everthread.wire.codecs import CODECS

_BLANK_PATTERN = re.compile(rb"[ \t\n\r]*")
_AFTER_MESSAGE_PATTERN = re.compile(rb"[ \t\n\r]*([,\]])[ \t\n\r]*")
_KEY_PATTERN = re.compile(rb'"(?:[^"\\]|\\.)*"[ \t\n\r]*:[ \t\n\r]*')
_ESCAPE_PATTERN = re.compile(rb"\\(?:(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_UNREAD: Any = object()
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_CLOSING = b'}]"'
"""The last bytes of values that are complete regardless of the next byte; a number may continue."""
MAX_FIELDS = 1_000
_MAX_MESSAGES = 40_000
_MAX_VALUES = 50_000
"""Maximum values in one message or field, because each takes microseconds on the event loop."""
MAX_ALL_VALUES = 300_000
"""Maximum values in a whole body."""
_MAX_ESCAPES = 1_000_000
"""Maximum escapes in a body with a lone surrogate, because each escape is checked."""
_VALUES_AT_ONCE = 1_000
_SOME_VALUES_PATTERN = re.compile(
    rb'(?:[^",]*+(?:%b[^",]*+)*+,){%d}+' % (_STRING, _VALUES_AT_ONCE), re.DOTALL
)
"""Matches `_VALUES_AT_ONCE` commas outside of strings. More commas are counted in steps, so that other threads run."""
LIST_FIELD: dict[Api, str] = {
    api: codec.request_fields.messages_field for api, codec in CODECS.items()
}


class ExcessError(WireError):
    """Reading a request would take too long, so it is forwarded unchanged."""


Span = tuple[int, int]
FieldValues = dict[str, Any]
SpanByField = dict[str, Span]


class BodyEdit(NamedTuple):
    """A part of a body, by its start and end, and the text that replaces it."""

    start: int
    end: int
    text: str


class MessageSlice:
    """One message or item of the list, and the position of its bytes."""

    __slots__ = ("_body", "_value", "end", "start")

    def __init__(self, body: bytes, start: int, end: int, value: Any = _UNREAD) -> None:
        self._body = body
        self._value = value
        self.start = start
        self.end = end

    @property
    def value(self) -> Any:
        if self._value is _UNREAD:
            self._value = decode_value(self.raw)
        return self._value

    @property
    def raw(self) -> bytes:
        return self._body[self.start : self.end]

    @property
    def text(self) -> str:
        return self.raw.decode()


class LazyMessages(Sequence[MessageSlice]):
    """The list of messages or a part of it. Each message is created and decoded on first use."""

    __slots__ = ("_body", "_cache", "_ends", "_indexes", "_starts")

    def __init__(self, body: bytes, starts: array[int], ends: array[int]) -> None:
        self._body = body
        self._starts = starts
        self._ends = ends
        self._cache: dict[int, MessageSlice] = {}
        self._indexes = range(len(starts))

    def __len__(self) -> int:
        return len(self._indexes)

    @overload
    def __getitem__(self, index: int) -> MessageSlice: ...
    @overload
    def __getitem__(self, index: slice) -> LazyMessages: ...
    def __getitem__(self, index: int | slice) -> MessageSlice | LazyMessages:
        if not isinstance(index, slice):
            return self._find_or_create(self._indexes[index])
        part = copy(self)
        part._indexes = self._indexes[index]
        return part

    def __iter__(self) -> Iterator[MessageSlice]:
        return map(self._find_or_create, self._indexes)

    def _find_or_create(self, index: int) -> MessageSlice:
        message = self._cache.get(index)
        if message is None:
            message = MessageSlice(self._body, self._starts[index], self._ends[index])
            self._cache[index] = message
        return message


class DecodedMessages(Sequence[Any]):
    """The decoded messages of a list."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[MessageSlice]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> DecodedMessages: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return DecodedMessages(self._messages[index])
        return self._messages[index].value


@dataclass(frozen=True, slots=True)
class BodySlices:
    """A JSON body, its decoded fields and the positions of its messages."""

    body: bytes
    fields: FieldValues
    """Every field except the list of messages."""
    spans: SpanByField
    """The position of each field's value."""
    starts: array[int]
    ends: array[int]
    """`starts` and `ends`: the position of each message."""
    messages: Sequence[MessageSlice]
    is_single_text: bool = False
    """Whether the list is a plain string, which means one user message."""

    def forget_decoded(self) -> BodySlices:
        """Return the slices without the messages that were decoded."""
        return replace(self, messages=LazyMessages(self.body, self.starts, self.ends))

    def count_complete(self, end: int) -> int:
        """Count the messages that are certainly complete in the first `end` bytes of this body."""
        count = bisect_right(self.ends, end)
        is_open = count and self.ends[count - 1] == end and self.body[end - 1] not in _CLOSING
        return count - 1 if is_open else count


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of a body that equal an earlier one."""

    earlier: BodySlices
    message_count: int
    """Number of messages at the start that are equal, with everything before them; at least one."""
    tail_bytes: int = 0
    """Number of bytes after the list of messages, if all of these are equal; otherwise 0."""


def has_too_many_values(body: bytes) -> bool:
    """Return whether a body has too many values, or is invalid and has too many commas."""
    if len(body) <= MAX_ALL_VALUES:
        return False
    # `replace` takes a fifth of the time of `count`.
    if len(body) - len(body.replace(b",", b"")) <= MAX_ALL_VALUES:
        return False
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except JSON_ERRORS:
        return True
    return _has_more_values(body, MAX_ALL_VALUES)


def check_values(raw: bytes, subject: str) -> None:
    """Raise `ExcessError` if a part of a request has too many values, because reading it would delay other requests."""
    if raw.count(b",") > _MAX_VALUES and _has_more_values(raw, _MAX_VALUES):
        raise ExcessError(f"{subject} more than {_MAX_VALUES:,} values")


def _has_more_values(body: bytes, max_count: int) -> bool:
    """Return whether a body has more than `max_count` commas outside of strings, rounded to thousands."""
    position = 0
    for _ in range(max_count // _VALUES_AT_ONCE + 1):
        match = _SOME_VALUES_PATTERN.match(body, position)
        if match is None:
            return False
        position = match.end()
    return True


def slice_body(body: bytes, api: Api, known_parts: SharedParts | None = None) -> BodySlices:
    """Locate the fields and messages of a request. Raise `WireError` if it is not an object with a list of messages."""
    slicer = _BodySlicer(body, LIST_FIELD[api])
    if known_parts is None:
        slicer.read()
    else:
        slicer.read_rest(known_parts)
    slices = BodySlices(
        body,
        slicer.fields,
        slicer.spans,
        starts=slicer.starts,
        ends=slicer.ends,
        messages=LazyMessages(body, slicer.starts, slicer.ends),
    )
    if slicer.has_list:
        return slices
    list_name = slicer.list_field
    text = slicer.fields.get(list_name)
    if not CODECS[api].request_fields.accepts_single_text or not isinstance(text, str):
        raise WireError(f"the request has no list `{list_name}`")
    start, end = slicer.spans[list_name]
    only = MessageSlice(body, start, end, {"role": "user", "content": text})
    return replace(slices, messages=(only,), is_single_text=True)


def make_fields_edit(slices: BodySlices, fields: Mapping[str, Any]) -> BodyEdit:
    """Return the edit that sets these fields: in place of the first one if the body has it, otherwise at its start."""
    text = encode_value(fields)[1:-1]
    name = next(iter(fields))
    if name in slices.spans:
        return BodyEdit(*slices.spans[name], text.removeprefix(f"{encode_value(name)}:"))
    start = slices.body.index(b"{") + 1
    return BodyEdit(start, start, f"{text},")


def splice(body: bytes, edits: Sequence[BodyEdit]) -> bytes:
    """Return the body with some parts replaced; the parts must not overlap."""
    view = memoryview(body)
    pieces = list[bytes | memoryview]()
    position = 0
    for start, end, new_text in sorted(edits):
        pieces.append(view[position:start])
        pieces.append(new_text.encode())
        position = end
    pieces.append(view[position:])
    return b"".join(pieces)


class _BodySlicer:
    """Read a body from its beginning or from the end of its known messages.

    msgspec splits fields and messages without decoding them; this class computes their positions in the body.
    """

    def __init__(self, body: bytes, list_field: str) -> None:
        self.body = body
        self.list_field = list_field
        self.fields: FieldValues = {}
        self.spans: SpanByField = {}
        self.starts = array("Q")
        self.ends = array("Q")
        self.has_list = False

    def read(self) -> None:
        fields = _decode_fields(self.body)
        position = _expect(self.body, _skip_blank(self.body, 0), b"{")
        self._read_fields(fields, position)

    def read_rest(self, known_parts: SharedParts) -> None:
        """Read the messages after the known ones, and the fields after the list unless they are known too."""
        earlier = known_parts.earlier
        self.starts = earlier.starts[: known_parts.message_count]
        self.ends = earlier.ends[: known_parts.message_count]
        start = earlier.spans[self.list_field][0]
        position = self._skip_after_message(self.ends[-1])
        if known_parts.tail_bytes and self._read_middle(known_parts, start, position):
            return
        for name, span in earlier.spans.items():
            if span[0] < start:
                self.spans[name] = span
                self.fields[name] = earlier.fields[name]
        if self.body[position - 1 : position] == b"]":
            self._close_list(start, position)
            self._read_fields_after(position)
            return
        fields = _decode_fields(b'{"":[' + self.body[position:])
        following = _decode_list(fields.pop("", msgspec.Raw(b"null")))
        if not following:
            raise WireError(
                f"the request is not JSON at byte {position}: a message must follow a comma"
            )
        position = self._read_messages(start, position, following)
        self._read_fields(fields, position, is_first=False)

    def _read_middle(self, known_parts: SharedParts, start: int, position: int) -> bool:
        """Read the messages between the known parts; return False if the known parts do not fit together."""
        end = len(self.body) - known_parts.tail_bytes
        if self.body[end - 1 : end] != b"]":
            return False
        if position != end:
            try:
                following = _LIST.decode(b"[" + self.body[position:end])
            except JSON_ERRORS:
                return False
            if not following:
                return False
            self._read_messages(start, position, following)
        earlier = known_parts.earlier
        shift = end - earlier.spans[self.list_field][1]
        self.fields = earlier.fields
        self.spans = {
            name: span if span[0] < start else (span[0] + shift, span[1] + shift)
            for name, span in earlier.spans.items()
        }
        self._close_list(start, end)
        return True

    def _read_fields_after(self, position: int) -> None:
        """Read the fields after the list of messages."""
        next_position = _skip_blank(self.body, position)
        has_more = self.body[next_position : next_position + 1] == b","
        fields = _decode_fields(b"{" + self.body[next_position + has_more :])
        if has_more and not fields:
            raise WireError(
                f"the request is not JSON at byte {next_position}: something must follow a comma"
            )
        self._read_fields(fields, position, is_first=False)

    def _read_fields(
        self, fields: dict[str, msgspec.Raw], position: int, *, is_first: bool = True
    ) -> None:
        """Locate these fields up to the end of the body. Raise `WireError` if a field is given twice."""
        body = self.body
        if len(fields) > MAX_FIELDS:
            raise ExcessError(f"it has more than {MAX_FIELDS:,} fields")
        for key, raw in fields.items():
            if not is_first:
                position = _expect(body, _skip_blank(body, position), b",")
            is_first = False
            match = _KEY_PATTERN.match(body, _skip_blank(body, position))
            if match is None or key in self.spans:
                raise WireError(
                    f"the request has no usable field {key!r}: its name is not a string, or it is given twice"
                )
            start = match.end()
            if key == self.list_field and body[start : start + 1] == b"[":
                first = _skip_blank(body, start + 1)
                position = self._read_messages(start, first, _decode_list(raw))
                continue
            position = start + len(memoryview(raw))
            check_values(body[start:position], f"its field `{key[:50]}` has")
            self.fields[key] = decode_value(body[start:position])
            self.spans[key] = (start, position)
        if _skip_blank(body, _expect(body, _skip_blank(body, position), b"}")) != len(body):
            raise WireError("the request continues after its end")

    def _read_messages(self, start: int, position: int, messages: list[msgspec.Raw]) -> int:
        """Record the positions of the messages, the first of which begins at `position`; return the end of the list."""
        if len(self.starts) + len(messages) > _MAX_MESSAGES:
            raise ExcessError(f"it has more than {_MAX_MESSAGES:,} messages")
        for raw in messages:
            end = position + len(memoryview(raw))
            if end - position > _MAX_VALUES:
                check_values(self.body[position:end], "one of its messages has")
            self.starts.append(position)
            self.ends.append(end)
            position = self._skip_after_message(end)
        return self._close_list(start, position if messages else position + 1)

    def _skip_after_message(self, position: int) -> int:
        """Return the start of the message that follows this position, or the end of the list if none follows."""
        match = _AFTER_MESSAGE_PATTERN.match(self.body, position)
        if match is None:
            raise WireError(f"the request is not JSON at byte {position}: ',' is missing")
        return match.end() if match[1] == b"," else match.end(1)

    def _close_list(self, start: int, end: int) -> int:
        self.has_list = True
        self.spans[self.list_field] = (start, end)
        return end


def _decode_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the undecoded fields. If msgspec refuses the body, replace lone surrogates and try again."""
    try:
        return _FIELDS.decode(body)
    except JSON_ERRORS as error:
        if body.count(b"\\") > _MAX_ESCAPES:
            raise ExcessError(
                f"it has more than {_MAX_ESCAPES:,} escapes, of half characters or in no JSON"
            ) from None
        hidden = _ESCAPE_PATTERN.sub(lambda match: b"\\ufffd" if match[1] else match[0], body)
        if hidden == body:
            raise WireError(f"the request is not a JSON object: {error}") from None
    try:
        return _FIELDS.decode(hidden)
    except JSON_ERRORS as error:
        raise WireError(f"the request is not a JSON object: {error}") from None


def _decode_list(raw: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _LIST.decode(raw)
    except JSON_ERRORS as error:
        raise WireError(f"the request's messages are not JSON: {error}") from None


def _skip_blank(body: bytes, position: int) -> int:
    if body[position : position + 1] > b" ":
        return position
    match = _BLANK_PATTERN.match(body, position)
    return match.end() if match else position


def _expect(body: bytes, position: int, sign: bytes) -> int:
    if body[position : position + 1] != sign:
        sign_text = sign.decode()
        raise WireError(f"the request is not JSON at byte {position}: {sign_text!r} is missing")
    return position + 1
