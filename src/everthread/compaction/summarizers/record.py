"""A conversation as a record: text between lines of ours, so that whatever stands in it is data.

Our lines are the only ones with the signs `⟦ ⟧`. Material loses those signs, so nothing in it can close the record,
speak as somebody else or pose as an instruction, whatever it says. Secrets are taken out before anything is cut, so
that no cut can hide half of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from everthread.compaction.summary import DONE, Sections
from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    Messages,
    Part,
    calls_of,
    clip,
    kind_of,
    one_line,
    part_text,
    parts_of,
    results_of,
    strip_injected,
)
from everthread.core.redaction import redact
from everthread.core.transcript import spans

OPEN, CLOSE = "⟦", "⟧"
_MATERIAL = str.maketrans({OPEN: "[", CLOSE: "]"})
_NAME = 80


def inert(text: str) -> str:
    """The text as material: without secrets, and without the signs that are ours."""
    return redact(text).translate(_MATERIAL)


def line(label: str) -> str:
    """A line of ours."""
    return f"{OPEN}{label}{CLOSE}"


def block(name: str, material: str) -> str:
    """Material between two lines of ours. It is given as `inert` or `RecordEntry` made it."""
    return f"{line(name)}\n{material}\n{line(f'end of {name}')}"


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One thing that was said or done. Both fields are inert."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{line(self.label)}\n{self.text}"


def record(messages: Messages) -> list[list[RecordEntry]]:
    """The messages as entries, in the pieces that belong together: calls and their results are one piece."""
    names: dict[str, str] = {}
    return [
        [entry for index in range(span.start, span.end) for entry in _entries(index + 1, messages[index], names)]
        for span in spans(messages)
    ]


def _entries(number: int, message: Mapping[str, Any], names: dict[str, str]) -> Iterator[RecordEntry]:
    """What one message holds: `names` is which tool each call so far was for, by the call's id."""
    calls, results = calls_of(message), results_of(message)
    names |= {call.id: call.name for call in calls}
    for who, text in _said(message):
        if text.strip():
            yield RecordEntry(f"{number} {who}", inert(text.strip()))
    for call in calls:
        yield RecordEntry(f"{number} assistant calls {_name(call.name)}", inert(call.arguments))
    for result in results:
        name = _name(result.name or names.get(result.call_id, ""))
        yield RecordEntry(f"{number} result of {name}", inert(_shown(result.content)))


def _said(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Who says what in a message, its calls and results aside."""
    role = _name(message.get("role"))
    if role == "tool":
        return
    thought = message.get("reasoning_content")
    if isinstance(thought, str):
        yield f"{role}, thinking", thought
    for part in parts_of(message):
        kind = kind_of(part)
        if kind in REASONING_BLOCKS:
            yield f"{role}, thinking", _thought(part)
        elif kind not in CALL_BLOCKS | RESULT_BLOCKS:
            yield from _spoken(role, _words(part))
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        yield role, refusal


def _spoken(role: str, text: str) -> Iterator[tuple[str, str]]:
    """The speaker's own words, apart from what a client put around them."""
    own = strip_injected(text) if role == "user" else text.strip()
    yield role, own
    yield f"{role}'s client adds", text.replace(own, "", 1) if own else text


def _thought(part: Part) -> str:
    """Reasoning that can be read; what is encrypted says nothing."""
    summary = part.get("summary")
    texts = [part.get("thinking"), part.get("text"), *map(part_text, summary if isinstance(summary, list) else ())]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _shown(content: Any) -> str:
    """A result's text; media by their kind."""
    parts = parts_of({"content": content if isinstance(content, str | list) else str(content or "")})
    return "\n".join(filter(None, map(_words, parts)))


def _words(part: Part) -> str:
    """The words of a part; of one that is no text, its kind."""
    kind = kind_of(part)
    return part_text(part) or ("" if kind.endswith("text") else f"[{_name(kind)}]")


def _name(name: Any) -> str:
    """A role, kind or tool as part of a line of ours: short, on one line, without our signs."""
    return clip(one_line(inert(str(name or "something"))), _NAME)


Count = Callable[[str], int]
_LABEL = 24
"""Tokens kept free in a chunk for the label of a part of an entry."""


def size(entries: Iterable[RecordEntry], count: Count) -> int:
    """Tokens of entries as they are written, one below the other."""
    return sum(count(str(entry)) + 1 for entry in entries)


def pack(pieces: Sequence[Sequence[RecordEntry]], room: int, count: Count) -> list[list[RecordEntry]]:
    """The entries in chunks of at most `room` tokens, in order."""
    chunks: list[list[RecordEntry]] = []
    left = 0
    for piece in pieces:
        for unit, tokens in _units(piece, room, count):
            if tokens > left or not chunks:
                chunks.append([])
                left = room
            chunks[-1] += unit
            left -= tokens
    return chunks


def cut(text: str, room: int, count: Count) -> list[str]:
    """The text in parts of at most `room` tokens: together they are the text."""
    tokens = count(text)
    if tokens <= room or len(text) < 2:
        return [text]
    step = math.ceil(len(text) / max(2, math.ceil(1.05 * tokens / room)))
    return [part for coarse in _steps(text, step) for part in cut(coarse, room, count)]


def _units(piece: Sequence[RecordEntry], room: int, count: Count) -> Iterator[tuple[Sequence[RecordEntry], int]]:
    """A piece as the smallest units that have to stay together, with their sizes."""
    tokens = size(piece, count)
    if tokens <= room:
        if piece:
            yield piece, tokens
    elif len(piece) > 1:
        for entry in piece:
            yield from _units([entry], room, count)
    else:
        parts = cut(piece[0].text, max(room - _LABEL, 1), count)
        for number, part in enumerate(parts, start=1):
            entry = RecordEntry(f"{piece[0].label}, part {number} of {len(parts)}", part)
            yield [entry], size([entry], count)


def _steps(text: str, step: int) -> Iterator[str]:
    """Parts of at most `step` characters, cut after a line or a word where one ends in the second half."""
    start = 0
    while start < len(text):
        end = start + step
        if end < len(text):
            least = start + step // 2
            end = text.rfind("\n", least, end) + 1 or text.rfind(" ", least, end) + 1 or end
        yield text[start:end]
        start = end


_HEADING = 6
_NOTE = 12
"""Tokens of a heading, and of the line that tells what was left out."""


def fit(sections: Mapping[str, str], room: int, count: Count) -> Sections:
    """The sections within `room` tokens: short ones whole, the long ones share what is left evenly."""
    sizes = {name: count(text) + _HEADING for name, text in sections.items()}
    left = room
    fitting: Sections = {}
    for rank, name in enumerate(sorted(sizes, key=sizes.__getitem__)):
        share = left // (len(sizes) - rank)
        text = sections[name]
        fitting[name] = text if sizes[name] <= share else _shortened(name, text, share - _HEADING, count)
        left -= min(sizes[name], share)
    return {name: fitting[name] for name in sections}


def _shortened(name: str, text: str, room: int, count: Count) -> str:
    """As many whole lines as fit: the latest of what was done, the first of anything else."""
    lines = text.splitlines()
    ordered = lines[::-1] if name == DONE else lines
    kept = sum(tokens <= room - _NOTE for tokens in accumulate(count(each) + 1 for each in ordered))
    if not kept:
        chars = len(text) * max(room - _NOTE, 1) // max(count(text), 1)
        return f"{text[:chars].rstrip()} … (the rest was left out)"
    note = f"({len(lines) - kept} lines left out)"
    return "\n".join([note, *lines[-kept:]] if name == DONE else [*lines[:kept], note])
