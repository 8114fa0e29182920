"""The tool `recall`: search this conversation's whole history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent import MAX_RECALL_CHARS
from everthread.agent.tool_interface import PreapprovedTool, ToolContext, ToolReply
from everthread.agent.tools import arguments as args
from everthread.core.search.search_results import format_page, format_passage
from everthread.core.tool_schemas import build_schema
from everthread.errors import InputError
from everthread.thread.lookup.store_lookup import StoreLookup

HITS_PER_PAGE = 7
"""Search hits in one answer."""
RESERVED_HEAD_CHARS = 500
"""Characters reserved for the head of a passage and the note on how to continue."""
RECALL_SCHEMA = build_schema(
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


class Recall(PreapprovedTool):
    """The tool `recall`."""

    name = "recall"
    schema = RECALL_SCHEMA

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        conversation = context.conversation
        lookup = StoreLookup(
            conversation.store,
            conversation.session.tenant,
            conversation.id,
            include_related=True,
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
        raise InputError("give a query to search for, or the id of a message or output to read")
    path = args.read_text(arguments, "path", default="", allow_empty=True, max_chars=1_000).strip()
    hits = await lookup.search(query, path=path or None, limit=HITS_PER_PAGE, offset=offset)
    scope_text = "this conversation" + (f" that name {path!r}" if path else "")
    return format_page(
        hits,
        query,
        tool=Recall.name,
        searched_place=scope_text,
        offset=offset,
        unsearched_texts="other conversations",
    )
