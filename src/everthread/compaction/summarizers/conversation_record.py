"""The conversation as a record for a model: text between marker lines, so that everything in it is data.

Only marker lines have the signs `⟦ ⟧`. Material loses those signs, so nothing in it can close the record, speak for
another role or pose as an instruction. Secrets are redacted before anything is cut: no cut can hide half of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from everthread.core.secrets.redaction import redact
from everthread.core.transcript import split_into_spans

OPEN = "⟦"
CLOSE = "⟧"
_MATERIAL = str.maketrans({OPEN: "[", CLOSE: "]"})
_NAME = 80


def as_inert_text(text: str) -> str:
    """Return the text as material: without secrets and marker signs."""
    return redact(text).translate(_MATERIAL)


def line(label: str) -> str:
    """Return a marker line."""
    return f"{OPEN}{label}{CLOSE}"


def block(name: str, material: str) -> str:
    """Return material between two marker lines. Pass it through `as_inert_text` or `RecordEntry` first."""
    return f"{line(name)}\n{material}\n{line(f'end of {name}')}"


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One thing that was said or done. Both fields are inert."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{line(self.label)}\n{self.text}"


def record(messages: Messages) -> list[list[RecordEntry]]:
    """Return the messages as entries, in pieces that belong together: calls and their results are one piece."""
    names: dict[str, str] = {}
    return [
        [
            entry
            for index in range(span.start, span.end)
            for entry in _entries(index + 1, messages[index], names)
        ]
        for span in split_into_spans(messages)
    ]


def _entries(
    number: int, message: Mapping[str, Any], names: dict[str, str]
) -> Iterator[RecordEntry]:
    """Yield the entries of one message. `names`: the tool of each call so far, by the call's id."""
    calls = calls_of(message)
    results = results_of(message)
    names |= {call.id: call.name for call in calls}
    for speaker, text in _spoken_parts(message):
        if text.strip():
            yield RecordEntry(f"{number} {speaker}", as_inert_text(text.strip()))
    for call in calls:
        yield RecordEntry(
            f"{number} assistant calls {_name(call.name)}",
            as_inert_text(call.arguments),
        )
    for result in results:
        name = _name(result.name or names.get(result.call_id, ""))
        yield RecordEntry(
            f"{number} result of {name}", as_inert_text(_render_content(result.content))
        )


def _spoken_parts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the speakers and texts of a message, without calls and results."""
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
            yield from _split_client_text(role, _words(part))
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        yield role, refusal


def _split_client_text(role: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the speaker's own words, then the text that a client put around them."""
    own_words = strip_injected(text) if role == "user" else text.strip()
    yield role, own_words
    yield f"{role}'s client adds", text.replace(own_words, "", 1) if own_words else text


def _thought(part: Part) -> str:
    """Return the readable reasoning, without encrypted reasoning."""
    summary = part.get("summary")
    texts = [
        part.get("thinking"),
        part.get("text"),
        *map(part_text, summary if isinstance(summary, list) else ()),
    ]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _render_content(content: Any) -> str:
    """Return a result's text; media by their kind."""
    parts = parts_of(
        {"content": content if isinstance(content, str | list) else str(content or "")}
    )
    return "\n".join(filter(None, map(_words, parts)))


def _words(part: Part) -> str:
    """Return the text of a part, or its kind if it has no text."""
    kind = kind_of(part)
    return part_text(part) or ("" if kind.endswith("text") else f"[{_name(kind)}]")


def _name(name: Any) -> str:
    """Return a role, kind or tool for a marker line: short, on one line, without marker signs."""
    return clip(one_line(as_inert_text(str(name or "something"))), _NAME)


Count = Callable[[str], int]
_LABEL_TOKENS = 24
"""Tokens kept free in a chunk for the label of a part of an entry."""


def size(entries: Iterable[RecordEntry], count: Count) -> int:
    """Return the tokens of the rendered entries, one per line."""
    return sum(count(str(entry)) + 1 for entry in entries)


def pack(
    pieces: Sequence[Sequence[RecordEntry]], room: int, count: Count
) -> list[list[RecordEntry]]:
    """Pack the entries into chunks of at most `room` tokens, in order."""
    chunks: list[list[RecordEntry]] = []
    remaining = 0
    for piece in pieces:
        for unit, tokens in _units(piece, room, count):
            if tokens > remaining or not chunks:
                chunks.append([])
                remaining = room
            chunks[-1] += unit
            remaining -= tokens
    return chunks


def cut(text: str, room: int, count: Count) -> list[str]:
    """Cut the text into parts of at most `room` tokens; joined, they equal the text."""
    tokens = count(text)
    if tokens <= room or len(text) < 2:
        return [text]
    step = math.ceil(len(text) / max(2, math.ceil(1.05 * tokens / room)))
    return [part for chunk in _steps(text, step) for part in cut(chunk, room, count)]


def _units(
    piece: Sequence[RecordEntry], room: int, count: Count
) -> Iterator[tuple[Sequence[RecordEntry], int]]:
    """Yield the smallest units of a piece that must stay together, with their sizes."""
    tokens = size(piece, count)
    if tokens <= room:
        if piece:
            yield piece, tokens
    elif len(piece) > 1:
        for entry in piece:
            yield from _units([entry], room, count)
    else:
        parts = cut(piece[0].text, max(room - _LABEL_TOKENS, 1), count)
        for number, part in enumerate(parts, start=1):
            entry = RecordEntry(
                f"{piece[0].label}, part {number} of {len(parts)}", part
            )
            yield [entry], size([entry], count)


def _steps(text: str, step: int) -> Iterator[str]:
    """Yield parts of at most `step` characters, cut after a line or a word that ends in the second half."""
    start = 0
    while start < len(text):
        end = start + step
        if end < len(text):
            min_end = start + step // 2
            end = (
                text.rfind("\n", min_end, end) + 1
                or text.rfind(" ", min_end, end) + 1
                or end
            )
        yield text[start:end]
        start = end
