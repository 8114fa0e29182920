"""A list of what is to be done, kept with the thread: no compaction and no restart takes it away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as given
from everthread.errors import InputError
from everthread.store.store import Store

KEY = "todo"
STATES = {"pending": " ", "in_progress": ">", "done": "x", "cancelled": "-"}
MOST_ITEMS, MOST_CHARS = 50, 300
SCHEMA = given.schema(
    "todo",
    "Plan work of three or more steps and keep track of it. Give `items` to write the whole list anew; without it the "
    "list is read. One item is in_progress at a time; mark it done as soon as it is.",
    {
        "items": {
            "type": "array",
            "description": "The whole list, in order.",
            "items": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "status": {"type": "string", "enum": list(STATES)},
                },
                "required": ["text"],
            },
        }
    },
    [],
)

Items = list[dict[str, str]]


class Todo:
    """The tool `todo`."""

    name = "todo"
    schema = SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:  # noqa: ARG002 - as every tool
        """Nothing: it changes a list of its own."""
        return None

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        given.check_names(arguments, SCHEMA)
        store, thread = context.conversation.store, context.conversation.id
        if arguments.get("items") is not None:
            await store.put_state(thread, KEY, _items(arguments["items"]))
        items = await load(store, thread)
        return ToolReply(shown(items) if items else "The list is empty.")


async def load(store: Store, thread: str) -> Items:
    """The list of a thread."""
    kept = await store.get_state(thread, KEY)
    return kept if isinstance(kept, list) else []


def is_open(items: Sequence[Mapping[str, str]]) -> bool:
    """Whether something is still to be done."""
    return any(item["status"] in ("pending", "in_progress") for item in items)


def shown(items: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(f"[{STATES[item['status']]}] {item['text']}" for item in items)


def _items(value: Any) -> Items:
    if not isinstance(value, list) or len(value) > MOST_ITEMS:
        raise InputError(f"items must be a list of at most {MOST_ITEMS} objects")
    items: Items = []
    for place, item in enumerate(value, 1):
        if not isinstance(item, dict):
            raise InputError(f"item {place} must be an object with text and status")
        text = " ".join(given.text(item, "text", longest=MOST_CHARS).split())
        status = given.text(item, "status", default="pending")
        if status not in STATES:
            raise InputError(f"item {place} has the status {status!r}; use {', '.join(STATES)}")
        items.append({"text": text, "status": status})
    return items
