"""How the graph grows: leaves over what leaves the view, and nodes over nodes that stand side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from everthread.compaction.engine import Archive
from everthread.compaction.lossless.parts import Count, Part, named
from everthread.compaction.lossless.writing import LEAST, Order, Source, Words, Writer
from everthread.core.nodes import Node

T = TypeVar("T")

PARALLEL = 4
"""Nodes that are written at the same time."""


@dataclass(slots=True)
class Growth:
    """One compaction's work on the graph. `made`: the nodes that are new."""

    writer: Writer
    count: Count
    order: Order
    """How nodes are written; its room is that of one node."""
    fan_in: int
    archive: Archive | None = None
    made: dict[str, Node] = field(default_factory=dict)
    words: list[Words] = field(default_factory=list)

    async def leaves(self, sources: Sequence[Source], turns: Sequence[tuple[int, int]]) -> list[Part]:
        """A leaf over each run of messages."""
        written = await _together(self._leaf(source, *span) for source, span in zip(sources, turns, strict=True))
        return [self.added(node, len(node.sources), words) for node, words in written]

    async def _leaf(self, source: Source, first_turn: int, last_turn: int) -> tuple[Node, Words]:
        order = replace(self.order, room=max(min(self.order.room, source.tokens // 2), LEAST))
        words = await self.writer.leaf(source, order)
        since, until = await self._times(min(source.ids), max(source.ids))
        node = Node(
            id="", thread="", level=0, body=words.body, tokens=0, covered_tokens=source.tokens, author=words.author,
            first_message=min(source.ids), last_message=max(source.ids), first_turn=first_turn, last_turn=last_turn,
            since=since, until=until, sources=tuple(map(str, source.ids)), degraded=words.degraded,
        )  # fmt: skip
        return node, words

    async def condense(self, parts: list[Part], room: int) -> list[Part]:
        """Fewer parts: each run of `fan_in` at one level becomes one, and shorter runs, oldest first, for want of room.

        A run that would not get smaller stays.
        """
        kept: set[str] = set()
        while (run := self._run(parts, kept)) is not None:
            parts = await self._merged(parts, run, kept)
        while len(parts) > 1 and self.tokens(parts) > room:
            parts = await self._merged(parts, _pressed(parts, self.fan_in), None)
        if parts and self.tokens(parts) > room:
            parts = [await self._over(parts, max(room - self._heading(parts[0]), LEAST))]
        return parts

    def _run(self, parts: Sequence[Part], kept: set[str]) -> range | None:
        """The oldest parts that stand side by side at one level, enough of them to be condensed."""
        for start in range(len(parts) - self.fan_in + 1):
            run = parts[start : start + self.fan_in]
            if len({part.node.level for part in run}) == 1 and run[0].node.id not in kept:
                return range(start, start + self.fan_in)
        return None

    async def _merged(self, parts: list[Part], run: range, kept: set[str] | None) -> list[Part]:
        covered = parts[run.start : run.stop]
        room = min(self.order.room, self.tokens(covered) * 2 // 3)
        new = await self._over(covered, max(room, LEAST))
        if kept is not None and self.count(new.text) >= self.tokens(covered):
            kept.add(covered[0].node.id)
            del self.made[new.node.id]
            return parts
        return [*parts[: run.start], new, *parts[run.stop :]]

    async def _over(self, covered: Sequence[Part], room: int) -> Part:
        """A node over nodes. Turns and times are those of all it covers."""
        words = await self.writer.condensed(covered, replace(self.order, room=room))
        nodes = [part.node for part in covered]
        node = Node(
            id="", thread="", level=max(node.level for node in nodes) + 1, body=words.body, tokens=0,
            covered_tokens=sum(node.covered_tokens for node in nodes), author=words.author,
            first_message=min(node.first_message for node in nodes),
            last_message=max(node.last_message for node in nodes),
            first_turn=min(node.first_turn for node in nodes), last_turn=max(node.last_turn for node in nodes),
            since=min(node.since for node in nodes), until=max(node.until for node in nodes),
            sources=tuple(node.id for node in nodes), degraded=words.degraded,
        )  # fmt: skip
        return self.added(node, sum(part.messages for part in covered), words)

    def added(self, node: Node, messages: int, words: Words | None = None) -> Part:
        """A new node in view, under its id."""
        part = Part(named(node), messages)
        part = replace(part, node=replace(part.node, tokens=self.count(part.text)))
        self.made[part.node.id] = part.node
        if words is not None:
            self.words.append(words)
        return part

    def tokens(self, parts: Iterable[Part]) -> int:
        return sum(self.count(part.text) + 1 for part in parts)

    def _heading(self, part: Part) -> int:
        return self.count(part.text.partition("\n")[0]) + 2

    async def _times(self, *ids: int) -> tuple[float, float]:
        found = await self.archive.originals(ids) if self.archive else []
        return (found[0].created, found[-1].created) if found else (0.0, 0.0)


def _pressed(parts: Sequence[Part], most: int) -> range:
    """The oldest parts of one level side by side; where no two are, the two oldest. So no part is rewritten often."""
    for start in range(len(parts) - 1):
        level, end = parts[start].node.level, start + 1
        while end < len(parts) and end - start < most and parts[end].node.level == level:
            end += 1
        if end - start > 1:
            return range(start, end)
    return range(2)


async def _together(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results in order, a few at a time. When one fails the others are waited for, so that none is left behind."""
    slots = asyncio.Semaphore(PARALLEL)

    async def one(each: Awaitable[T]) -> T:
        async with slots:
            return await each

    tasks = [asyncio.ensure_future(one(each)) for each in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
