"""What a model gives as arguments: checked, with the defaults filled in. What cannot be meant is told in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.compaction.lossless.schemas import SCHEMAS
from everthread.errors import InputError

LONGEST = 1_000
FARTHEST = 10**9
_DEFAULTS: dict[str, Any] = {"mode": "text", "scope": "thread", "role": None, "tool": None, "limit": None, "offset": 0}
_LIMITS = {"lcm_grep": (6, 20), "lcm_expand": (6_000, 50_000)}
"""The default of `limit`, and the most; more is no error, an answer is bounded in any case."""
_PROPERTIES = {schema["function"]["name"]: schema["function"]["parameters"] for schema in SCHEMAS}


def checked(tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call. A null is as good as nothing."""
    known = _PROPERTIES[tool]["properties"]
    unknown = ", ".join(sorted(str(name)[:40] for name in set(given) - set(known)))
    if unknown:
        raise InputError(f"{tool} has no argument {unknown}; it has {', '.join(known)}")
    values = {name: default for name, default in _DEFAULTS.items() if name in known}
    values |= {name: _value(tool, name, value, known[name]) for name, value in given.items() if value is not None}
    for name in _PROPERTIES[tool]["required"]:
        if not values.get(name, "").strip():
            raise InputError(f"{tool} needs `{name}`: {known[name]['description']}")
    if "limit" in known:
        default, most = _LIMITS[tool]
        values["limit"] = min(values["limit"] or default, most)
    return values


def _value(tool: str, name: str, value: Any, schema: Mapping[str, Any]) -> Any:
    if schema["type"] == "integer":
        return _number(tool, name, value)
    if not isinstance(value, str):
        raise InputError(f"{tool}: `{name}` must be a text, not {type(value).__name__}")
    if len(value) > LONGEST:
        raise InputError(f"{tool}: `{name}` has {len(value):,} characters; {LONGEST:,} is the most")
    allowed = schema.get("enum")
    if allowed and value not in allowed:
        raise InputError(f"{tool}: {name}={value[:40]!r} is not allowed; use {' or '.join(allowed)}")
    return value if name == "pattern" else value.strip()


def _number(tool: str, name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    least = 1 if name == "limit" else 0
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= FARTHEST:
        raise InputError(f"{tool}: {name}={str(value)[:40]!r} is not allowed; use a whole number from {least} on")
    return value
