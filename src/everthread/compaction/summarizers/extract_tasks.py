"""Task lists that agents keep with a tool, told by their shape: a list of objects, each with a text and a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FINISHED = frozenset({"completed", "complete", "done", "finished", "closed", "cancelled", "true"})
STARTED = frozenset({"in_progress", "in-progress", "inprogress", "doing", "active", "started", "current"})
_TEXTS = ("content", "step", "text", "title", "task", "description", "name")
_STATES = ("status", "state", "done", "completed", "checked")


def task_list(arguments: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The items of a task list among a call's arguments: (text, state in small letters); none: no such list."""
    for value in arguments.values():
        items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
        found = [pair for item in items if (pair := _item(item))]
        if found and len(found) == len(items):
            return found
    return []


def _item(item: dict[str, Any]) -> tuple[str, str] | None:
    text = next((item[key] for key in _TEXTS if isinstance(item.get(key), str)), None)
    state = next((item[key] for key in _STATES if isinstance(item.get(key), str | bool)), None)
    return (text, str(state).lower()) if text and state is not None else None
