"""Tool output that takes too much of the context: choose the results to store, and write what replaces them.

The id of a stored output is made from its text, so that it can be cited by a pure function and stored by its caller
first. `output:<id>` is the one form in which it is cited, read and searched.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.messages import Call

OPEN = "<persisted-output>"
CLOSE = "</persisted-output>"
UNLIMITED_TOOLS = frozenset({"read_file"})
"""Tools whose single results are not limited: they may read a stored output, which must not be stored again."""

_ID = re.compile(r"(?<![\w:])output:[0-9a-f]{16}(?!\w)")
_NUMBER = r"\d[\d,]{0,20}"
_BLOCK = re.compile(
    rf"{OPEN}\n[^\n]{{0,200}}?: (?P<chars>{_NUMBER}) characters \([^\n]{{0,40}}\), (?P<lines>{_NUMBER}) lines?\.\n"
    rf"Stored as (?P<id>output:[0-9a-f]{{16}})\.[^\n]{{0,200}}\n(?P<preview>(?:.*\n)?){CLOSE}",
    re.DOTALL,
)
_LABEL = re.compile(r"^Its (?:first|last) [\d,]+ characters:\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits on tool output in the context, in characters."""

    result_chars: int
    turn_chars: int
    preview_chars: int
    ceiling: int
    """No limit of a single tool goes beyond this."""
    per_tool: Mapping[str, int] = field(default_factory=dict)

    def of(self, tool: str) -> float:
        """Return the longest single result of a tool that is not stored."""
        if tool in UNLIMITED_TOOLS and tool not in self.per_tool:
            return math.inf
        return min(self.per_tool.get(tool, self.result_chars), self.ceiling)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """One result of an assistant turn. `exempt`: it must not be stored (see `reads_stored_output`)."""

    call_id: str
    tool: str
    text: str
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class ToStore:
    """A text that must be stored, its id, and its replacement once it is stored.

    `index` is the place of the message, or of the result within its turn.
    """

    index: int
    call_id: str
    id: str
    text: str
    replacement: str


@dataclass(frozen=True, slots=True)
class Persisted:
    """The facts that a `<persisted-output>` block states about its output."""

    id: str
    chars: int
    lines: int
    preview: str


def output_id(text: str) -> str:
    """Return the id under which a text is stored and cited."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"output:{digest[:16]}"


def persisted_block(text: str, *, preview_chars: int) -> str:
    """Return the replacement of a stored tool result: size, place, how to read a part, a preview."""
    return "\n".join(
        (
            OPEN,
            f"This tool output is kept outside the conversation: {_size(text)}.",
            _how_to_read(output_id(text)),
            *_preview(text, preview_chars),
            CLOSE,
        )
    )


def cut_middle(text: str, *, keep: int) -> tuple[str, str]:
    """Return the replacement of a text too large to be kept whole, and its middle, which must be stored.

    The first and last `keep` characters stay word for word.
    """
    middle = text[keep : len(text) - keep]
    note = (
        f"The middle of this message is kept outside the conversation: {_size(middle)}."
    )
    block = "\n".join((OPEN, note, _how_to_read(output_id(middle)), CLOSE))
    return f"{text[:keep]}\n{block}\n{text[len(text) - keep :]}", middle


def parse_persisted(text: str) -> Persisted | None:
    """Parse a tool result that is only a `<persisted-output>` block."""
    match = _BLOCK.fullmatch(text.strip()) if OPEN in text[:100] else None
    if match is None:
        return None
    chars, lines = (int(match[name].replace(",", "")) for name in ("chars", "lines"))
    return Persisted(
        match["id"], chars, lines, _LABEL.sub("", match["preview"]).strip("\n")
    )


def is_persisted(text: str) -> bool:
    return parse_persisted(text) is not None


def reads_stored_output(call: Call) -> bool:
    """Return whether a call reads a stored output: one of its arguments is the id of one.

    Such a result limits itself and is never stored, or the model would store, read and store for ever.
    """
    return any(
        isinstance(value, str) and _ID.fullmatch(value.strip())
        for value in call.parsed.values()
    )


def plan_storage(results: Sequence[ToolOutput], limits: OutputLimits) -> list[ToStore]:
    """Return which results of one assistant turn are stored, in their order.

    First each one over its own limit; then, while all together are over the turn's, the largest that is left. A block
    that would not be shorter is not made.
    """
    chosen: dict[int, ToStore] = {}
    total = sum(len(result.text) for result in results)
    largest_first = sorted(enumerate(results), key=lambda item: -len(item[1].text))
    for all_together in (False, True):
        for index, result in largest_first:
            too_long = (
                total > limits.turn_chars
                if all_together
                else len(result.text) > limits.of(result.tool)
            )
            if not too_long or index in chosen or result.exempt:
                continue
            stored = to_store(
                index, result.call_id, result.text, preview_chars=limits.preview_chars
            )
            if stored is not None:
                chosen[index] = stored
                total -= len(result.text) - len(stored.replacement)
    return [chosen[index] for index in sorted(chosen)]


def to_store(
    index: int, call_id: str, text: str, *, preview_chars: int
) -> ToStore | None:
    """Return the text and its replacement block; None if that is not shorter, or the text is a block already."""
    block = persisted_block(text, preview_chars=min(preview_chars, len(text) // 4))
    if len(block) >= len(text) or (
        is_persisted(text) and len(text) <= preview_chars + 1_000
    ):
        return None
    return ToStore(index, call_id, output_id(text), text, block)


def _size(text: str) -> str:
    count = len(text.encode("utf-8", "surrogatepass"))
    megabyte = 1 << 20
    size = f"{count} bytes" if count < 1024 else f"{count / 1024:.1f} KB"
    size = size if count < megabyte else f"{count / megabyte:.1f} MB"
    lines = line_count(text)
    return (
        f"{len(text):,} characters ({size}), {lines:,} line{'' if lines == 1 else 's'}"
    )


def line_count(text: str) -> int:
    """Return how many lines a text has; a newline at the end begins no further one."""
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def _how_to_read(cited: str) -> str:
    return f'Stored as {cited}. To see a part of it, call read_file with path "{cited}", an offset and a limit.'


_READ_HINT = re.compile(
    r'Stored as (output:[0-9a-f]{16})\. To see a part of it, call read_file with path "\1", an offset and a limit\.'
)


def name_reader(value: Any, tool: str | None) -> Any:
    """Name this tool, instead of `read_file`, in the notes on stored outputs; None: name none."""
    if isinstance(value, str):
        how = (
            rf' To see a part of it, call {tool} with id "\1" and an offset.'
            if tool
            else ""
        )
        return _READ_HINT.sub(rf"Stored as \1.{how}", value) if OPEN in value else value
    if isinstance(value, Mapping):
        return {key: name_reader(part, tool) for key, part in value.items()}
    return (
        [name_reader(part, tool) for part in value]
        if isinstance(value, list)
        else value
    )


def _preview(text: str, room: int) -> list[str]:
    """Return the start of the text and its end, which usually holds the outcome."""
    if room < 3:
        return []
    last = room // 3
    first = room - last
    start = text[:first]
    end = text[len(text) - last :]
    return [
        f"Its first {first:,} characters:",
        start,
        f"Its last {last:,} characters:",
        end,
    ]
