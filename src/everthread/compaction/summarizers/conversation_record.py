"""Write the conversation as a record for a model: text between marker lines, so that the model takes it as data.

Only marker lines have the signs `⟦ ⟧`. They are removed from the material, so that it cannot close the record, speak
for another role or pose as an instruction. Secrets are redacted before anything is cut, so that none is cut in half.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.compaction.summary.sentences import CountTokens
from everthread.core.messages import (
    CALL_BLOCK_KINDS,
    REASONING_BLOCK_KINDS,
    RESULT_BLOCK_KINDS,
    Messages,
    Part,
    calls_of,
    kind_of,
    part_text,
    parts_of,
    results_of,
)
from everthread.core.secrets.redaction import redact
from everthread.core.text import clip, one_line
from everthread.core.turns import split_into_spans
from everthread.core.user_words import strip_injected

OPEN = "⟦"
CLOSE = "⟧"
_MARKER_REPLACEMENTS = str.maketrans({OPEN: "[", CLOSE: "]"})
_MAX_LABEL_CHARS = 80
_PART_LABEL_TOKENS = 24
"""Tokens kept free in a chunk for the label of an entry that is cut into parts."""


def to_inert_text(text: str) -> str:
    """Return the text without secrets and without marker signs, so that it cannot act as markup."""
    return redact(text).translate(_MARKER_REPLACEMENTS)


def make_marker_line(label: str) -> str:
    """Return a marker line."""
    return f"{OPEN}{label}{CLOSE}"


def make_marked_block(name: str, material: str) -> str:
    """Return material between two marker lines. The material must be inert already."""
    return f"{make_marker_line(name)}\n{material}\n{make_marker_line(f'end of {name}')}"


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """A part of a message in the record: words, a call or a result. Both fields are inert text."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{make_marker_line(self.label)}\n{self.text}"


def make_record(messages: Messages) -> list[list[RecordEntry]]:
    """Return the messages as entries, in groups. Calls and their results are in the same group."""
    tool_names: dict[str, str] = {}
    return [
        [
            entry
            for index in range(span.start, span.end)
            for entry in _make_entries(index + 1, messages[index], tool_names)
        ]
        for span in split_into_spans(messages)
    ]


def _make_entries(
    number: int, message: Mapping[str, Any], tool_names: dict[str, str]
) -> Iterator[RecordEntry]:
    """Yield the entries of one message. `tool_names`: the tool of each call so far, by the call's id."""
    calls = calls_of(message)
    results = results_of(message)
    tool_names |= {call.id: call.name for call in calls}
    for speaker, text in _split_by_speaker(message):
        if text.strip():
            yield RecordEntry(f"{number} {speaker}", to_inert_text(text.strip()))
    for call in calls:
        yield RecordEntry(
            f"{number} assistant calls {_make_label(call.name)}",
            to_inert_text(call.arguments),
        )
    for result in results:
        name = _make_label(result.tool_name or tool_names.get(result.call_id, ""))
        yield RecordEntry(
            f"{number} result of {name}", to_inert_text(_render_content(result.content))
        )


def _split_by_speaker(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield speaker and text of each part of a message, without calls and results."""
    role = _make_label(message.get("role"))
    if role == "tool":
        return
    thought = message.get("reasoning_content")
    if isinstance(thought, str):
        yield f"{role}, thinking", thought
    for part in parts_of(message):
        kind = kind_of(part)
        if kind in REASONING_BLOCK_KINDS:
            yield f"{role}, thinking", _read_reasoning(part)
        elif kind not in CALL_BLOCK_KINDS | RESULT_BLOCK_KINDS:
            yield from _split_client_text(role, _describe_part(part))
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        yield role, refusal


def _split_client_text(role: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield the user's own words, then the text that the client added around them."""
    own_words = strip_injected(text) if role == "user" else text.strip()
    yield role, own_words
    yield f"{role}'s client adds", text.replace(own_words, "", 1) if own_words else text


def _read_reasoning(part: Part) -> str:
    """Return the text of a reasoning part, or an empty string if it is encrypted."""
    summary = part.get("summary")
    texts = [
        part.get("thinking"),
        part.get("text"),
        *map(part_text, summary if isinstance(summary, list) else ()),
    ]
    return "\n".join(text for text in texts if isinstance(text, str) and text)


def _render_content(content: Any) -> str:
    """Return the text of a result, in which a part without text is replaced by its kind."""
    parts = parts_of(
        {"content": content if isinstance(content, str | list) else str(content or "")}
    )
    return "\n".join(filter(None, map(_describe_part, parts)))


def _describe_part(part: Part) -> str:
    """Return the text of a part, or its kind if it has no text."""
    kind = kind_of(part)
    return part_text(part) or ("" if kind.endswith("text") else f"[{_make_label(kind)}]")


def _make_label(name: Any) -> str:
    """Return a role, kind or tool for a marker line: short, on one line, without marker signs."""
    return clip(one_line(to_inert_text(str(name or "something"))), _MAX_LABEL_CHARS)


def count_entry_tokens(entries: Iterable[RecordEntry], count: CountTokens) -> int:
    """Return the tokens of the rendered entries, line ends included."""
    return sum(count(str(entry)) + 1 for entry in entries)


def pack_chunks(
    groups: Sequence[Sequence[RecordEntry]], max_tokens: int, count: CountTokens
) -> list[list[RecordEntry]]:
    """Pack the entries into chunks of at most `max_tokens` tokens, in order."""
    chunks: list[list[RecordEntry]] = []
    remaining = 0
    for group in groups:
        for unit, tokens in _split_to_fit(group, max_tokens, count):
            if tokens > remaining or not chunks:
                chunks.append([])
                remaining = max_tokens
            chunks[-1] += unit
            remaining -= tokens
    return chunks


def cut_text(text: str, max_tokens: int, count: CountTokens) -> list[str]:
    """Cut the text into parts of at most `max_tokens` tokens; joined, they equal the text."""
    tokens = count(text)
    if tokens <= max_tokens or len(text) < 2:
        return [text]
    step_chars = math.ceil(len(text) / max(2, math.ceil(1.05 * tokens / max_tokens)))
    return [
        part
        for chunk in _cut_at_breaks(text, step_chars)
        for part in cut_text(chunk, max_tokens, count)
    ]


def _split_to_fit(
    group: Sequence[RecordEntry], max_tokens: int, count: CountTokens
) -> Iterator[tuple[Sequence[RecordEntry], int]]:
    """Yield the units of a group that stay together in a chunk, with their sizes."""
    tokens = count_entry_tokens(group, count)
    if tokens <= max_tokens:
        if group:
            yield group, tokens
    elif len(group) > 1:
        for entry in group:
            yield from _split_to_fit([entry], max_tokens, count)
    else:
        parts = cut_text(group[0].text, max(max_tokens - _PART_LABEL_TOKENS, 1), count)
        for number, part in enumerate(parts, start=1):
            entry = RecordEntry(f"{group[0].label}, part {number} of {len(parts)}", part)
            yield [entry], count_entry_tokens([entry], count)


def _cut_at_breaks(text: str, max_chars: int) -> Iterator[str]:
    """Yield parts of at most `max_chars` characters, cut after a line or a word if possible."""
    start = 0
    while start < len(text):
        end = start + max_chars
        if end < len(text):
            min_end = start + max_chars // 2
            end = text.rfind("\n", min_end, end) + 1 or text.rfind(" ", min_end, end) + 1 or end
        yield text[start:end]
        start = end
