"""A conversation as a record: text between lines of ours, so that whatever stands in it is data.

Our lines are the only ones with the signs `⟦ ⟧`. Material loses those signs, so nothing in it can close the record,
speak as somebody else or pose as an instruction, whatever it says. Secrets are taken out before anything is cut, so
that no cut can hide half of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import (
    CALL_BLOCKS,
    REASONING_BLOCKS,
    RESULT_BLOCKS,
    Messages,
    Part,
    calls_of,
    kind_of,
    part_text,
    parts_of,
    results_of,
    strip_injected,
)
from everthread.core.redaction import redact
from everthread.core.text import clip, one_line
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
