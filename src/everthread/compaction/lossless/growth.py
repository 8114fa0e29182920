"""Grow the graph in one compaction: add leaves over messages that leave the context, and nodes over adjacent nodes.

Each step depends on the texts written before, so the steps are a generator that yields requests for texts. A generator
cannot be pickled. Another process therefore replays it from the start with the texts written so far.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from everthread.compaction.draft_requests import empty_draft
from everthread.compaction.engine_input import StoredGraph
from everthread.compaction.lossless.graph import (
    VisibleNode,
    count_node_tokens,
    with_node_id,
)
from everthread.compaction.lossless.leaf_messages import LeafMessages, restore_leaf_messages
from everthread.compaction.lossless.node_texts import (
    MIN_NODE_TOKENS,
    JoinTask,
    LeafTask,
    NodeOptions,
    NodeTask,
    NodeText,
    NodeWriter,
)
from everthread.compaction.summary.sentences import CountTokens
from everthread.core.types import Node

MAX_REWRITTEN_NODES = 4
"""Maximum makeshift nodes to rewrite in one compaction."""

GrowthGenerator = Generator[Sequence[NodeTask], Sequence[NodeText], list[VisibleNode]]
NodeGenerator = Generator[Sequence[NodeTask], Sequence[NodeText], VisibleNode | None]


@dataclass(frozen=True, slots=True)
class GrowthInput:
    """The input of the growth."""

    visible_nodes: tuple[VisibleNode, ...]
    """The nodes in view, oldest first."""
    leaves: tuple[LeafMessages, ...]
    """The messages of the new leaves."""
    options: NodeOptions
    """Options for writing one node."""
    max_tokens: int
    """Tokens for all nodes in view."""
    fan_in: int
    """The number of adjacent nodes that become one node above them."""
    has_model: bool
    graph: StoredGraph


@dataclass(frozen=True, slots=True)
class GrownGraph:
    """The nodes in view after a compaction, all new nodes, and the texts that were written."""

    visible_nodes: list[VisibleNode]
    new_nodes: tuple[Node, ...]
    texts: tuple[NodeText, ...]


@dataclass(slots=True)
class Growth:
    """One run of the growth steps."""

    growth_input: GrowthInput
    count_tokens: CountTokens
    new_nodes: dict[str, Node] = field(default_factory=dict)
    texts: list[NodeText] = field(default_factory=list)

    def run(self, written_texts: Sequence[NodeText]) -> Sequence[NodeTask] | GrownGraph:
        """Run with the texts so far. Return the texts to write next, or the grown graph."""
        writer = NodeWriter(self.count_tokens)
        texts = iter(written_texts)
        steps = self._steps()
        try:
            tasks = next(steps)
            while True:
                if self.growth_input.has_model:
                    ready_texts = list(islice(texts, len(tasks)))
                else:
                    ready_texts = [writer.write_text(task, empty_draft()) for task in tasks]
                if len(ready_texts) < len(tasks):
                    return tasks
                tasks = steps.send(ready_texts)
        except StopIteration as end:
            nodes = tuple(self.new_nodes.values())
            return GrownGraph(end.value, nodes, tuple(self.texts))

    def _steps(self) -> GrowthGenerator:
        """Adopt a foreign summary, rewrite makeshift nodes, add leaves, then condense the view."""
        earlier_nodes = [
            self._adopt_foreign_summary(part) for part in self.growth_input.visible_nodes
        ]
        earlier_nodes = yield from self._rewrite_makeshift_nodes(earlier_nodes)
        leaves = yield from self._add_leaves()
        return (yield from self._condense([*earlier_nodes, *leaves]))

    def _adopt_foreign_summary(self, visible_node: VisibleNode) -> VisibleNode:
        """Make a leaf of another engine's summary, over the messages that the store says are covered."""
        node = visible_node.node
        if node.id:
            return visible_node
        ids = self.growth_input.graph.covered_ids
        node = replace(
            node,
            covered_tokens=self.count_tokens(node.body),
            sources=tuple(map(str, ids)),
        )
        if ids:
            node = replace(node, first_message=ids[0], last_message=ids[-1])
        return self._add_node(node, len(ids) or visible_node.message_count)

    def _rewrite_makeshift_nodes(self, visible_nodes: list[VisibleNode]) -> GrowthGenerator:
        """Let a model rewrite makeshift nodes; stop at the first that it cannot write."""
        if not (self.growth_input.graph.is_stored and self.growth_input.has_model):
            return visible_nodes
        for index in find_makeshift_nodes(visible_nodes):
            new_node = yield from self._rewrite_node(visible_nodes[index])
            if new_node is None:
                break
            visible_nodes = [
                *visible_nodes[:index],
                new_node,
                *visible_nodes[index + 1 :],
            ]
        return visible_nodes

    def _rewrite_node(self, visible_node: VisibleNode) -> NodeGenerator:
        """Return a makeshift node with a model's text, or None if its sources are missing or no model can write."""
        graph = self.growth_input.graph
        node = visible_node.node
        options = self._limit_options(node.covered_tokens // 2)
        stored_sources = graph.nodes if node.level else graph.originals
        ids = node.sources if node.level else tuple(map(int, node.sources))
        if any(source not in stored_sources for source in ids):
            return None
        task: NodeTask
        if node.level:
            children = [VisibleNode(graph.nodes[source], 0) for source in node.sources]
            task = JoinTask(children, options)
        else:
            task = LeafTask(restore_leaf_messages(node, graph), options)
        [text] = yield [task]
        if text.is_makeshift:
            return None
        new_node = replace(node, body=text.body, author=text.author, degraded=False)
        return self._add_node(new_node, visible_node.message_count, text)

    def _add_leaves(self) -> GrowthGenerator:
        """Add a leaf over each run of messages."""
        leaves = self.growth_input.leaves
        texts = yield [LeafTask(leaf, self._limit_options(leaf.tokens // 2)) for leaf in leaves]
        return [
            self._add_node(self._make_leaf(leaf, text), len(leaf.message_ids), text)
            for leaf, text in zip(leaves, texts, strict=True)
        ]

    def _make_leaf(self, leaf: LeafMessages, text: NodeText) -> Node:
        """Return a leaf over these messages with this text."""
        first_id = min(leaf.message_ids)
        last_id = max(leaf.message_ids)
        originals = self.growth_input.graph.originals
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
            covered_tokens=leaf.tokens,
            author=text.author,
            first_message=first_id,
            last_message=last_id,
            first_turn=max(min(leaf.turns), 1),
            last_turn=max(*leaf.turns, 1),
            since=times[0] if times else 0.0,
            until=times[-1] if times else 0.0,
            sources=tuple(map(str, leaf.message_ids)),
            degraded=text.is_makeshift,
        )

    def _condense(self, visible_nodes: list[VisibleNode]) -> GrowthGenerator:
        """Return fewer nodes: each run of `fan_in` nodes at one level becomes one node.

        Shorter runs are merged only if the nodes do not fit. A run that would not get smaller stays.
        """
        max_tokens = self.growth_input.max_tokens
        unshrinkable_ids: set[str] = set()
        while (run := self._find_run(visible_nodes, unshrinkable_ids)) is not None:
            visible_nodes = yield from self._merge_adjacent_nodes(
                visible_nodes, run, unshrinkable_ids
            )
        while (
            len(visible_nodes) > 1
            and count_node_tokens(visible_nodes, self.count_tokens) > max_tokens
        ):
            run = _find_oldest_run(visible_nodes, self.growth_input.fan_in)
            visible_nodes = yield from self._merge_adjacent_nodes(visible_nodes, run, None)
        if visible_nodes and count_node_tokens(visible_nodes, self.count_tokens) > max_tokens:
            heading_tokens = self.count_tokens(visible_nodes[0].text.partition("\n")[0]) + 2
            visible_nodes = yield from self._write_parent(
                visible_nodes, max(max_tokens - heading_tokens, MIN_NODE_TOKENS)
            )
        return visible_nodes

    def _find_run(
        self, visible_nodes: Sequence[VisibleNode], unshrinkable_ids: set[str]
    ) -> range | None:
        """Return the oldest run of `fan_in` neighbours at one level that can be condensed, or None."""
        fan_in = self.growth_input.fan_in
        for start in range(len(visible_nodes) - fan_in + 1):
            run = visible_nodes[start : start + fan_in]
            levels = {part.node.level for part in run}
            if len(levels) == 1 and run[0].node.id not in unshrinkable_ids:
                return range(start, start + fan_in)
        return None

    def _merge_adjacent_nodes(
        self,
        visible_nodes: list[VisibleNode],
        run: range,
        unshrinkable_ids: set[str] | None,
    ) -> GrowthGenerator:
        """Return the nodes with one new node in place of this run.

        If `unshrinkable_ids` is given and the new node is not smaller than the run, keep the run and add the id of its
        first node there.
        """
        children = visible_nodes[run.start : run.stop]
        size = count_node_tokens(children, self.count_tokens)
        max_tokens = min(self.growth_input.options.max_tokens, size * 2 // 3)
        [parent] = yield from self._write_parent(children, max(max_tokens, MIN_NODE_TOKENS))
        if unshrinkable_ids is not None and self.count_tokens(parent.text) >= size:
            unshrinkable_ids.add(children[0].node.id)
            del self.new_nodes[parent.node.id]
            return visible_nodes
        return [*visible_nodes[: run.start], parent, *visible_nodes[run.stop :]]

    def _write_parent(self, children: Sequence[VisibleNode], max_tokens: int) -> GrowthGenerator:
        """Return one node over these nodes, with the turns and times of all of them."""
        [text] = yield [
            JoinTask(children, replace(self.growth_input.options, max_tokens=max_tokens))
        ]
        nodes = [part.node for part in children]
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
        return [self._add_node(node, sum(part.message_count for part in children), text)]

    def _limit_options(self, max_tokens: int) -> NodeOptions:
        """Return the options with at most this many tokens for the node."""
        options = self.growth_input.options
        return replace(
            options,
            max_tokens=max(min(options.max_tokens, max_tokens), MIN_NODE_TOKENS),
        )

    def _add_node(
        self, node: Node, message_count: int, text: NodeText | None = None
    ) -> VisibleNode:
        """Give a new node its id and size, and return it as part of the view."""
        visible_node = VisibleNode(with_node_id(node), message_count)
        visible_node = replace(
            visible_node,
            node=replace(visible_node.node, tokens=self.count_tokens(visible_node.text)),
        )
        self.new_nodes[visible_node.node.id] = visible_node.node
        if text is not None:
            self.texts.append(text)
        return visible_node


def find_makeshift_nodes(visible_nodes: Sequence[VisibleNode]) -> list[int]:
    """Return the indices of the makeshift nodes that one compaction rewrites."""
    indices = [
        index
        for index, part in enumerate(visible_nodes)
        if part.node.degraded and part.node.sources
    ]
    return indices[:MAX_REWRITTEN_NODES]


def _find_oldest_run(visible_nodes: Sequence[VisibleNode], max_length: int) -> range:
    """Return the oldest adjacent nodes at one level, or else the two oldest, so that no node is rewritten often."""
    for start in range(len(visible_nodes) - 1):
        level = visible_nodes[start].node.level
        end = start + 1
        while (
            end < len(visible_nodes)
            and end - start < max_length
            and visible_nodes[end].node.level == level
        ):
            end += 1
        if end - start > 1:
            return range(start, end)
    return range(2)
