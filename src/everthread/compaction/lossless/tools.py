"""What the model can call: search everything that was ever said, ask what a node covers, read the originals.

An answer is bounded, and begins with a line that names what it shows: that line stays when the answer grows old.
An id that is not there, a search without a find and the end of a text are told for good, so that nobody tries again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from everthread.compaction.engine import Graph, Services
from everthread.compaction.lossless.arguments import checked
from everthread.compaction.lossless.schemas import DESCRIBE, EXPAND, GREP, NAMES
from everthread.compaction.lossless.shown import node_text
from everthread.core.found import about_text, found_text, passage_text
from everthread.core.lookup import Lookup
from everthread.core.nodes import Node
from everthread.errors import InputError, UnknownIdError

MOST = 6_000
"""Characters of an answer."""
ROOM = 400
"""Of these, for the first line and how to go on."""
PLACE = 700
"""One place found, with whose words it is."""
NODE_ID = re.compile(r"n[0-9a-f]{12}")
FINAL = "There is nothing more to find under it; do not try it again."


class Tools:
    """`lcm_grep`, `lcm_describe`, `lcm_expand` over what a store keeps. An answer has at most `most` characters."""

    def __init__(self, lookup: Lookup, graph: Graph, most: int = MOST) -> None:
        self._lookup = lookup
        self._graph = graph
        self._most = max(min(MOST, most), 2 * PLACE)

    @classmethod
    def of(cls, services: Services) -> Tools | None:
        """Those of an engine; None where no store is behind the messages."""
        if services.lookup is None or services.archive is None:
            return None
        return cls(services.lookup, services.archive, services.budget.result_chars)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The answer; `InputError` for arguments that cannot be meant."""
        if name not in NAMES:
            raise InputError(f"there is no tool {name[:60]!r} here")
        given = checked(name, arguments)
        try:
            if name == GREP:
                return await self._grep(given)
            return await (self._expand(given) if name == EXPAND else self._describe(given))
        except UnknownIdError as error:
            return f"{name} {given.get('id', '')[:80]}: {error}. {FINAL}"

    async def _grep(self, given: Mapping[str, Any]) -> str:
        everywhere = given["scope"] == "all"
        found = await self._lookup.search(
            given["pattern"], mode=given["mode"], scope=given["scope"], role=given["role"], tool=given["tool"],
            limit=min(given["limit"], max(1, (self._most - ROOM) // PLACE)), offset=given["offset"],
        )  # fmt: skip
        where = "all conversations" if everywhere else "this conversation"
        where += " with this role and tool" if given["role"] or given["tool"] else ""
        return found_text(found, given["pattern"], tool=GREP, where=where, offset=given["offset"], threads=everywhere)

    async def _describe(self, given: Mapping[str, Any]) -> str:
        wanted = given["id"]
        if NODE_ID.fullmatch(wanted):
            return self._bounded(f"{DESCRIBE} {wanted}: {node_text(await _node(self._graph, wanted))}")
        return about_text(await self._lookup.read(wanted, limit=200), tool=DESCRIBE, reader=EXPAND)

    async def _expand(self, given: Mapping[str, Any]) -> str:
        limit = min(given["limit"], self._most - ROOM)
        return passage_text(await self._graph.expand(given["id"], offset=given["offset"], limit=limit), tool=EXPAND)

    def _bounded(self, text: str) -> str:
        room = self._most - ROOM
        if len(text) <= room:
            return text
        return f"{text[:room]}\n[{len(text) - room:,} more characters of its words; the originals: {EXPAND}]"


async def _node(graph: Graph, wanted: str) -> Node:
    node = next((node for node in await graph.nodes() if node.id == wanted), None)
    if node is None:
        raise UnknownIdError(f"this conversation has no node {wanted}")
    return node
