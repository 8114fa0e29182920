"""The tool `todo`: the list of tasks of a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.agent.tool_interface import PreapprovedTool, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.core.tool_schemas import build_schema
from everthread.errors import InputError
from everthread.store.store import Store

TODO_KEY = "todo"
MARK_BY_STATUS = {"pending": " ", "in_progress": ">", "done": "x", "cancelled": "-"}
MAX_TODO_ITEMS = 50
MAX_TODO_CHARS = 300
TODO_SCHEMA = build_schema(
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
                    "status": {"type": "string", "enum": list(MARK_BY_STATUS)},
                },
                "required": ["text"],
            },
        }
    },
    [],
)
TodoItems = list[dict[str, str]]


class Todo(PreapprovedTool):
    """The tool `todo`."""

    name = "todo"
    schema = TODO_SCHEMA

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        args.check_names(arguments, TODO_SCHEMA)
        store = context.conversation.store
        thread = context.conversation.id
        if arguments.get("items") is not None:
            await store.state.put_state(thread, TODO_KEY, _read_items(arguments["items"]))
        items = await load_todo(store, thread)
        return ToolReply(format_todo(items) if items else "The list is empty.")


async def load_todo(store: Store, thread: str) -> TodoItems:
    """Return the to-do list of a thread."""
    items = await store.state.get_state(thread, TODO_KEY)
    return items if isinstance(items, list) else []


def has_open_items(items: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a task is still open."""
    return any(item["status"] in ("pending", "in_progress") for item in items)


def format_todo(items: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(f"[{MARK_BY_STATUS[item['status']]}] {item['text']}" for item in items)


def _read_items(value: Any) -> TodoItems:
    if not isinstance(value, list) or len(value) > MAX_TODO_ITEMS:
        raise InputError(f"items must be a list of at most {MAX_TODO_ITEMS} objects")
    items: TodoItems = []
    for number, item in enumerate(value, 1):
        if not isinstance(item, dict):
            raise InputError(f"item {number} must be an object with text and status")
        text = " ".join(args.read_text(item, "text", max_chars=MAX_TODO_CHARS).split())
        status = args.read_text(item, "status", default="pending")
        if status not in MARK_BY_STATUS:
            raise InputError(
                f"item {number} has the status {status!r}; use {', '.join(MARK_BY_STATUS)}"
            )
        items.append({"text": text, "status": status})
    return items
