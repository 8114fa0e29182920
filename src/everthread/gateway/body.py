"""A request's body, taken apart in place: what its fields say, and where each of its messages stands in the text.

What is not rewritten is cut out and put back as it was written: the client's spaces, key order and number forms.
A body whose beginning is known is read from there on, and a message is decoded when somebody asks for it.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import msgspec

from everthread.core.types import Api
from everthread.errors import WireError
from everthread.gateway.errors import Refused

_BLANK = re.compile(r"[ \t\n\r]*")
_BEHIND_ELEMENT = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")
_KEY = re.compile(r'"(?:[^"\\]|\\.)*"[ \t\n\r]*:[ \t\n\r]*')
_ESCAPE = re.compile(rb"\\(?:(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_UNREAD: Any = object()
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MOST_FIELDS, _MOST_ELEMENTS = 1_000, 40_000
_MOST_VALUES, _MOST_ALL_VALUES = 50_000, 300_000
"""Of one message or of all fields beside them, and of a whole body: each value costs microseconds on the event loop."""
_MOST_ESCAPES = 1_000_000
"""In a body that has half a character somewhere: each one is looked at."""
_ALL_VALUES = re.compile(
    rb'(?:[^",]*+(?:%b[^",]*+)*+,){%d}+' % (_STRING.pattern.encode(), _MOST_ALL_VALUES + 1), re.DOTALL
)
"""So many commas outside of strings; it is read no further."""
LIST_FIELD: dict[Api, str] = {"openai_chat": "messages", "openai_responses": "input", "anthropic": "messages"}


class ExcessError(WireError):
    """A request would cost more to look into than it may: it goes on as it came."""


Span = tuple[int, int]
Fields = dict[str, Any]
Spans = dict[str, Span]


class Element:
    """One message or item of the list, and where its text is."""

    __slots__ = ("_text", "_value", "end", "start")

    def __init__(self, text: str, start: int, end: int, value: Any = _UNREAD) -> None:
        self._text = text
        self._value = value
        self.start = start
        self.end = end

    @property
    def value(self) -> Any:
        if self._value is _UNREAD:
            self._value = _decode_value(self._text[self.start : self.end])
        return self._value

    @property
    def text(self) -> str:
        return self._text[self.start : self.end]


class Elements(Sequence[Element]):
    """The list of messages, or a part of it: each is made when it is asked for, and decoded once."""

    __slots__ = ("_cache", "_indexes", "_layout", "_text")

    def __init__(self, text: str, layout: BodyLayout) -> None:
        self._text = text
        self._layout = layout
        self._cache: dict[int, Element] = {}
        self._indexes = range(len(layout.starts))

    def __len__(self) -> int:
        return len(self._indexes)

    @overload
    def __getitem__(self, index: int) -> Element: ...
    @overload
    def __getitem__(self, index: slice) -> Elements: ...
    def __getitem__(self, index: int | slice) -> Element | Elements:
        if not isinstance(index, slice):
            return self._element(self._indexes[index])
        part = object.__new__(Elements)
        part._text, part._layout, part._cache = self._text, self._layout, self._cache
        part._indexes = self._indexes[index]
        return part

    def __iter__(self) -> Iterator[Element]:
        return map(self._element, self._indexes)

    def _element(self, index: int) -> Element:
        element = self._cache.get(index)
        if element is None:
            element = self._cache[index] = Element(self._text, self._layout.starts[index], self._layout.ends[index])
        return element


class Values(Sequence[Any]):
    """The decoded messages of a list."""

    __slots__ = ("_elements",)

    def __init__(self, elements: Sequence[Element]) -> None:
        self._elements = elements

    def __len__(self) -> int:
        return len(self._elements)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Values: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return Values(self._elements[index])
        return self._elements[index].value


@dataclass(frozen=True, slots=True)
class BodyLayout:
    """Where everything stands, and what the fields say: a body without its text."""

    fields: Fields
    """Every field but the list of messages."""
    spans: Spans
    """Where each field's value is."""
    starts: array[int]
    ends: array[int]
    """Of each message."""

    def until(self, listed: str, end: int) -> BodyLayout | None:
        """What the first `end` characters alone say, as far as the last message they show to be complete."""
        if listed not in self.spans:
            return None
        count = bisect_left(self.ends, end)
        begun = self.spans[listed][0]
        before = {name: span for name, span in self.spans.items() if span[0] < begun}
        fields = {name: self.fields[name] for name in before}
        return BodyLayout(fields, {**before, listed: (begun, begun)}, self.starts[:count], self.ends[:count])


@dataclass(frozen=True, slots=True)
class SlicedBody:
    """A body and its parts."""

    text: str
    layout: BodyLayout
    elements: Sequence[Element]
    single: bool = False
    """The list is one text, which stands for a message of the user."""

    @property
    def fields(self) -> Fields:
        """Every field but the list of messages."""
        return self.layout.fields

    @property
    def spans(self) -> Spans:
        return self.layout.spans

    def of(self, element: Element) -> str:
        return self.text[element.start : element.end]


def has_too_many_values(body: bytes) -> bool:
    """Whether a body has so many values, or may have and is no JSON; commas in its texts do not count."""
    if len(body) <= _MOST_ALL_VALUES:
        return False
    if len(body) - len(body.replace(b",", b"")) <= _MOST_ALL_VALUES:  # a fifth of what `count` takes
        return False
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return True
    return _ALL_VALUES.match(body) is not None


def check_values(text: str, what: str) -> None:
    """`ExcessError` where one part of a request has so many values that reading it would keep the others waiting."""
    if text.count(",") > _MOST_VALUES and _STRING.sub("", text).count(",") > _MOST_VALUES:
        raise ExcessError(f"{what} more than {_MOST_VALUES:,} values")


Rest = Callable[[str, int], tuple[Fields, Spans] | None]
"""Of a text and a place behind its list: the fields that follow, where that text is known."""


def slice_body(body: bytes, api: Api) -> SlicedBody:
    """Take a request apart. What is no JSON object with a list of messages is refused in a sentence."""
    return slice_text(body.decode(), api)


def slice_text(text: str, api: Api, begun: BodyLayout | None = None, rest: Rest | None = None) -> SlicedBody:
    """The same for its text, of which `begun` is known to be the beginning."""
    reader = _Reader(text, LIST_FIELD[api], rest)
    if begun is None or not begun.ends:
        reader.read()
    else:
        reader.go_on(begun)
    layout = BodyLayout(reader.fields, reader.spans, reader.starts, reader.ends)
    if reader.has_list:
        return SlicedBody(text, layout, Elements(text, layout))
    listed = reader.listed
    if api != "openai_responses" or not isinstance(reader.fields.get(listed), str):
        raise WireError(f"the request has no list `{listed}`")
    only = Element(text, *reader.spans[listed], {"role": "user", "content": reader.fields[listed]})
    return SlicedBody(text, layout, (only,), single=True)


def splice_text(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    """The text with some of its stretches replaced; the stretches do not overlap."""
    pieces, at = [], 0
    for start, end, new in sorted(changes):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def splice_bytes(body: bytes, changes: Sequence[tuple[int, int, str]]) -> bytes:
    """The body with some stretches replaced, for a body in which every character is one byte."""
    view, pieces, at = memoryview(body), list[bytes | memoryview](), 0
    for start, end, new in sorted(changes):
        pieces += [view[at:start], new.encode()]
        at = end
    return b"".join([*pieces, view[at:]])


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode_value(value: Any) -> str:
    """A value as it goes into a body; escaped only where it holds what is no character."""
    text = _JSON.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


class _Reader:
    """Reads a text from its beginning, or goes on behind a message.

    msgspec finds where each field and message ends without decoding it; here is only where that is in the text.
    """

    def __init__(self, text: str, listed: str, rest: Rest | None) -> None:
        self.text = text
        self.listed = listed
        self.fields: Fields = {}
        self.spans: Spans = {}
        self.starts = array("Q")
        self.ends = array("Q")
        self.has_list = False
        self._rest = rest
        self._length: Callable[[msgspec.Raw], int] = _ascii_length if text.isascii() else _text_length

    def read(self) -> None:
        self._object(_decode_fields(self.text.encode()), _expect(self.text, _skip(self.text, 0), "{"))

    def go_on(self, begun: BodyLayout) -> None:
        self.fields, self.spans = dict(begun.fields), dict(begun.spans)
        self.starts, self.ends = begun.starts[:], begun.ends[:]
        start = begun.spans[self.listed][0]
        at = self._behind(begun.ends[-1])
        if self.text[at - 1] == "]":
            raw_fields: dict[str, msgspec.Raw] = {}
            self._close(start, at)
        else:
            raw_fields = _decode_fields(b'{"":[' + self.text[at:].encode())
            following = _decode_list(raw_fields.pop("", msgspec.Raw(b"null")))
            if not following:
                raise WireError(f"the request is no JSON at character {at}: a message must follow a comma")
            at = self._elements(start, at, following)
        if self._known_rest(at):
            return
        if not raw_fields:
            behind = _skip(self.text, at)
            comma = self.text[behind : behind + 1] == ","
            raw_fields = _decode_fields(b"{" + self.text[behind + comma :].encode())
            if comma and not raw_fields:
                raise WireError(f"the request is no JSON at character {behind}: something must follow a comma")
        self._object(raw_fields, at, is_first=False)

    def _object(self, raw_fields: dict[str, msgspec.Raw], at: int, *, is_first: bool = True) -> None:
        """Where the fields are that were found, up to the end of the text. One that stands there twice is refused."""
        text = self.text
        if len(raw_fields) > _MOST_FIELDS:
            raise ExcessError(f"it has more than {_MOST_FIELDS:,} fields")
        for key, raw in raw_fields.items():
            if not is_first:
                at = _expect(text, _skip(text, at), ",")
            is_first = False
            match = _KEY.match(text, _skip(text, at))
            if match is None or key in self.spans:
                raise _unusable(key)
            begun = at = match.end()
            if key == self.listed and text[at : at + 1] == "[":
                at = self._elements(begun, _skip(text, at + 1), _decode_list(raw))
                if self._known_rest(at):
                    return
            else:
                at += self._length(raw)
                check_values(text[begun:at], f"its field `{key[:50]}` has")
                self.fields[key] = _decode_value(text[begun:at])
                self.spans[key] = begun, at
        if _skip(text, _expect(text, _skip(text, at), "}")) != len(text):
            raise WireError("the request goes on behind its end")

    def _known_rest(self, at: int) -> bool:
        rest = self._rest(self.text, at) if self._rest else None
        if rest is None:
            return False
        for key in rest[0]:
            if key in self.spans:
                raise _unusable(key)
        self.fields.update(rest[0])
        self.spans.update(rest[1])
        return True

    def _behind(self, at: int) -> int:
        """Where the message after one that ends here begins; behind the list where that was the last."""
        match = _BEHIND_ELEMENT.match(self.text, at)
        if match is None:
            raise WireError(f"the request is no JSON at character {at}: ',' is missing")
        return match.end() if match[1] == "," else match.end(1)

    def _elements(self, begun: int, at: int, raw_elements: list[msgspec.Raw]) -> int:
        """The messages from one that begins here on; behind the list."""
        if len(self.starts) + len(raw_elements) > _MOST_ELEMENTS:
            raise ExcessError(f"it has more than {_MOST_ELEMENTS:,} messages")
        length, behind = self._length, self._behind
        starts, ends = self.starts.append, self.ends.append
        for raw in raw_elements:
            end = at + length(raw)
            if end - at > _MOST_VALUES:
                check_values(self.text[at:end], "one of its messages has")
            starts(at)
            ends(end)
            at = behind(end)
        return self._close(begun, at if raw_elements else at + 1)

    def _close(self, begun: int, at: int) -> int:
        self.has_list = True
        self.spans[self.listed] = begun, at
        return at


def _ascii_length(raw: msgspec.Raw) -> int:
    return len(memoryview(raw))


def _text_length(raw: msgspec.Raw) -> int:
    return len(bytes(raw).decode())


def _decode_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Where the fields are. Half a character that stands alone is hidden from msgspec, which takes none."""
    try:
        return _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        if body.count(b"\\") > _MOST_ESCAPES:
            raise ExcessError(f"it has more than {_MOST_ESCAPES:,} escapes, of half characters or in no JSON") from None
        hidden = _ESCAPE.sub(lambda match: b"\\ufffd" if match[1] else match[0], body)
        if hidden == body:
            raise WireError(f"the request is no JSON object: {error}") from None
    try:
        return _FIELDS.decode(hidden)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"the request is no JSON object: {error}") from None


def _decode_list(raw: msgspec.Raw) -> list[msgspec.Raw]:
    try:
        return _LIST.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"the request's messages are no JSON: {error}") from None


def _decode_value(text: str) -> Any:
    """The value. Half a character that stands alone, which some clients send, only Python's own reader takes."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the request is no JSON: {error}") from None


def _unusable(key: Any) -> WireError:
    return WireError(f"the request has no usable field {key!r}: a name that is no string, or given twice")


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] > " ":
        return at
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: Literal["{", "}", ":", ","]) -> int:
    if text[at : at + 1] != sign:
        raise WireError(f"the request is no JSON at character {at}: {sign!r} is missing")
    return at + 1


_TRIES = 4
"""So many keys of that name further inside, and the whole is parsed."""
_VALUE = re.compile(rb"\s*:\s*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Field:
    """A value, and where in the body it begins."""

    value: Any
    at: int


_WEIGHTY = ("model", "messages", "input", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "n")
"""Fields of which two would be read differently here and upstream."""
_ESCAPED_KEY = re.compile(
    rb'"(?=\w*\\u00)('
    + b"|".join(
        b"".join(b"(?:%c|\\\\u00(?i:%02x))" % (letter, letter) for letter in name.encode()) for name in _WEIGHTY
    )
    + rb')"\s*:'
)
"""One of them, spelt with escapes."""
_OUTER_KEY = re.compile(rb'[ \t\n\r]*"((?:[^"\\]|\\.)*)"[ \t\n\r]*:[ \t\n\r]*', re.DOTALL)
_BEHIND_VALUE = re.compile(rb"[ \t\n\r]*([,}])")


class OuterFields:
    """The fields of a body's outermost object and where their values are, found in one pass.

    `Refused` for a field that matters and stands there twice, or is spelt with escapes to hide that: which of two is
    meant each parser decides for itself, and one model would be charged while another answers.

    `sliced`: the body, where it was taken apart before; `known` of its characters were read with an earlier one.
    """

    def __init__(self, body: bytes, sliced: SlicedBody | None = None, known: int = 0) -> None:
        self._body = body
        self._sliced = sliced
        self.new_size = len(body) - known
        """Bytes that were not read before, at most."""
        self.is_excessive = self.new_size > _MOST_ALL_VALUES and has_too_many_values(body)
        self._spans = None if self.is_excessive or sliced is not None else _outer_spans(body)
        if self._spans is None and sliced is None:
            _refuse_slowly(body, is_excessive=self.is_excessive)

    def find(self, name: str) -> Field | None:
        """The field; None where it is absent."""
        if self._sliced is not None:
            if name not in self._sliced.fields:
                return None
            text, start = self._sliced.text, self._sliced.spans[name][0]
            at = start if len(text) == len(self._body) else len(text[:start].encode())
            return Field(self._sliced.fields[name], at)
        if self._spans is None:  # what msgspec does not read, Python's reader may
            return peek_field(self._body, name)
        span = self._spans.get(name)
        return Field(_decode_value(self._body[slice(*span)].decode()), span[0]) if span else None

    @property
    def model(self) -> str | None:
        field = self.find("model")
        return field.value if field is not None and isinstance(field.value, str) else None

    @property
    def streams(self) -> bool:
        field = self.find("stream")
        return field is not None and field.value is True


def _outer_spans(body: bytes) -> Spans | None:
    """Where the values are; None for what has to be looked at more closely.

    Each value stands where it was found, between its key and the next one, to the end of the body: so no key stands
    there twice.
    """
    try:
        fields = _FIELDS.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if len(fields) > _MOST_FIELDS:
        return None
    at = len(body) - len(body.lstrip())
    spans: Spans = {}
    sign = b"{"
    for key, raw in fields.items():
        match = _OUTER_KEY.match(body, at + 1) if body[at : at + 1] == sign else None
        if match is None or match[1] != key.encode("utf-8", "surrogatepass"):  # escapes are looked at more closely
            return None
        start = match.end()
        end = start + len(memoryview(raw))
        behind = _BEHIND_VALUE.match(body, end)
        if behind is None or not body.startswith(memoryview(raw), start):
            return None
        spans[key] = start, end
        at, sign = behind.start(1), b","
    return spans if not fields or (body[at : at + 1] == b"}" and not body[at + 1 :].strip()) else None


def _refuse_slowly(body: bytes, *, is_excessive: bool) -> None:
    escaped = _ESCAPED_KEY.search(body) if b"\\u00" in body else None
    if escaped is not None:
        raise _duplicate(json.loads(b'"' + escaped[1] + b'"'))
    doubtful = [name for name in _WEIGHTY if body.count(b'"%s"' % name.encode()) > 1]
    if not doubtful:
        return
    if is_excessive:  # to look closely would take seconds
        raise _duplicate(doubtful[0])
    outermost: list[tuple[str, Any]] = []

    def keep(pairs: list[tuple[str, Any]]) -> None:
        outermost[:] = pairs  # the outermost object is the last to be complete

    try:
        json.loads(body, object_pairs_hook=keep)
    except (ValueError, RecursionError):
        return  # no JSON: the upstream says so
    names = [name for name, _ in outermost]
    for name in doubtful:
        if names.count(name) > 1:
            raise _duplicate(name)


def _duplicate(name: str) -> Refused:
    return Refused(400, "duplicate_field", f"The request has the field `{name}` twice, or in escapes; send it once.")


def peek_field(body: bytes, name: str) -> Field | None:
    """The field of the outermost object, the last one where it stands there twice; None where it is absent."""
    key = b'"%s"' % name.encode()
    end, tries = len(body), 0
    while (at := body.rfind(key, 0, end)) >= 0:
        end = at
        match = _VALUE.match(body, at + len(key))
        if match is None or body[at - 1 : at] == b"\\":
            continue
        if _is_outermost(body, at):
            return _read(body, match.end())
        tries += 1
        if tries == _TRIES:
            return _whole(body, name)
    return None


def _is_outermost(body: bytes, at: int) -> bool:
    if at < len(body) // 2:
        return _parses(body[:at] + b'"":0}')
    return _parses(b"{" + body[at:])


def _parses(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    else:
        return text.lstrip().startswith(b"{")
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _read(body: bytes, at: int) -> Field | None:
    """The value there. Only scalars and small objects are asked for: a thousand bytes hold them."""
    text = body[at : at + 1_000].decode("utf-8", "ignore")
    try:
        return Field(_DECODER.raw_decode(text)[0], at)
    except (ValueError, RecursionError):
        return None


def _whole(body: bytes, name: str) -> Field | None:
    """Where the value begins is not known then: -1."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return Field(value[name], -1) if isinstance(value, dict) and name in value else None
