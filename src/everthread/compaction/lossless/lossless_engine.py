"""The lossless engine: a graph of summaries covers the messages out of view, which stay readable word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.history.open_requests import write_task
from everthread.compaction.history.thread_facts import ThreadState
from everthread.compaction.journal.journal import AUTHOR
from everthread.compaction.lossless.graph import (
    VisibleNode,
    number_messages,
    part_tokens,
    read_parts,
    view_text,
)
from everthread.compaction.lossless.growth import (
    GrownGraph,
    Growth,
    GrowthPlan,
    find_degraded_nodes,
)
from everthread.compaction.lossless.leaf_sources import LeafSplitter
from everthread.compaction.lossless.node_texts import (
    MIN_NODE_TOKENS,
    NodeOrder,
    NodeText,
    NodeWriter,
    PendingNode,
)
from everthread.compaction.lossless.tools import SCHEMAS, Tools
from everthread.compaction.names.names_section import NamesSection
from everthread.compaction.planning_engine import (
    CompactionInput,
    EngineState,
    StoredGraph,
)
from everthread.compaction.summarizers.summarizer import (
    SummaryDraft,
    SummaryRequest,
    Verification,
)
from everthread.compaction.summary.earlier_summary import (
    EarlierSummary,
    read_earlier_summary,
    read_state_from_sections,
)
from everthread.compaction.summary.sections import (
    NAMES,
    RULES,
    TASK,
    USER_WORDS,
    Sections,
    find_nodes_end,
    parse_sections,
    render_sections,
)
from everthread.compaction.summary.state_sections import write_state_sections
from everthread.compaction.summary.summary_message import (
    count_section_tokens,
    read_text_file,
    write_names_section,
    write_pinned_notes,
)
from everthread.compaction.summary.user_quotes import render_quotes
from everthread.compaction.summary_engine import (
    SummaryEngine,
    SummaryOrder,
    WrittenSummary,
)
from everthread.core.types import Node
from everthread.errors import ConfigError, InputError

NODE_SHARE = 5
"""One node may take this part (1/n) of the room for all nodes."""
STATE_SHARE = 3
STATE_TOKENS = 200
"""The sections made from the facts take up to this part (1/n) of their room with the nodes, or these tokens if that is
less than half of it."""
MIN_FAN_IN = 2
MAX_FAN_IN = 16
MIN_LEAF_TOKENS = 200
MAX_LEAF_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class LosslessOptions:
    """The engine's options, as `engines.lossless` names them; checked when they are made."""

    fan_in: int = 4
    """This many neighbouring nodes of one level become one node above them."""
    leaf_tokens: int | None = None
    """About this many tokens of messages make a leaf; None: an eighth of the threshold, at least 1,000."""

    def __post_init__(self) -> None:
        _check("fan_in", self.fan_in, (MIN_FAN_IN, MAX_FAN_IN))
        if self.leaf_tokens is not None:
            _check("leaf_tokens", self.leaf_tokens, (MIN_LEAF_TOKENS, MAX_LEAF_TOKENS))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LosslessOptions:
        names = [field.name for field in fields(cls)]
        unknown = ", ".join(sorted(set(options) - set(names)))
        if unknown:
            raise ConfigError(
                f"engines.lossless: unknown option(s) {unknown}; known: {', '.join(names)}"
            )
        return cls(**options)

    def leaf_size(self, threshold: int) -> int:
        return self.leaf_tokens or max(threshold // 8, 1_000)


def _check(name: str, value: Any, bounds: tuple[int, int]) -> None:
    low, high = bounds
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not low <= value <= high
    ):
        raise ConfigError(
            f"engines.lossless.{name}: {value!r} is not allowed; it must be a whole number from {low:,} to {high:,}."
        )


@dataclass(frozen=True, slots=True)
class GraphWriting:
    """The `SummaryWriting` of this engine."""

    order: SummaryOrder
    growth: GrowthPlan
    facts: ThreadState
    """The facts at the cut."""
    marker: str
    around: Sections
    """The sections after the nodes."""
    names: NamesSection
    warnings: tuple[str, ...]
    """Warnings about the pinned notes."""
    written: tuple[NodeText, ...] = ()
    """The texts of nodes so far."""
    batch: tuple[PendingNode | NodeText, ...] = ()
    """The texts that are being written now."""

    @property
    def requests(self) -> Sequence[SummaryRequest]:
        return [
            node.draft.next_request
            for node in self.batch
            if isinstance(node, PendingNode)
        ]


class LosslessEngine(SummaryEngine):
    """An engine with nodes over old messages, recent messages unchanged, and tools to read the originals."""

    name = "lossless"
    marker = "marker_nodes"

    def __init__(
        self, services: Services, options: LosslessOptions | None = None
    ) -> None:
        super().__init__(services)
        self._options = options or LosslessOptions()
        self._nodes: dict[str, Node] = {}
        """Nodes that were read or made; the store has them all."""
        self._tools = Tools.of(services)

    def current_state(self, graph: StoredGraph | None = None) -> EngineState:
        stored_graph = graph or StoredGraph()
        known_graph = replace(stored_graph, nodes={**stored_graph.nodes, **self._nodes})
        return replace(super().current_state(), graph=known_graph)

    async def read_state(self, history: CompactionInput) -> EngineState:
        """Read the nodes in view, and the messages under those that a model can rewrite."""
        archive = self._services.archive
        if archive is None:
            return self.current_state()
        earlier_summary = read_earlier_summary(history.messages)
        parts = _parts_in_view(earlier_summary, first_turn=1)
        if any(part.node.id and part.node.id not in self._nodes for part in parts):
            nodes = await archive.nodes()
            self._nodes = self._nodes | {
                node.id: replace(node, thread="") for node in nodes
            }
        is_foreign = any(not part.node.id for part in parts)
        covered_ids = await archive.covered() if is_foreign else ()
        ids = {*(history.ids or ()), *self._ids_to_rewrite(history, parts)}
        originals = await archive.originals(sorted(ids))
        graph = StoredGraph(
            is_stored=True,
            covered=tuple(covered_ids),
            originals={original.id: original for original in originals},
        )
        return self.current_state(graph)

    def begin_writing(self, order: SummaryOrder) -> GraphWriting:
        count = self._services.counter.text
        plan = order.cut
        compaction_input = order.given
        facts = self.facts_before(plan.earlier_summary, order.state)
        graph = order.state.graph or StoredGraph()
        parts = _resolve_parts(order, graph)
        last_turn = parts[-1].node.last_turn if parts else -1
        size = self._options.leaf_size(self._services.budget.threshold)
        sources = LeafSplitter(order, self._services.counter, size).split(
            number_messages(plan.messages, parts, compaction_input.ids),
            facts,
            last_turn,
        )
        facts = facts.prepare_for_summary(plan.facts)
        state = facts.after_messages(*plan.tail_facts_and_turns)
        budget = self._budget(order, parts, sum(source.tokens for source in sources))
        names = NamesSection.plan(state.names, budget)
        pinned, warnings = write_pinned_notes(order.state.notes, budget // 8, count)
        marker = order.marker
        if self._services.lookup and not self._services.budget.is_small:
            marker = f"{marker}\n{read_text_file('node_tools')}"
        around: Sections = {TASK: write_task(plan), RULES: pinned}
        used_tokens = (
            count(marker) + count(render_sections(around, skip_empty=True)) + names.room
        )
        room = budget - used_tokens - 60
        permanent_room = max(room // STATE_SHARE, min(room // 2, STATE_TOKENS))
        permanent = write_state_sections(state, permanent_room, count)
        room = max(room - count_section_tokens(permanent, count), MIN_NODE_TOKENS)
        node_order = NodeOrder(
            max(room // NODE_SHARE, MIN_NODE_TOKENS),
            around[TASK],
            focus=compaction_input.focus_topic,
            manual=compaction_input.manual,
        )
        writing = GraphWriting(
            order,
            GrowthPlan(
                tuple(parts),
                tuple(sources),
                order=node_order,
                room=room,
                fan_in=self._options.fan_in,
                has_model=compaction_input.has_model,
                graph=graph,
            ),
            facts=facts,
            marker=marker,
            around=around | permanent,
            names=names,
            warnings=warnings,
        )
        return self._begin_batch(writing) if compaction_input.has_model else writing

    def continue_writing(
        self, writing: GraphWriting, drafts: Sequence[SummaryDraft]
    ) -> GraphWriting | WrittenSummary:
        writer = NodeWriter(self._services.counter.text)
        remaining_drafts = iter(drafts)
        batch = tuple(
            writer.take(node, next(remaining_drafts))
            if isinstance(node, PendingNode)
            else node
            for node in writing.batch
        )
        texts = tuple(node for node in batch if isinstance(node, NodeText))
        if len(texts) < len(batch):
            return replace(writing, batch=batch)
        next_writing = replace(writing, written=(*writing.written, *texts), batch=())
        outcome = Growth(next_writing.growth, writer.count).run(next_writing.written)
        if isinstance(outcome, GrownGraph):
            return self._compose(next_writing, outcome)
        return replace(next_writing, batch=tuple(map(writer.begin, outcome)))

    def read_facts(self, earlier: EarlierSummary) -> ThreadState:
        end = find_nodes_end(earlier.text)
        sections = parse_sections(earlier.text[end:]) if end else earlier.sections
        return read_state_from_sections(sections, is_from_journal=bool(end))

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [dict(schema) for schema in SCHEMAS] if self._tools else []

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._tools is None:
            raise InputError(
                f"there is no tool {name[:60]!r} here: nothing is stored that it could look up"
            )
        return await self._tools.call(name, arguments)

    def on_compacted(self, compaction: Compaction) -> None:
        super().on_compacted(compaction)
        if compaction.changed:
            new_nodes = {node.id: replace(node, thread="") for node in compaction.nodes}
            self._nodes = self._nodes | new_nodes

    def update_model(self, services: Services) -> None:
        super().update_model(services)
        self._tools = Tools.of(services)

    def _ids_to_rewrite(
        self, history: CompactionInput, parts: Sequence[VisibleNode]
    ) -> list[int]:
        """Return the ids of the messages under the leaves that a model may rewrite."""
        if not history.has_model:
            return []
        stored_parts = [
            replace(part, node=self._stored_node(part.node)) for part in parts
        ]
        leaves = [
            stored_parts[index].node for index in find_degraded_nodes(stored_parts)
        ]
        return [
            int(source) for leaf in leaves if not leaf.level for source in leaf.sources
        ]

    def _stored_node(self, node: Node) -> Node:
        return self._nodes.get(node.id, node)

    def _budget(
        self, order: SummaryOrder, parts: Sequence[VisibleNode], new_tokens: int
    ) -> int:
        """Return the tokens for the summary without the user's words: nodes in view keep their room if possible."""
        plan = order.cut
        visible_tokens = sum(self._services.counter.text(part.text) for part in parts)
        beside_words = plan.middle_tokens * 8 // 10 - plan.min_user_words_tokens
        max_tokens = min(
            self._services.budget.summary_max,
            plan.fitted_cut.limits.summary_tokens,
            max(beside_words, MIN_NODE_TOKENS),
        )
        return min(
            max_tokens, max(plan.summary_budget, visible_tokens + new_tokens // 4)
        )

    def _begin_batch(self, writing: GraphWriting) -> GraphWriting:
        """Ask for the first texts, if any."""
        count = self._services.counter.text
        outcome = Growth(writing.growth, count).run(())
        if isinstance(outcome, GrownGraph):
            return writing
        return replace(writing, batch=tuple(map(NodeWriter(count).begin, outcome)))

    def _compose(self, writing: GraphWriting, graph: GrownGraph) -> WrittenSummary:
        """Put the nodes, the sections after them and the user's words together."""
        count = self._services.counter.text
        plan = writing.order.cut
        around = writing.around
        parts = graph.parts
        used_tokens = (
            count(writing.marker)
            + part_tokens(parts, count)
            + count(render_sections(around, skip_empty=True))
            + writing.names.room
            + 40
        )
        room = max(plan.user_words_room(used_tokens), plan.min_user_words_tokens)
        words = render_quotes(plan.user_words, room, count)
        visible_text = "\n".join(
            [writing.marker, *(part.text for part in parts), *around.values(), words]
        )
        names_text = write_names_section(writing.names, plan, visible_text, count)
        text = view_text(
            writing.marker, parts, {**around, USER_WORDS: words, NAMES: names_text}
        )
        warnings = dict.fromkeys(
            warning for node_text in graph.texts for warning in node_text.warnings
        )
        result = Compaction(
            messages=[],
            summary="",
            tokens_before=0,
            tokens_after=0,
            author=_authors(graph.texts),
            verification=_figures(graph.texts),
            warnings=(*warnings, *writing.warnings),
            usage=tuple(
                usage for node_text in graph.texts for usage in node_text.usage
            ),
            nodes=graph.new_nodes,
            state=writing.facts.dump(),
        )
        return WrittenSummary(text, result)


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """Create the engine for the registry."""
    return LosslessEngine(services, LosslessOptions.of(options))


def _resolve_parts(order: SummaryOrder, graph: StoredGraph) -> list[VisibleNode]:
    """Return the nodes in view as the graph has them; the others as the context shows them."""
    head = order.cut.history.facts[: order.cut.cut.head_end]
    first_turn = sum(message_facts.is_user for message_facts in head) + 1
    parts = _parts_in_view(order.cut.earlier_summary, first_turn)
    return [
        replace(part, node=graph.nodes.get(part.node.id, part.node)) for part in parts
    ]


def _parts_in_view(
    earlier_summary: EarlierSummary, first_turn: int
) -> list[VisibleNode]:
    """Return the nodes in a summary; if it has none, all of it as one part from `first_turn` on."""
    if not earlier_summary.text:
        return []
    last_turn = max(
        (message.last_number for message in earlier_summary.quotes), default=first_turn
    )
    return read_parts(
        earlier_summary.text,
        first_turn=first_turn,
        last_turn=last_turn,
        messages=earlier_summary.message_count,
    )


def _authors(texts: Sequence[NodeText]) -> str:
    """Return the authors, each once, models first."""
    return ", ".join(
        sorted(
            {text.author for text in texts},
            key=lambda author: (author == AUTHOR, author),
        )
    )


def _figures(texts: Sequence[NodeText]) -> Verification:
    """Add up the checks of all nodes."""
    checks = [text.verification for text in texts]
    return Verification(
        checked=sum(check.checked for check in checks),
        unverified=sum(check.unverified for check in checks),
    )
