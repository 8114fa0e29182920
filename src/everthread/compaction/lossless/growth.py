"""Grow the graph in one compaction: leaves over messages that leave the view, and nodes over neighbouring nodes.

The steps depend on the texts written before. So they are a generator that asks for texts, and it is run again from its
beginning with all texts so far: a generator cannot be pickled, its texts can.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from everthread.compaction.draft_requests import empty_draft
from everthread.compaction.lossless.graph import VisibleNode, name_node, part_tokens
from everthread.compaction.lossless.leaf_sources import LeafSource, restore_source
from everthread.compaction.lossless.node_texts import (
    MIN_NODE_TOKENS,
    JoinTask,
    LeafTask,
    NodeOrder,
    NodeTask,
    NodeText,
    NodeWriter,
)
from everthread.compaction.planning_engine import StoredGraph
from everthread.compaction.summary.user_quotes import CountTokens
from everthread.core.types import Node

MAX_REWRITTEN = 4
"""Makeshift nodes that are rewritten in one compaction."""

Steps = Generator[Sequence[NodeTask], Sequence[NodeText], list[VisibleNode]]
PartSteps = Generator[Sequence[NodeTask], Sequence[NodeText], VisibleNode | None]


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """The input of the growth."""

    parts: tuple[VisibleNode, ...]
    """The nodes in view, oldest first."""
    sources: tuple[LeafSource, ...]
    """The messages of the new leaves."""
    order: NodeOrder
    """Options for writing nodes; its room is that of one node."""
    room: int
    """Tokens for all nodes in view."""
    fan_in: int
    has_model: bool
    graph: StoredGraph


@dataclass(frozen=True, slots=True)
class GrownGraph:
    """The nodes in view after a compaction, the new ones among all nodes, and their texts."""

    parts: list[VisibleNode]
    new_nodes: tuple[Node, ...]
    texts: tuple[NodeText, ...]


@dataclass(slots=True)
class Growth:
    """One run of the steps."""

    plan: GrowthPlan
    count: CountTokens
    new_nodes: dict[str, Node] = field(default_factory=dict)
    texts: list[NodeText] = field(default_factory=list)

    def run(self, written: Sequence[NodeText]) -> Sequence[NodeTask] | GrownGraph:
        """Run with the texts so far. Return the texts to write next, or the grown graph."""
        writer = NodeWriter(self.count)
        texts = iter(written)
        steps = self._steps()
        try:
            tasks = next(steps)
            while True:
                if self.plan.has_model:
                    ready_texts = list(islice(texts, len(tasks)))
                else:
                    ready_texts = [writer.write(task, empty_draft()) for task in tasks]
                if len(ready_texts) < len(tasks):
                    return tasks
                tasks = steps.send(ready_texts)
        except StopIteration as end:
            nodes = tuple(self.new_nodes.values())
            return GrownGraph(end.value, nodes, tuple(self.texts))

    def _steps(self) -> Steps:
        earlier_parts = [self._take_over(part) for part in self.plan.parts]
        earlier_parts = yield from self._rewrite(earlier_parts)
        leaves = yield from self._add_leaves()
        return (yield from self._condense([*earlier_parts, *leaves]))

    def _take_over(self, part: VisibleNode) -> VisibleNode:
        """Make another engine's summary a leaf over the messages that the store says it covers."""
        node = part.node
        if node.id:
            return part
        ids = self.plan.graph.covered
        node = replace(
            node,
            covered_tokens=self.count(node.body),
            sources=tuple(map(str, ids)),
        )
        if ids:
            node = replace(node, first_message=ids[0], last_message=ids[-1])
        return self._add(node, len(ids) or part.messages)

    def _rewrite(self, parts: list[VisibleNode]) -> Steps:
        """Let a model rewrite makeshift nodes; stop at the first that it cannot write."""
        if not (self.plan.graph.is_stored and self.plan.has_model):
            return parts
        for index in find_degraded_nodes(parts):
            new_part = yield from self._rewrite_part(parts[index])
            if new_part is None:
                break
            parts = [*parts[:index], new_part, *parts[index + 1 :]]
        return parts

    def _rewrite_part(self, part: VisibleNode) -> PartSteps:
        graph = self.plan.graph
        node = part.node
        order = self._order(node.covered_tokens // 2)
        stored_sources = graph.nodes if node.level else graph.originals
        ids = node.sources if node.level else tuple(map(int, node.sources))
        if any(source not in stored_sources for source in ids):
            return None
        task: NodeTask
        if node.level:
            children = [VisibleNode(graph.nodes[source], 0) for source in node.sources]
            task = JoinTask(children, order)
        else:
            task = LeafTask(restore_source(node, graph), order)
        [text] = yield [task]
        if text.is_makeshift:
            return None
        new_node = replace(node, body=text.body, author=text.author, degraded=False)
        return self._add(new_node, part.messages, text)

    def _add_leaves(self) -> Steps:
        """Add a leaf over each run of messages."""
        sources = self.plan.sources
        texts = yield [
            LeafTask(source, self._order(source.tokens // 2)) for source in sources
        ]
        return [
            self._add(self._leaf(source, text), len(source.ids), text)
            for source, text in zip(sources, texts, strict=True)
        ]

    def _leaf(self, source: LeafSource, text: NodeText) -> Node:
        first_id = min(source.ids)
        last_id = max(source.ids)
        originals = self.plan.graph.originals
        times = [
            originals[message_id].created
            for message_id in (first_id, last_id)
            if message_id in originals
        ]
        return Node(
            id="",
            thread="",
            level=0,
            body=text.body,
            tokens=0,
            covered_tokens=source.tokens,
            author=text.author,
            first_message=first_id,
            last_message=last_id,
            first_turn=max(min(source.turns), 1),
            last_turn=max(*source.turns, 1),
            since=times[0] if times else 0.0,
            until=times[-1] if times else 0.0,
            sources=tuple(map(str, source.ids)),
            degraded=text.is_makeshift,
        )

    def _condense(self, parts: list[VisibleNode]) -> Steps:
        """Return fewer parts: each run of `fan_in` at one level becomes one node, shorter runs only for lack of room.

        A run that would not get smaller stays.
        """
        room = self.plan.room
        stuck_ids: set[str] = set()
        while (run := self._find_run(parts, stuck_ids)) is not None:
            parts = yield from self._merge(parts, run, stuck_ids)
        while len(parts) > 1 and part_tokens(parts, self.count) > room:
            run = _oldest_run(parts, self.plan.fan_in)
            parts = yield from self._merge(parts, run, None)
        if parts and part_tokens(parts, self.count) > room:
            heading = self.count(parts[0].text.partition("\n")[0]) + 2
            parts = yield from self._join(parts, max(room - heading, MIN_NODE_TOKENS))
        return parts

    def _find_run(
        self, parts: Sequence[VisibleNode], stuck_ids: set[str]
    ) -> range | None:
        """Return the oldest neighbours at one level, if enough of them can be condensed."""
        fan_in = self.plan.fan_in
        for start in range(len(parts) - fan_in + 1):
            run = parts[start : start + fan_in]
            levels = {part.node.level for part in run}
            if len(levels) == 1 and run[0].node.id not in stuck_ids:
                return range(start, start + fan_in)
        return None

    def _merge(
        self, parts: list[VisibleNode], run: range, stuck_ids: set[str] | None
    ) -> Steps:
        covered_parts = parts[run.start : run.stop]
        size = part_tokens(covered_parts, self.count)
        room = min(self.plan.order.room, size * 2 // 3)
        [new_part] = yield from self._join(covered_parts, max(room, MIN_NODE_TOKENS))
        if stuck_ids is not None and self.count(new_part.text) >= size:
            stuck_ids.add(covered_parts[0].node.id)
            del self.new_nodes[new_part.node.id]
            return parts
        return [*parts[: run.start], new_part, *parts[run.stop :]]

    def _join(self, covered_parts: Sequence[VisibleNode], room: int) -> Steps:
        """Return one node over nodes, with the turns and times of all of them."""
        [text] = yield [JoinTask(covered_parts, replace(self.plan.order, room=room))]
        nodes = [part.node for part in covered_parts]
        node = Node(
            id="",
            thread="",
            level=max(node.level for node in nodes) + 1,
            body=text.body,
            tokens=0,
            covered_tokens=sum(node.covered_tokens for node in nodes),
            author=text.author,
            first_message=min(node.first_message for node in nodes),
            last_message=max(node.last_message for node in nodes),
            first_turn=min(node.first_turn for node in nodes),
            last_turn=max(node.last_turn for node in nodes),
            since=min(node.since for node in nodes),
            until=max(node.until for node in nodes),
            sources=tuple(node.id for node in nodes),
            degraded=text.is_makeshift,
        )
        return [self._add(node, sum(part.messages for part in covered_parts), text)]

    def _order(self, max_room: int) -> NodeOrder:
        order = self.plan.order
        return replace(order, room=max(min(order.room, max_room), MIN_NODE_TOKENS))

    def _add(
        self, node: Node, messages: int, text: NodeText | None = None
    ) -> VisibleNode:
        """Add a new node to the view, under its id."""
        part = VisibleNode(name_node(node), messages)
        part = replace(part, node=replace(part.node, tokens=self.count(part.text)))
        self.new_nodes[part.node.id] = part.node
        if text is not None:
            self.texts.append(text)
        return part


def find_degraded_nodes(parts: Sequence[VisibleNode]) -> list[int]:
    """Return the indices of the makeshift nodes that one compaction rewrites."""
    indices = [
        index
        for index, part in enumerate(parts)
        if part.node.degraded and part.node.sources
    ]
    return indices[:MAX_REWRITTEN]


def _oldest_run(parts: Sequence[VisibleNode], max_length: int) -> range:
    """Return the oldest neighbours at one level, else the two oldest parts, so that no part is rewritten often."""
    for start in range(len(parts) - 1):
        level = parts[start].node.level
        end = start + 1
        while (
            end < len(parts)
            and end - start < max_length
            and parts[end].node.level == level
        ):
            end += 1
        if end - start > 1:
            return range(start, end)
    return range(2)
