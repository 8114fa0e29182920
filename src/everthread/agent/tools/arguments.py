"""Read the arguments of a tool call. Raise `InputError` with a hint for the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.workspace import quote_name
from everthread.errors import InputError


def check_names(arguments: Mapping[str, Any], tool_schema: Mapping[str, Any]) -> None:
    """Raise `InputError` for arguments that the schema does not have, such as misspelt ones."""
    names = tool_schema["function"]["parameters"]["properties"]
    unknown_names = [quote_name(str(name), 60) for name in arguments if name not in names]
    if unknown_names:
        raise InputError(
            f"there is no argument {', '.join(unknown_names[:5])}; the arguments are {', '.join(names)}"
        )


def read_text(
    arguments: Mapping[str, Any],
    name: str,
    *,
    default: str | None = None,
    max_chars: int = 5_000_000,
    allow_empty: bool = False,
) -> str:
    """Return a text argument; without a default it is required."""
    value = arguments.get(name)
    if value is None:
        if default is None:
            raise InputError(f"the argument {name} is missing; give it as a string")
        return default
    if not isinstance(value, str):
        raise InputError(f"the argument {name} must be a string, not {_describe_type(value)}")
    if not value and not allow_empty:
        raise InputError(f"the argument {name} is empty")
    if len(value) > max_chars:
        raise InputError(
            f"the argument {name} has {len(value):,} characters; the limit is {max_chars:,}"
        )
    return value


def read_int(
    arguments: Mapping[str, Any],
    name: str,
    *,
    default: int,
    minimum: int = 0,
    maximum: int = 1_000_000_000,
) -> int:
    """Return a whole number. A number written as text is accepted too."""
    value = arguments.get(name)
    if value is None:
        return default
    if (
        isinstance(value, str)
        and len(value) <= 12
        and value.strip().isascii()
        and value.strip().isdigit()
    ):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"the argument {name} must be a whole number, not {_describe_type(value)}")
    if not minimum <= value <= maximum:
        raise InputError(f"the argument {name} must be from {minimum:,} to {maximum:,}")
    return value


def read_flag(arguments: Mapping[str, Any], name: str) -> bool:
    """Return a boolean, or False if it is missing."""
    value = arguments.get(name)
    if value is None:
        return False
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise InputError(f"the argument {name} must be true or false, not {_describe_type(value)}")
    return value


def encode_text(value: str, name: str) -> bytes:
    """Encode a text as UTF-8; a lone surrogate is refused."""
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"the argument {name} contains a lone surrogate at position {error.start}"
        ) from error


def _describe_type(value: object) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
        str: "a string",
    }
    return names.get(type(value), type(value).__name__)
