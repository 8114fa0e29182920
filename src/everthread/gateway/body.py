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

from everthread.core.types import Api
from everthread.errors import WireError
from everthread.gateway.errors import Refused

_BLANK = re.compile(r"[ \t\n\r]*")
_BEHIND_ELEMENT = re.compile(r"[ \t\n\r]*([,\]])[ \t\n\r]*")
_DECODE = json.JSONDecoder().raw_decode
_SCAN: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder())["scan_once"]
_UNREAD: Any = object()
LIST_FIELD: dict[Api, str] = {"openai_chat": "messages", "openai_responses": "input", "anthropic": "messages"}

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
            self._value = _DECODE(self._text, self.start)[0]
        return self._value

    @property
    def text(self) -> str:
        return self._text[self.start : self.end]


class Elements(Sequence[Element]):
    """The list of messages: each is made when it is asked for, and decoded once."""

    def __init__(self, text: str, layout: Layout, read: Sequence[Any]) -> None:
        self._text = text
        self._layout = layout
        self._made: dict[int, Element] = {}
        self._read = read
        """Values of the last ones."""

    def __len__(self) -> int:
        return len(self._layout.starts)

    @overload
    def __getitem__(self, index: int) -> Element: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Element, ...]: ...
    def __getitem__(self, index: int | slice) -> Element | tuple[Element, ...]:
        if isinstance(index, slice):
            return tuple(map(self._element, range(len(self))[index]))
        return self._element(range(len(self))[index])

    def __iter__(self) -> Iterator[Element]:
        return map(self._element, range(len(self)))

    def _element(self, index: int) -> Element:
        made = self._made.get(index)
        if made is None:
            behind = index - len(self) + len(self._read)
            value = self._read[behind] if behind >= 0 else _UNREAD
            made = self._made[index] = Element(self._text, self._layout.starts[index], self._layout.ends[index], value)
        return made


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything stands, and what the fields say: a body without its text."""

    fields: Fields
    """Every field but the list of messages."""
    spans: Spans
    """Where each field's value is."""
    starts: array[int]
    ends: array[int]
    """Of each message."""

    def until(self, listed: str, end: int) -> Layout | None:
        """What the first `end` characters alone say, as far as the last message they show to be complete."""
        if listed not in self.spans:
            return None
        count = bisect_left(self.ends, end)
        begun = self.spans[listed][0]
        before = {name: span for name, span in self.spans.items() if span[0] < begun}
        fields = {name: self.fields[name] for name in before}
        return Layout(fields, {**before, listed: (begun, begun)}, self.starts[:count], self.ends[:count])


@dataclass(frozen=True, slots=True)
class Sliced:
    """A body and its parts."""

    text: str
    layout: Layout
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


Rest = Callable[[str, int], tuple[Fields, Spans] | None]
"""Of a text and a place behind its list: the fields that follow, where that text is known."""


def slice_body(body: bytes, api: Api) -> Sliced:
    """Take a request apart. What is no JSON object with a list of messages is refused in a sentence."""
    return slice_text(body.decode(), api)


def slice_text(text: str, api: Api, begun: Layout | None = None, rest: Rest | None = None) -> Sliced:
    """The same for its text, of which `begun` is known to be the beginning."""
    reader = _Reader(text, LIST_FIELD[api], rest)
    if begun is None or not begun.ends:
        reader.read()
    else:
        reader.go_on(begun)
    layout = Layout(reader.fields, reader.spans, reader.starts, reader.ends)
    if reader.has_list:
        return Sliced(text, layout, Elements(text, layout, reader.values))
    listed = reader.listed
    if api != "openai_responses" or not isinstance(reader.fields.get(listed), str):
        raise WireError(f"the request has no list `{listed}`")
    only = Element(text, *reader.spans[listed], {"role": "user", "content": reader.fields[listed]})
    return Sliced(text, layout, (only,), single=True)


def spliced(text: str, changes: Sequence[tuple[int, int, str]]) -> str:
    """The text with some of its stretches replaced; the stretches do not overlap."""
    pieces, at = [], 0
    for start, end, new in sorted(changes):
        pieces += [text[at:start], new]
        at = end
    return "".join([*pieces, text[at:]])


def written(value: Any) -> str:
    """A value as it goes into a body; escaped only where it holds what is no character."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text


class _Reader:
    """Reads a text from its beginning, or goes on behind a message."""

    def __init__(self, text: str, listed: str, rest: Rest | None) -> None:
        self.text = text
        self.listed = listed
        self.fields: Fields = {}
        self.spans: Spans = {}
        self.starts = array("Q")
        self.ends = array("Q")
        self.values: list[Any] = []
        self.has_list = False
        self._closed = 0
        self._rest = rest

    def read(self) -> None:
        self._object(_expect(self.text, _skip(self.text, 0), "{"))

    def go_on(self, begun: Layout) -> None:
        self.fields, self.spans = dict(begun.fields), dict(begun.spans)
        self.starts, self.ends = begun.starts[:], begun.ends[:]
        at = self._elements(begun.spans[self.listed][0], self._behind(begun.ends[-1]))
        if not self._known_rest(at):
            self._object(_comma(self.text, _skip(self.text, at), "}"))

    def _object(self, at: int) -> None:
        """Fields up to the end of the text."""
        text = self.text
        while (at := _skip(text, at)) < len(text) and text[at] != "}":
            key, at = _value(text, at)
            at = _skip(text, _expect(text, _skip(text, at), ":"))
            if not isinstance(key, str) or key in self.spans:
                raise _unusable(key)
            begun = at
            if key == self.listed and text[at : at + 1] == "[":
                at = self._elements(begun, self._first(at + 1))
                if self._known_rest(at):
                    return
            else:
                self.fields[key], at = _value(text, at)
                self.spans[key] = begun, at
            at = _comma(text, _skip(text, at), "}")
        if _skip(text, _expect(text, at, "}")) != len(text):
            raise WireError("the request goes on behind its end")

    def _known_rest(self, at: int) -> bool:
        known = self._rest(self.text, at) if self._rest else None
        if known is None:
            return False
        for key in known[0]:
            if key in self.spans:
                raise _unusable(key)
        self.fields.update(known[0])
        self.spans.update(known[1])
        return True

    def _first(self, at: int) -> int:
        """Where the first message begins; -1 where there is none."""
        at = _skip(self.text, at)
        if self.text[at : at + 1] != "]":
            return at
        self._closed = at + 1
        return -1

    def _behind(self, at: int) -> int:
        """Where the message after one that ends here begins; -1 where that was the last."""
        match = _BEHIND_ELEMENT.match(self.text, at)
        if match is None:
            raise WireError(f"the request is no JSON at character {at}: ',' is missing")
        if match[1] == ",":
            return match.end()
        self._closed = match.end(1)
        return -1

    def _elements(self, begun: int, at: int) -> int:
        """The messages from one that begins here on; behind the list."""
        text, match = self.text, _BEHIND_ELEMENT.match
        starts, ends, keep = self.starts.append, self.ends.append, self.values.append
        while at >= 0:
            try:
                value, end = _SCAN(text, at)
            except (StopIteration, ValueError, RecursionError) as error:
                raise _no_json(at, error) from None
            starts(at)
            ends(end)
            keep(value)
            found = match(text, end)
            at = found.end() if found is not None and found[1] == "," else self._behind(end)
        self.has_list = True
        self.spans[self.listed] = begun, self._closed
        return self._closed


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODE(text, at)
    except (ValueError, RecursionError) as error:
        raise _no_json(at, error) from None


def _no_json(at: int, error: Exception) -> WireError:
    why = "something must stand there" if isinstance(error, StopIteration) else str(error)
    return WireError(f"the request is no JSON at character {at}: {why}")


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


def _comma(text: str, at: int, closing: str) -> int:
    """Behind a comma that something follows; at the closing sign where that is next."""
    if text[at : at + 1] == closing:
        return at
    at = _skip(text, _expect(text, at, ","))
    if text[at : at + 1] == closing:
        raise WireError(f"the request is no JSON at character {at}: something must follow a comma")
    return at


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
_ESCAPED_KEY = re.compile(rb'(?<!\\)"((?:[A-Za-z0-9_]|\\u00[0-9a-fA-F]{2}){1,200})"\s*:')


def refuse_duplicates(body: bytes) -> None:
    """`Refused` for a field that matters and stands there twice, or is spelt with escapes to hide that.

    Which of two is meant each parser decides for itself: one model would be charged and another answer.
    """
    if b"\\u00" in body:
        for match in _ESCAPED_KEY.finditer(body):
            if b"\\" in match[1] and json.loads(b'"' + match[1] + b'"') in _WEIGHTY:
                raise _duplicate(json.loads(b'"' + match[1] + b'"'))
    doubtful = [name for name in _WEIGHTY if body.count(b'"%s"' % name.encode()) > 1]
    if not doubtful:
        return
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
