"""What clients write into user messages by themselves, told from what the user says.

Everything is data (`data/injected.json`). *Surroundings* tell of the moment (what is open, what to remember) and may
differ from request to request in one and the same message; *records* (a command's output, an attached file) stay.
*Speech* are tags around the user's own words. An *envelope* holds all the user says: what stands outside of it, in
this message, is the client's. A text with one of the *beginnings* is the client's as a whole: it is how agents write
tool results, file listings and summaries of their own where the protocol has no place for them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NamedTuple


def users_words(texts: Sequence[str]) -> list[str]:
    """What the user says in the texts of one message, text by text."""
    enclosed = [inner for text in texts for inner in _enclosed(text)]
    return [said for text in enclosed or texts if (said := strip_injected(text))]


def strip_injected(text: str) -> str:
    """The text without what clients inject around the user's words, trimmed. A tag never closed is text."""
    known = _known()
    if known.beginning.match(text.lstrip()):
        text = "\n".join(text[element.inner : element.close] for element in _elements(text, known.speech))
    return _without(_without(text, known.injected), known.speech, content=False).strip()


def strip_surroundings(text: str) -> str:
    """The text without what may differ in the next request though the user said the same, trimmed."""
    return _without(text, _known().surroundings).strip()


class _Element(NamedTuple):
    """`<tag …>…</tag>`: where it starts, where its content starts and ends, where it ends."""

    start: int
    inner: int
    close: int
    end: int


def _without(text: str, opening: re.Pattern[str], *, content: bool = True) -> str:
    """The text without these elements; or only without their tags, what is in them staying."""
    kept: list[str] = []
    position = 0
    for element in _elements(text, opening):
        kept.append(text[position : element.start])
        if not content:
            kept.append(text[element.inner : element.close].strip())
        position = element.end
    return "".join((*kept, text[position:]))


def _elements(text: str, opening: re.Pattern[str]) -> Iterator[_Element]:
    """Closed elements, the outermost of each, in one pass however many are never closed."""
    unclosed: set[str] = set()
    found = opening.search(text) if "<" in text else None
    while found:
        tag, after = found[1], found.end()
        close = -1 if tag in unclosed else text.find(f"</{tag}>", after)
        if close < 0:
            unclosed.add(tag)
        else:
            after = close + len(tag) + 3
            yield _Element(found.start(), found.end(), close, after)
        found = opening.search(text, after)


def _enclosed(text: str) -> Iterator[str]:
    """What stands in envelopes. One without an end reaches to the end of the text."""
    for start, end in _known().envelopes:
        at = text.find(start)
        while at >= 0:
            inner = at + len(start)
            close = text.find(end, inner) if end else len(text)
            if close < 0:
                break
            yield text[inner:close]
            at = text.find(start, close)


@dataclass(frozen=True, slots=True)
class _Known:
    envelopes: tuple[tuple[str, str], ...]
    speech: re.Pattern[str]
    surroundings: re.Pattern[str]
    injected: re.Pattern[str]
    """Surroundings and records."""
    beginning: re.Pattern[str]


@functools.cache
def _known() -> _Known:
    data = json.loads(resources.files("everthread.core").joinpath("data/injected.json").read_text("utf-8"))
    return _Known(
        envelopes=tuple((start, end) for start, end in data["envelopes"]),
        speech=_opening(data["speech"]),
        surroundings=_opening(data["surroundings"]),
        injected=_opening([*data["surroundings"], *data["records"]]),
        beginning=re.compile("|".join(data["beginnings"])),
    )


def _opening(tags: Sequence[str]) -> re.Pattern[str]:
    names = "|".join(re.escape(tag) for tag in tags)
    return re.compile(rf"<({names})(?:\s[^<>]*)?>")
