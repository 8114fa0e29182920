"""Tool output that takes too much of the context: choose the results to store, and write their replacements.

The id of a stored output is a hash of its text, so that a pure function can cite it before the caller stores it.
`output:<id>` is the only form in which it is cited, read and searched.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.messages import ToolCall

OPENING_TAG = "<persisted-output>"
CLOSING_TAG = "</persisted-output>"
UNLIMITED_TOOLS = frozenset({"read_file"})
"""Tools whose single results are not limited: they may read a stored output, which must not be stored again."""

_OUTPUT_ID_PATTERN = re.compile(r"(?<![\w:])output:[0-9a-f]{16}(?!\w)")
_NUMBER = r"\d[\d,]{0,20}"
_PERSISTED_BLOCK_PATTERN = re.compile(
    rf"{OPENING_TAG}\n[^\n]{{0,200}}?: (?P<chars>{_NUMBER}) characters \([^\n]{{0,40}}\), "
    rf"(?P<lines>{_NUMBER}) lines?\.\n"
    rf"Stored as (?P<id>output:[0-9a-f]{{16}})\.[^\n]{{0,200}}\n(?P<preview>(?:.*\n)?){CLOSING_TAG}",
    re.DOTALL,
)
_PREVIEW_LABEL_PATTERN = re.compile(r"^Its (?:first|last) [\d,]+ characters:\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits on tool output in the context, in characters."""

    result_chars: int
    max_turn_result_chars: int
    preview_chars: int
    max_tool_chars: int
    """Upper bound on the limit of any single tool."""
    per_tool: Mapping[str, int] = field(default_factory=dict)

    def limit_for(self, tool: str) -> float:
        """Return the longest single result of a tool that is not stored."""
        if tool in UNLIMITED_TOOLS and tool not in self.per_tool:
            return math.inf
        return min(self.per_tool.get(tool, self.result_chars), self.max_tool_chars)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """One result of an assistant turn. `is_exempt`: it must not be stored (see `reads_stored_output`)."""

    call_id: str
    tool: str
    text: str
    is_exempt: bool = False


@dataclass(frozen=True, slots=True)
class OutputToStore:
    """A text that must be stored, its id, and its replacement once it is stored.

    `index` is the position of the message, or of the result within its turn.
    """

    index: int
    call_id: str
    id: str
    text: str
    replacement: str


@dataclass(frozen=True, slots=True)
class PersistedOutput:
    """The facts that a `<persisted-output>` block states about its output."""

    id: str
    chars: int
    lines: int
    preview: str


def output_id(text: str) -> str:
    """Return the id under which a text is stored and cited."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"output:{digest[:16]}"


def make_persisted_block(text: str, *, preview_chars: int) -> str:
    """Return the replacement of a stored tool result: its size, its id, how to read a part, and a preview."""
    return "\n".join(
        (
            OPENING_TAG,
            f"This tool output is kept outside the conversation: {_describe_size(text)}.",
            _make_read_hint(output_id(text)),
            *_make_preview(text, preview_chars),
            CLOSING_TAG,
        )
    )


def cut_middle(text: str, *, keep_chars: int) -> tuple[str, str]:
    """Return the replacement of a text too large to be kept whole, and its middle, which must be stored.

    The first and last `keep_chars` characters stay word for word.
    """
    middle = text[keep_chars : len(text) - keep_chars]
    note = f"The middle of this message is kept outside the conversation: {_describe_size(middle)}."
    block = "\n".join((OPENING_TAG, note, _make_read_hint(output_id(middle)), CLOSING_TAG))
    return f"{text[:keep_chars]}\n{block}\n{text[len(text) - keep_chars :]}", middle


def parse_persisted(text: str) -> PersistedOutput | None:
    """Parse a tool result that is only a `<persisted-output>` block."""
    match = _PERSISTED_BLOCK_PATTERN.fullmatch(text.strip()) if OPENING_TAG in text[:100] else None
    if match is None:
        return None
    chars, lines = (int(match[name].replace(",", "")) for name in ("chars", "lines"))
    return PersistedOutput(
        match["id"], chars, lines, _PREVIEW_LABEL_PATTERN.sub("", match["preview"]).strip("\n")
    )


def is_persisted(text: str) -> bool:
    return parse_persisted(text) is not None


def reads_stored_output(call: ToolCall) -> bool:
    """Return whether a call reads a stored output: one of its arguments is the id of one.

    Such a result is limited by the call and never stored, or the model would store and read it for ever.
    """
    return any(
        isinstance(value, str) and _OUTPUT_ID_PATTERN.fullmatch(value.strip())
        for value in call.parsed.values()
    )


def plan_storage(results: Sequence[ToolOutput], limits: OutputLimits) -> list[OutputToStore]:
    """Return the results of one assistant turn that must be stored, in order.

    First each result over its own limit; then, while the total is over the turn's limit, the largest remaining one. A
    result is kept if its replacement would not be shorter.
    """
    outputs_by_index: dict[int, OutputToStore] = {}
    total = sum(len(result.text) for result in results)
    largest_first = sorted(enumerate(results), key=lambda item: -len(item[1].text))
    for check_turn_total in (False, True):
        for index, result in largest_first:
            if check_turn_total:
                is_too_long = total > limits.max_turn_result_chars
            else:
                is_too_long = len(result.text) > limits.limit_for(result.tool)
            if not is_too_long or index in outputs_by_index or result.is_exempt:
                continue
            output = make_output_to_store(
                index, result.call_id, result.text, preview_chars=limits.preview_chars
            )
            if output is not None:
                outputs_by_index[index] = output
                total -= len(result.text) - len(output.replacement)
    return [outputs_by_index[index] for index in sorted(outputs_by_index)]


def make_output_to_store(
    index: int, call_id: str, text: str, *, preview_chars: int
) -> OutputToStore | None:
    """Return the text with its replacement block, or None if the block is not shorter, or the text is such a block."""
    block = make_persisted_block(text, preview_chars=min(preview_chars, len(text) // 4))
    if len(block) >= len(text) or (is_persisted(text) and len(text) <= preview_chars + 1_000):
        return None
    return OutputToStore(index, call_id, output_id(text), text, block)


def _describe_size(text: str) -> str:
    byte_count = len(text.encode("utf-8", "surrogatepass"))
    megabyte = 1 << 20
    size = f"{byte_count} bytes" if byte_count < 1024 else f"{byte_count / 1024:.1f} KB"
    size = size if byte_count < megabyte else f"{byte_count / megabyte:.1f} MB"
    lines = count_lines(text)
    return f"{len(text):,} characters ({size}), {lines:,} line{'' if lines == 1 else 's'}"


def count_lines(text: str) -> int:
    """Return the number of lines in a text; a newline at the end does not start another line."""
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def _make_read_hint(stored_id: str) -> str:
    return f'Stored as {stored_id}. To see a part of it, call read_file with path "{stored_id}", an offset and a limit.'


READ_HINT = "To see a part of it, call {} with id"
"""The hint for a client's model, which reads a stored output with a tool of this name."""
_READ_HINT_PATTERN = re.compile(
    r'Stored as (output:[0-9a-f]{16})\. To see a part of it, call read_file with path "\1", an offset and a limit\.'
)


def replace_reader_name(value: Any, tool: str | None) -> Any:
    """Replace `read_file` with this tool in the notes on stored outputs; with None, remove the hint."""
    if isinstance(value, str):
        if OPENING_TAG not in value:
            return value
        hint = rf' {READ_HINT.format(tool)} "\1" and an offset.' if tool else ""
        return _READ_HINT_PATTERN.sub(rf"Stored as \1.{hint}", value)
    if isinstance(value, Mapping):
        return {key: replace_reader_name(part, tool) for key, part in value.items()}
    return [replace_reader_name(part, tool) for part in value] if isinstance(value, list) else value


def _make_preview(text: str, preview_chars: int) -> list[str]:
    """Return the start of the text and its end, which usually holds the outcome."""
    if preview_chars < 3:
        return []
    end_chars = preview_chars // 3
    start_chars = preview_chars - end_chars
    start = text[:start_chars]
    end = text[len(text) - end_chars :]
    return [
        f"Its first {start_chars:,} characters:",
        start,
        f"Its last {end_chars:,} characters:",
        end,
    ]
