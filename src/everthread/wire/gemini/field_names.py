"""Gemini's field names, which a client may write in camel case or in snake case."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any


@functools.lru_cache(maxsize=256)
def _to_snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}", name)


def find_field_name(fields: Mapping[str, Any], name: str) -> str:
    """Return the spelling that an object uses for a field; camel case if it lacks the field."""
    snake_name = _to_snake_case(name)
    return snake_name if name not in fields and snake_name in fields else name


def get_field(fields: Mapping[str, Any], name: str) -> Any:
    return fields.get(find_field_name(fields, name))


def get_object_field(fields: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return a field that must be an object, or None if it is absent or something else."""
    value = get_field(fields, name)
    return value if isinstance(value, Mapping) else None
