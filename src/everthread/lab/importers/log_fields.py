"""Read fields of a log's JSON objects, whose types are not guaranteed, and make messages of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message


def parse_time(value: Any) -> float | None:
    """Read a time of a log: ISO 8601, or seconds or milliseconds since 1970, or None if it is not a time."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return value / 1_000 if value > _MIN_MILLISECONDS else float(value)
    return None


_MIN_MILLISECONDS = 1e11
"""Larger numbers are milliseconds: as seconds this is the year 5138."""


def text_in(fields: Mapping[str, Any], key: str) -> str:
    """Return a text field of a log, or an empty string if it is not a text."""
    text = fields.get(key)
    return text if isinstance(text, str) else ""


def object_in(value: Any, key: str) -> Mapping[str, Any]:
    """Return an object in an object of a log, or an empty mapping if there is none."""
    inner = value.get(key) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def dollars_in(fields: Mapping[str, Any], key: str) -> float | None:
    dollars = fields.get(key)
    return float(dollars) if isinstance(dollars, int | float) and dollars > 0 else None


def usage_in(
    fields: Mapping[str, Any],
    prompt_key: str,
    output_key: str,
    *,
    cache_read_key: str,
    cache_write_key: str,
) -> CanonicalUsage:
    """Read the token counts under these keys of an object. A value that is not a count is read as 0."""

    def read_count(key: str) -> int:
        count = fields.get(key)
        return count if isinstance(count, int) and count > 0 else 0

    return CanonicalUsage(
        input_tokens=read_count(prompt_key),
        output_tokens=read_count(output_key),
        cache_read_tokens=read_count(cache_read_key),
        cache_write_tokens=read_count(cache_write_key),
    )


def texts_of(parts: Iterable[Mapping[str, Any]], part_type: str, key: str = "text") -> str:
    """Return the texts of all parts of one type, joined by line breaks."""
    return "\n".join(
        part[key]
        for part in parts
        if part.get("type") == part_type and isinstance(part.get(key), str)
    )


def count_in(fields: Mapping[str, Any], key: str) -> int | None:
    """Return a count that a log states, or None if it is not a positive whole number."""
    count = fields.get(key)
    return count if isinstance(count, int) and count > 0 and not isinstance(count, bool) else None


def list_objects(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list in a log, or an empty list if it is not a list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def make_answer(text: str, thoughts: str, calls: Iterable[tuple[str, Any, Any]]) -> Message:
    """Return an assistant message with this text, reasoning and calls: id, name and arguments of each."""
    message: Message = {"role": "assistant", "content": text or None}
    if thoughts:
        message["reasoning_content"] = thoughts
    tool_calls: list[Any] = []
    for call_id, name, arguments in calls:
        function = {"name": str(name), "arguments": json.dumps(arguments or {})}
        tool_calls.append({"id": call_id, "type": "function", "function": function})
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def make_injected_message(text: str) -> Message:
    """Return a user message with a text that the client wrote, marked so that it is not taken for the user's words."""
    return {"role": "user", "content": f"<system-reminder>\n{text}\n</system-reminder>"}
