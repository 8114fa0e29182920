"""Find again what was said or returned earlier in this thread, however often it was compacted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.agent.base import Permission, ToolContext, ToolReply
from everthread.agent.limits import RECALL_CHARS
from everthread.agent.slash.base import moment
from everthread.agent.tools import arguments as given
from everthread.core.messages import calls_of
from everthread.core.redaction import redact_part
from everthread.errors import InputError, UnknownIdError
from everthread.session.conversation import Conversation
from everthread.stores.base import Hit, SearchQuery, StoredMessage
from everthread.stores.indexing import searchable_text

PAGE = 8
EXCERPT = 600
ROOM = 300
"""Characters left for how to go on."""
MARGIN = 2_000
"""Characters around a part that are looked through for secrets with it: one is known by what stands beside it."""
_MESSAGE = re.compile(r"(?:message:|#)?(\d{1,18})")
_OUTPUT = re.compile(r"output:[0-9a-f]{16}")
SCHEMA = given.schema(
    "recall",
    "Search this conversation's whole history, also what was summarised away, and every stored tool output. Gives "
    "exact excerpts with their ids. Give `id` instead to read one message or output in full, in parts.",
    {
        "query": {"type": "string", "description": 'Words that must occur; "a phrase"; prefix*; identifiers as typed.'},
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
        given.check_names(arguments, SCHEMA)
        offset = given.number(arguments, "offset", default=0)
        wanted = given.text(arguments, "id", default="", empty=True).strip()
        if wanted:
            return ToolReply(await _read(context.conversation, wanted, offset))
        query = given.text(arguments, "query", default="", empty=True, longest=1_000).strip()
        if not query:
            raise InputError("give a query to search for, or the id of a message or output to read")
        return ToolReply(await _search(context.conversation, query, offset))


async def _search(talk: Conversation, query: str, offset: int) -> str:
    """A page of what is found; pages that hold nothing but earlier searches are passed over."""
    blocks: list[str] = []
    at, more = offset, True
    while more and not blocks:
        asked = SearchQuery(query, tenant=talk.session.tenant, thread=talk.id, limit=PAGE + 1, offset=at)
        hits = await talk.store.search(asked)
        blocks, seen = await _page(talk, hits[:PAGE])
        at, more = at + seen, seen < len(hits)
    if more:
        blocks.append(f"[More was found; go on with offset {at}]")
    return "\n\n".join(blocks) or _nothing(query, offset)


async def _page(talk: Conversation, hits: Sequence[Hit]) -> tuple[list[str], int]:
    """As many excerpts as have room, and how many places that takes."""
    blocks: list[str] = []
    used = 0
    for place, hit in enumerate(hits):
        block = await _found(talk, hit) or ""
        used += len(block) + 2
        if used > RECALL_CHARS - ROOM:
            return blocks, place
        blocks += [block] if block else []
    return blocks, len(hits)


def _nothing(query: str, offset: int) -> str:
    if offset:
        return f"Nothing more was found for {query!r} beyond offset {offset}. That was all there is."
    return (
        f"Nothing was found for {query!r}. All messages and stored outputs of this conversation were searched: it was "
        "never said here in these words; searching for the same again finds nothing either."
    )


async def _found(talk: Conversation, hit: Hit) -> str | None:
    """One place with what stands around it; None for the words of a search, which say nothing."""
    if hit.tool == Recall.name:
        return None
    if hit.message is None:
        cited = hit.output or ""
        text = await talk.store.output(cited, tenant=talk.session.tenant)
        return f"[{cited}] output of {hit.tool or 'a tool'}, {moment(hit.created)}:\n{_around(text, hit)}"
    stored = await talk.store.message(hit.message, tenant=talk.session.tenant)
    text = searchable_text(stored.body)
    asked = [call.arguments for call in calls_of(stored.body) if call.name == Recall.name]
    shown = _around(text, hit)
    if any(argument and argument in shown for argument in asked):
        return None
    who = f"{hit.role} ({hit.tool})" if hit.tool else hit.role
    return f"[message:{hit.message}] {who}, {moment(hit.created)}:\n{shown}"


def _around(text: str, hit: Hit) -> str:
    """The text as it stands around a snippet; the snippet where it cannot be found again (a secret was in it)."""
    words = hit.snippet.strip("…").split()
    found = re.search(r"\s+".join(map(re.escape, words)), text) if words else None
    if found is None:
        return hit.snippet
    spare = max(0, EXCERPT - (found.end() - found.start())) // 2
    start, end = max(0, found.start() - spare), min(len(text), found.end() + spare)
    return f"{'…' if start else ''}{redact_part(text, start, end, margin=MARGIN)}{'…' if end < len(text) else ''}"


async def _read(talk: Conversation, wanted: str, offset: int) -> str:
    if _OUTPUT.fullmatch(wanted):
        text = await talk.store.output(wanted, tenant=talk.session.tenant)
        return _part(wanted, text, offset)
    number = _MESSAGE.fullmatch(wanted)
    if number is None:
        raise InputError(f"{wanted[:80]!r} is no id; use message:123 or output:0123456789abcdef as an answer gave them")
    stored = await _message(talk, int(number[1]))
    name = f"message:{stored.id}"
    part = _part(name, searchable_text(stored.body), offset)
    return f"[{name}] {stored.body['role']}, {moment(stored.created)}:\n{part}"


async def _message(talk: Conversation, number: int) -> StoredMessage:
    """A message of this thread; those of others are none of its business."""
    stored = await talk.store.message(number, tenant=talk.session.tenant)
    if (await talk.store.session(stored.session)).thread != talk.id:
        shared = {item.id for item in await talk.store.history(talk.session.id)}
        if number not in shared:
            raise UnknownIdError(f"this conversation has no message {number}")
    return stored


def _part(name: str, text: str, offset: int) -> str:
    end = min(len(text), offset + RECALL_CHARS - 500)
    if offset >= len(text):
        return f"[{name} has {len(text):,} characters; there is nothing at offset {offset:,}]"
    rest = "" if end == len(text) else f"\n[{len(text) - end:,} more characters; go on with offset {end}]"
    return f"{redact_part(text, offset, end, margin=MARGIN)}{rest}"
