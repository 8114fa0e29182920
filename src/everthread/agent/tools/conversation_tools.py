"""Tools about the conversation itself: `recall`, `todo`, `memory`, `find_tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from everthread.agent import MAX_RECALL_CHARS
from everthread.agent.memory import (
    CHAR_LIMITS,
    FILE_NAMES,
    MEMORY_KINDS,
    MemoryFiles,
    MemoryKind,
)
from everthread.agent.tool_interface import FreeTool, Permission, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.conversation.offered_tools import (
    FIND_TOOLS,
    FIND_TOOLS_SCHEMA,
    MAX_QUERY_CHARS,
)
from everthread.core.search.search_results import format_page, format_passage
from everthread.errors import InputError
from everthread.store.store import Store
from everthread.thread.lookup.store_lookup import StoreLookup

HITS_PER_PAGE = 7
"""Search hits in one answer."""
RESERVED_HEAD_CHARS = 500
"""Characters reserved for the head of a passage and the note on how to continue."""
RECALL_SCHEMA = args.build_schema(
    "recall",
    "Search this conversation's whole history, also what was summarised away, and every stored tool output. Gives "
    "exact excerpts with their ids. Give `id` instead to read one message or output in full, in parts.",
    {
        "query": {
            "type": "string",
            "description": 'Words; "a phrase"; prefix*; identifiers as typed. Where none has all: the closest.',
        },
        "path": {
            "type": "string",
            "description": "Only calls that name this file or folder, and their results.",
        },
        "id": {
            "type": "string",
            "description": "message:123 or output:0123456789abcdef, from an earlier answer.",
        },
        "offset": {
            "type": "integer",
            "description": "Where to go on: places to skip for a query, characters for an id. Default 0.",
        },
    },
    [],
)


class Recall(FreeTool):
    """The tool `recall`."""

    name = "recall"
    schema = RECALL_SCHEMA

    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        conversation = context.conversation
        lookup = StoreLookup(
            conversation.store,
            conversation.session.tenant,
            conversation.id,
            family=True,
            skip_visible=True,
        )
        return ToolReply(await answer_recall(lookup, arguments))


async def answer_recall(lookup: StoreLookup, arguments: Mapping[str, Any]) -> str:
    """Return the answer to a `recall` call. Raise `InputError` for bad arguments."""
    args.check_names(arguments, RECALL_SCHEMA)
    offset = args.read_int(arguments, "offset", default=0)
    item_id = args.read_text(arguments, "id", default="", allow_empty=True).strip()
    if item_id:
        passage = await lookup.read(
            item_id, offset=offset, limit=MAX_RECALL_CHARS - RESERVED_HEAD_CHARS
        )
        return format_passage(passage, tool=Recall.name)
    query = args.read_text(
        arguments, "query", default="", allow_empty=True, max_chars=1_000
    ).strip()
    if not query:
        raise InputError(
            "give a query to search for, or the id of a message or output to read"
        )
    path = args.read_text(
        arguments, "path", default="", allow_empty=True, max_chars=1_000
    ).strip()
    hits = await lookup.search(
        query, path=path or None, limit=HITS_PER_PAGE, offset=offset
    )
    scope_text = "this conversation" + (f" that name {path!r}" if path else "")
    return format_page(
        hits,
        query,
        tool=Recall.name,
        searched_place=scope_text,
        offset=offset,
        unsearched_texts="other conversations",
    )


TODO_KEY = "todo"
MARK_BY_STATUS = {"pending": " ", "in_progress": ">", "done": "x", "cancelled": "-"}
MAX_TODO_ITEMS = 50
MAX_TODO_CHARS = 300
TODO_SCHEMA = args.build_schema(
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


class Todo(FreeTool):
    """The tool `todo`."""

    name = "todo"
    schema = TODO_SCHEMA

    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        args.check_names(arguments, TODO_SCHEMA)
        store = context.conversation.store
        thread = context.conversation.id
        if arguments.get("items") is not None:
            await store.put_state(thread, TODO_KEY, _read_items(arguments["items"]))
        items = await load_todo(store, thread)
        return ToolReply(format_todo(items) if items else "The list is empty.")


async def load_todo(store: Store, thread: str) -> TodoItems:
    """Return the to-do list of a thread."""
    items = await store.get_state(thread, TODO_KEY)
    return items if isinstance(items, list) else []


def has_open_items(items: Sequence[Mapping[str, str]]) -> bool:
    """Return whether a task is still open."""
    return any(item["status"] in ("pending", "in_progress") for item in items)


def format_todo(items: Sequence[Mapping[str, str]]) -> str:
    return "\n".join(
        f"[{MARK_BY_STATUS[item['status']]}] {item['text']}" for item in items
    )


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


ACTIONS = ("list", "add", "replace", "remove")
MEMORY_SCHEMA = args.build_schema(
    "memory",
    "Keep what must outlast this conversation: short, durable facts and preferences, one an entry. Not for progress of "
    "the current task, and never for credentials. New sessions see the entries in their system prompt.",
    {
        "action": {"type": "string", "enum": list(ACTIONS)},
        "target": {
            "type": "string",
            "enum": list(MEMORY_KINDS),
            "description": "memory: what you learnt of projects and tools. user: who the user is and wants. "
            "Default: memory.",
        },
        "text": {
            "type": "string",
            "description": "For add and replace: the new entry.",
        },
        "old": {
            "type": "string",
            "description": "For replace and remove: words of the entry meant, or its number.",
        },
    },
    ["action"],
)


class MemoryTool(FreeTool):
    """The tool `memory`."""

    name = "memory"
    schema = MEMORY_SCHEMA

    def __init__(self, memory: MemoryFiles) -> None:
        self._memory = memory

    async def call(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext,  # noqa: ARG002
    ) -> ToolReply:
        args.check_names(arguments, MEMORY_SCHEMA)
        action = args.read_text(arguments, "action")
        kind = _read_kind(args.read_text(arguments, "target", default="memory"))
        if action == "list":
            await self._memory.wait_for_changes()
            return ToolReply(self._list_entries(kind))
        if action == "add":
            change = await self._memory.add(kind, args.read_text(arguments, "text"))
        elif action == "replace":
            change = await self._memory.replace(
                kind,
                args.read_text(arguments, "old"),
                args.read_text(arguments, "text"),
            )
        elif action == "remove":
            change = await self._memory.remove(kind, args.read_text(arguments, "old"))
        else:
            raise InputError(f"there is no action {action!r}; use {', '.join(ACTIONS)}")
        note = (
            "\nA credential in it was left out: secrets are never kept."
            if change.was_redacted
            else ""
        )
        verb = "Removed" if action == "remove" else "Kept"
        return ToolReply(f"{verb}: {change.entry}{note}\n{self._describe_space(kind)}")

    def _list_entries(self, kind: MemoryKind) -> str:
        entries = self._memory.entries(kind)
        lines = [f"{number}. {entry}" for number, entry in enumerate(entries, 1)]
        return (
            "\n".join([*lines, self._describe_space(kind)])
            if lines
            else f"{FILE_NAMES[kind]} has no entries."
        )

    def _describe_space(self, kind: MemoryKind) -> str:
        return f"({FILE_NAMES[kind]}: {len(self._memory.text(kind)):,} of {CHAR_LIMITS[kind]:,} characters)"


def _read_kind(name: str) -> MemoryKind:
    if name not in MEMORY_KINDS:
        raise InputError(
            f"there is no target {name!r}; use {' or '.join(MEMORY_KINDS)}"
        )
    return name


class FindTools:
    """The tool `find_tools`. The conversation offers it if tools are left out."""

    name = FIND_TOOLS
    schema = FIND_TOOLS_SCHEMA

    def needs(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> Permission | None:
        """Return the permission to lose the provider's cache, with its price, if tools are requested at once."""
        query, should_show_now = _read_query(arguments)
        matches = (
            context.conversation.toolbox.search(query) if should_show_now else None
        )
        if matches is None or not matches.tools:
            return None
        names = ", ".join(card.name for card in matches.tools)
        return Permission(
            "cache",
            f"show these tools at once: {names}",
            context.conversation.toolbox.describe_price(),
        )

    async def call(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        query, _ = _read_query(arguments)
        is_allowed = context.allowed is not None and context.allowed.kind == "cache"
        return ToolReply(
            (await context.conversation.find_tools(query, now=is_allowed)).text
        )

    async def call_refused(
        self, arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        """Find the tools without approval, so that they are offered again at the next compaction."""
        query, _ = _read_query(arguments)
        return ToolReply(
            (await context.conversation.toolbox.find(query, was_refused=True)).text
        )


def _read_query(arguments: Mapping[str, Any]) -> tuple[str, bool]:
    args.check_names(arguments, FIND_TOOLS_SCHEMA)
    return args.read_text(
        arguments, "query", max_chars=MAX_QUERY_CHARS
    ), args.read_flag(arguments, "now")
