"""A few top-level fields of a JSON body, without parsing the history in it.

`"name"` with no backslash before it and a colon after it is a key: quotes inside a string are escaped. It is a key of
the outermost object exactly when what follows it, with one `{` in front, is balanced, or what precedes it, with one
`}` behind. The shorter side is parsed, so a body costs what its envelope costs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from everthread.gateway.access import Refused

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


def glance(body: bytes, name: str) -> Field | None:
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
