"""A JSON list of objects with the same keys as a table: every value is there, the keys stand once.

A cell is a JSON value; a text that cannot be taken for another value stands without its quotes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from everthread.core.messages import RESULT_BLOCKS, kind_of

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
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands twice")
    return made


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
