"""Find again what was said or returned earlier in this thread, however often it was compacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.limits import RECALL_CHARS
from everthread.agent.tools import arguments as given
from everthread.conversation.lookup import StoreLookup
from everthread.core.search.lookup import found_text, passage_text
from everthread.errors import InputError

PAGE = 7
"""Places that have room in one answer."""
ROOM = 500
"""Characters left for whose it is and how to go on."""
SCHEMA = given.schema(
    "recall",
    "Search this conversation's whole history, also what was summarised away, and every stored tool output. Gives "
    "exact excerpts with their ids. Give `id` instead to read one message or output in full, in parts.",
    {
        "query": {
            "type": "string",
            "description": 'Words; "a phrase"; prefix*; identifiers as typed. Where none has all: the closest.',
        },
        "path": {"type": "string", "description": "Only calls that name this file or folder, and their results."},
        "id": {"type": "string", "description": "message:123 or output:0123456789abcdef, from an earlier answer."},
        "offset": {
            "type": "integer",
            "description": "Where to go on: places to skip for a query, characters for an id. Default 0.",
        },
    },
    [],
)


class Recall:
    """The tool `recall`."""

    name = "recall"
    schema = SCHEMA

    def needs(self, arguments: Mapping[str, Any], context: ToolContext) -> Permission | None:  # noqa: ARG002 - as every tool
        """Nothing: it reads what this conversation said."""
        return None

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        talk = context.conversation
        return ToolReply(await recall_text(StoreLookup(talk.store, talk.session.tenant, talk.id), arguments))


async def recall_text(lookup: StoreLookup, arguments: Mapping[str, Any]) -> str:
    """What a call is answered with. `InputError` where it cannot be."""
    given.check_names(arguments, SCHEMA)
    offset = given.number(arguments, "offset", default=0)
    wanted = given.text(arguments, "id", default="", empty=True).strip()
    if wanted:
        passage = await lookup.read(wanted, offset=offset, limit=RECALL_CHARS - ROOM)
        return passage_text(passage, tool=Recall.name)
    query = given.text(arguments, "query", default="", empty=True, longest=1_000).strip()
    if not query:
        raise InputError("give a query to search for, or the id of a message or output to read")
    path = given.text(arguments, "path", default="", empty=True, longest=1_000).strip()
    found = await lookup.search(query, path=path or None, limit=PAGE, offset=offset)
    where = "this conversation" + (f" that name {path!r}" if path else "")
    return found_text(found, query, tool=Recall.name, where=where, offset=offset)
