"""Read and write JSON values of unknown shape."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def as_text(value: Any) -> str:
    """Return the value if it is a string, else an empty string."""
    return value if isinstance(value, str) else ""


def as_object(value: Any) -> dict[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return the value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def json_value(text: str) -> Any:
    """Parse JSON text, or return None if it is not JSON. Accept line breaks in strings, which models write."""
    try:
        return _LENIENT_DECODER.decode(text)
    except (ValueError, RecursionError):
        return None


_LENIENT_DECODER = json.JSONDecoder(strict=False)


def json_text(value: Any) -> str:
    """Return the arguments of a call as JSON text, whether they are given as text or as an object."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def iterate_strings(value: Any, *, with_keys: bool = False) -> Iterator[str]:
    """Yield every string in parsed JSON, in order. `with_keys`: yield also the keys of an object before its values."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            pending += reversed(item.values())
            pending += reversed(item) if with_keys else ()
        elif isinstance(item, list):
            pending += reversed(item)


def without_keys(fields: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return a copy of an object without these keys."""
    return {key: value for key, value in fields.items() if key not in keys}
