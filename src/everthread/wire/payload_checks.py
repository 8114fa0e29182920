"""Check the shapes in a payload: return the value, or raise `WireError` naming its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.errors import WireError


def require_object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WireError(f"{path} must be an object, not {_describe_type(value)}")
    return value


def require_list(value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise WireError(f"{path} must be a list, not {_describe_type(value)}")
    return value


def list_or_empty(value: Any, path: str) -> Sequence[Any]:
    """Return a list; an absent one is empty. Raise `WireError` for anything else."""
    return () if value is None else require_list(value, path)


def require_objects(value: Any, path: str) -> list[Mapping[str, Any]]:
    """Return a list of objects. Raise `WireError` naming the item that is not an object."""
    return [
        require_object(item, f"{path}[{index}]")
        for index, item in enumerate(require_list(value, path))
    ]


def require_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{path} must be a string, not {_describe_type(value)}")
    return value


def _describe_type(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
