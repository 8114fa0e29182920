"""Tool output that takes too much of the context: which results are stored, what stands in their place, tables.

The id of a stored output is made from its text, so that it can be cited by a pure function and stored by its caller
first. `output:<id>` is the one form in which it is cited, read and searched. A JSON list of objects with the same keys
may be given as a table: every value is there, the keys stand once. A cell is a JSON value; a text that cannot be taken
for another value stands without its quotes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.core.messages import (
    RESULT_BLOCKS,
    Call,
    kind_of,
)

OPEN, CLOSE = "<persisted-output>", "</persisted-output>"
UNLIMITED = frozenset({"read_file"})
"""Tools whose single results are not limited: what they read may be a stored output, which must not be stored again."""

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
    """How many characters of tool output may stand in the context."""

    result_chars: int
    turn_chars: int
    preview_chars: int
    ceiling: int
    """No limit of a single tool goes beyond this."""
    per_tool: Mapping[str, int] = field(default_factory=dict)

    def of(self, tool: str) -> float:
        """The longest single result of a tool that is not stored."""
        if tool in UNLIMITED and tool not in self.per_tool:
            return math.inf
        return min(self.per_tool.get(tool, self.result_chars), self.ceiling)


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """One result of an assistant turn. `exempt`: it must not be stored (see `reads_stored`)."""

    call_id: str
    tool: str
    text: str
    exempt: bool = False


@dataclass(frozen=True, slots=True)
class ToStore:
    """What must be stored, under which id, and what stands in its place once it is.

    `index` is the place of the message, or of the result within its turn.
    """

    index: int
    call_id: str
    id: str
    text: str
    replacement: str


@dataclass(frozen=True, slots=True)
class Persisted:
    """What a `<persisted-output>` block says about the output it stands for."""

    id: str
    chars: int
    lines: int
    preview: str


def output_id(text: str) -> str:
    """The id under which a text is stored and cited."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"output:{digest[:16]}"


def persisted_block(text: str, *, preview_chars: int) -> str:
    """What stands in place of a stored tool result: size, where it is, how to read a part, a preview."""
    return "\n".join(
        (
            OPEN,
            f"This tool output is kept outside the conversation: {_size(text)}.",
            _how_to_read(output_id(text)),
            *_preview(text, min(preview_chars, len(text) // 4)),
            CLOSE,
        )
    )


def cut_middle(text: str, *, keep: int) -> tuple[str, str]:
    """What stands in place of a text too large to be kept whole, and its middle, which must be stored.

    The first and last `keep` characters stay word for word.
    """
    middle = text[keep : len(text) - keep]
    note = f"The middle of this message is kept outside the conversation: {_size(middle)}."
    block = "\n".join((OPEN, note, _how_to_read(output_id(middle)), CLOSE))
    return f"{text[:keep]}\n{block}\n{text[len(text) - keep :]}", middle


def parse_persisted(text: str) -> Persisted | None:
    """What a tool result says when it is nothing but a `<persisted-output>` block."""
    match = _BLOCK.fullmatch(text.strip()) if OPEN in text[:100] else None
    if match is None:
        return None
    chars, lines = (int(match[name].replace(",", "")) for name in ("chars", "lines"))
    return Persisted(match["id"], chars, lines, _LABEL.sub("", match["preview"]).strip("\n"))


def is_persisted(text: str) -> bool:
    return parse_persisted(text) is not None


def reads_stored(call: Call) -> bool:
    """Whether a call reads a stored output: one of its arguments is the id of one.

    Such a result limits itself and is never stored, or the model would store, read and store for ever.
    """
    return any(isinstance(value, str) and _ID.fullmatch(value.strip()) for value in call.parsed.values())


def plan_storage(results: Sequence[ToolOutput], limits: OutputLimits) -> list[ToStore]:
    """Which results of one assistant turn are stored, in their order.

    First each one over its own limit; then, while all together are over the turn's, the largest that is left. A block
    that would not be shorter is not made.
    """
    chosen: dict[int, ToStore] = {}
    total = sum(len(result.text) for result in results)
    largest_first = sorted(enumerate(results), key=lambda item: -len(item[1].text))
    for all_together in (False, True):
        for index, result in largest_first:
            too_long = total > limits.turn_chars if all_together else len(result.text) > limits.of(result.tool)
            if not too_long or index in chosen or result.exempt:
                continue
            stored = to_store(index, result.call_id, result.text, preview_chars=limits.preview_chars)
            if stored is not None:
                chosen[index] = stored
                total -= len(result.text) - len(stored.replacement)
    return [chosen[index] for index in sorted(chosen)]


def to_store(index: int, call_id: str, text: str, *, preview_chars: int) -> ToStore | None:
    """The text with the block that replaces it; None where that is not shorter, or a block stands there already."""
    block = persisted_block(text, preview_chars=preview_chars)
    if len(block) >= len(text) or (is_persisted(text) and len(text) <= preview_chars + 1_000):
        return None
    return ToStore(index, call_id, output_id(text), text, block)


def _size(text: str) -> str:
    count = len(text.encode("utf-8", "surrogatepass"))
    megabyte = 1 << 20
    size = f"{count} bytes" if count < 1024 else f"{count / 1024:.1f} KB"
    size = size if count < megabyte else f"{count / megabyte:.1f} MB"
    lines = line_count(text)
    return f"{len(text):,} characters ({size}), {lines:,} line{'' if lines == 1 else 's'}"


def line_count(text: str) -> int:
    """How many lines a text has; a newline at the end begins no further one."""
    return text.count("\n") + (not text.endswith("\n")) if text else 0


def _how_to_read(cited: str) -> str:
    return f'Stored as {cited}. To see a part of it, call read_file with path "{cited}", an offset and a limit.'


_HOW = re.compile(
    r'Stored as (output:[0-9a-f]{16})\. To see a part of it, call read_file with path "\1", an offset and a limit\.'
)


def name_reader(value: Any, tool: str | None) -> Any:
    """The same value where every block in it names this tool instead of `read_file`; None: it names none."""
    if isinstance(value, str):
        how = rf' To see a part of it, call {tool} with id "\1" and an offset.' if tool else ""
        return _HOW.sub(rf"Stored as \1.{how}", value) if OPEN in value else value
    if isinstance(value, Mapping):
        return {key: name_reader(part, tool) for key, part in value.items()}
    return [name_reader(part, tool) for part in value] if isinstance(value, list) else value


def _preview(text: str, room: int) -> list[str]:
    """The start of the text, and its end, where outcomes stand."""
    if room < 3:
        return []
    last = room // 3
    first = room - last
    start, end = text[:first], text[len(text) - last :]
    return [f"Its first {first:,} characters:", start, f"Its last {last:,} characters:", end]


# --- lists of objects as tables ---------------------------------------------------------------------------------------


SAVES = 2 / 3
"""A table that is longer than this part of the JSON is not worth it."""
LEAST_CHARS = 400
_PLAIN = re.compile(r"[^\s\"|\\\[\]{}](?:[^\n\r\"|\\]*[^\s\"|\\])?")
_VALUE = re.compile(r"-?[0-9][0-9.eE+-]*|true|false|null|NaN|-?Infinity")
_HEAD = "[{} rows, the same values as in the JSON result{}; cells are separated by |]"


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


def as_table(text: str, cited: str = "") -> str | None:
    """The table; None where the text is no such list, or it saves less than a third. `cited`: the original's id."""
    if len(text) < LEAST_CHARS or not text.lstrip().startswith("["):
        return None
    try:
        rows: Any = json.loads(
            text, parse_float=_Number, parse_int=_Number, parse_constant=_refuse, object_pairs_hook=_as_object
        )
    except (ValueError, RecursionError):
        return None
    if len(rows) < 2 or not all(isinstance(row, dict) for row in rows):
        return None
    keys = list(rows[0])
    if not keys or any(row.keys() != rows[0].keys() for row in rows):
        return None
    lines = [_HEAD.format(f"{len(rows):,}", f", stored as {cited}" if cited else ""), "|".join(map(_cell, keys))]
    lines += ("|".join(_cell(row[key]) for key in keys) for row in rows)
    table = "\n".join(lines)
    return table if len(table) <= SAVES * len(text) else None


def _refuse(name: str) -> Any:
    raise ValueError(name)


def _as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _cell(value: Any) -> str:
    if isinstance(value, str) and not isinstance(value, _Number) and _PLAIN.fullmatch(value):
        return value if not _VALUE.fullmatch(value) else json.dumps(value)
    return _json(value).replace("|", "\\u007c")


def _json(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{json.dumps(key, ensure_ascii=False)}:{_json(part)}" for key, part in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_json, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def table_results(value: Any, convert: Callable[[str], str | None] = as_table) -> Any:
    """A message of any protocol whose tool results are tables where that pays; the same object where none is."""
    if not isinstance(value, dict):
        return value
    content = value.get("content")
    if value.get("role") in ("tool", "function"):
        field, new = "content", _convert(content, convert)
    elif kind_of(value).endswith("_output"):
        field, new = "output", _convert(value.get("output"), convert)
    elif isinstance(content, list):
        parts = [
            {**part, "content": _convert(part.get("content"), convert)} if kind_of(part) in RESULT_BLOCKS else part
            for part in content
        ]
        field, new = "content", parts
    else:
        return value
    return value if new == value.get(field) else {**value, field: new}


def _convert(content: Any, convert: Callable[[str], str | None]) -> Any:
    """A result's content: a text, or one part that is a text."""
    if isinstance(content, str):
        return convert(content) or content
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        text = content[0].get("text")
        table = convert(text) if isinstance(text, str) else None
        return [{**content[0], "text": table}] if table else content
    return content
