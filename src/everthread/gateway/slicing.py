"""A request's body, taken apart in place: what its fields say, and where each of its messages stands in the text.

What is not rewritten is cut out and put back as it was written: the client's spaces, key order and number forms.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.exchange import Api
from everthread.errors import WireError

_BLANK = re.compile(r"[ \t\n\r]*")
_DECODE = json.JSONDecoder().raw_decode
LIST_FIELD: dict[Api, str] = {"openai_chat": "messages", "openai_responses": "input", "anthropic": "messages"}


@dataclass(frozen=True, slots=True)
class Element:
    """One message or item of the list, and where its text is."""

    value: Any
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Sliced:
    """A body and its parts."""

    text: str
    fields: dict[str, Any]
    """Every field but the list of messages."""
    spans: dict[str, tuple[int, int]]
    """Where each field's value is."""
    elements: tuple[Element, ...]
    single: bool = False
    """The list is one text, which stands for a message of the user."""

    def of(self, element: Element) -> str:
        return self.text[element.start : element.end]


def slice_body(body: bytes, api: Api) -> Sliced:
    """Take a request apart. What is no JSON object with a list of messages is refused in a sentence."""
    text = body.decode()
    listed = LIST_FIELD[api]
    fields: dict[str, Any] = {}
    spans: dict[str, tuple[int, int]] = {}
    elements: tuple[Element, ...] | None = None
    at = _expect(text, _skip(text, 0), "{")
    while (at := _skip(text, at)) < len(text) and text[at] != "}":
        key, at = _value(text, at)
        at = _skip(text, _expect(text, _skip(text, at), ":"))
        if not isinstance(key, str) or key in spans:
            raise WireError(f"the request has no usable field {key!r}: a name that is no string, or given twice")
        begun = at
        if key == listed and text[at : at + 1] == "[":
            elements, at = _elements(text, at)
        else:
            fields[key], at = _value(text, at)
        spans[key] = begun, at
        at = _comma(text, _skip(text, at), "}")
    if _skip(text, _expect(text, at, "}")) != len(text):
        raise WireError("the request goes on behind its end")
    if elements is not None:
        return Sliced(text, fields, spans, elements)
    if api != "openai_responses" or not isinstance(fields.get(listed), str):
        raise WireError(f"the request has no list `{listed}`")
    only = Element({"role": "user", "content": fields[listed]}, *spans[listed])
    return Sliced(text, fields, spans, (only,), single=True)


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


def _elements(text: str, at: int) -> tuple[tuple[Element, ...], int]:
    found = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        value, end = _value(text, at)
        found.append(Element(value, at, end))
        at = _skip(text, _comma(text, _skip(text, end), "]"))
    return tuple(found), at + 1


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODE(text, at)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the request is no JSON at character {at}: {error}") from None


def _skip(text: str, at: int) -> int:
    if text[at : at + 1] > " ":
        return at
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _expect(text: str, at: int, sign: str) -> int:
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
