"""The lossless engine: a graph of summaries covers old messages, whose originals the model can still read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.engine_input import (
    CompactionInput,
    EngineState,
    StoredGraph,
)
from everthread.compaction.history.open_requests import render_task
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.lossless.graph import (
    VisibleNode,
    count_node_tokens,
    number_messages,
    read_visible_nodes,
    render_view,
)
from everthread.compaction.lossless.graph_tools import SCHEMAS, GraphTools
from everthread.compaction.lossless.growth import (
    GrownGraph,
    Growth,
    GrowthInput,
    find_makeshift_nodes,
)
from everthread.compaction.lossless.leaf_messages import LeafMessages, LeafSplitter
from everthread.compaction.lossless.node_texts import (
    MIN_NODE_TOKENS,
    NodeOptions,
    NodeText,
    NodeWriter,
    PendingNode,
)
from everthread.compaction.names.names_section import NamesSection
from everthread.compaction.planning_engine import (
    PlanningEngine,
    SummaryInput,
    WrittenSummary,
)
from everthread.compaction.summarizers.summarizer import (
    JOURNAL_AUTHOR,
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
from everthread.compaction.summary.state_sections import render_state_sections
from everthread.compaction.summary.summary_message import (
    count_section_tokens,
    read_text_file,
    render_names_section,
    render_pinned_notes,
)
from everthread.compaction.summary.user_quotes import render_quotes
from everthread.core.types import Node
from everthread.errors import ConfigError, InputError

NODE_DIVISOR = 5
"""One node may take the tokens for all nodes divided by this."""
STATE_DIVISOR = 3
STATE_TOKENS = 200
"""The sections made from the state may take the tokens for nodes and state divided by `STATE_DIVISOR`, or
`STATE_TOKENS` if that is more, but at most half."""
MIN_FAN_IN = 2
MAX_FAN_IN = 16
MIN_LEAF_TOKENS = 200
MAX_LEAF_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class LosslessOptions:
    """The options of the engine, named as in the configuration `engines.lossless`. Creating them checks them."""

    fan_in: int = 4
    """The number of adjacent nodes of one level that become one node above them."""
    leaf_tokens: int | None = None
    """About the tokens of messages that make a leaf; None: an eighth of the threshold, at least 1,000."""

    def __post_init__(self) -> None:
        _check_bounds("fan_in", self.fan_in, (MIN_FAN_IN, MAX_FAN_IN))
        if self.leaf_tokens is not None:
            _check_bounds("leaf_tokens", self.leaf_tokens, (MIN_LEAF_TOKENS, MAX_LEAF_TOKENS))

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> LosslessOptions:
        """Return the options of a configuration. Raise `ConfigError` for an unknown option."""
        names = [field.name for field in fields(cls)]
        unknown = ", ".join(sorted(set(options) - set(names)))
        if unknown:
            raise ConfigError(
                f"engines.lossless: unknown option(s) {unknown}; known: {', '.join(names)}"
            )
        return cls(**options)

    def compute_leaf_tokens(self, threshold: int) -> int:
        """Return the tokens of messages that make a leaf."""
        return self.leaf_tokens or max(threshold // 8, 1_000)


def _check_bounds(name: str, value: Any, bounds: tuple[int, int]) -> None:
    """Raise `ConfigError` unless the value is a whole number within the bounds."""
    minimum, maximum = bounds
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise ConfigError(
            f"engines.lossless.{name}: {value!r} is not allowed; "
            f"it must be a whole number from {minimum:,} to {maximum:,}."
        )


@dataclass(frozen=True, slots=True)
class PendingGraphSummary:
    """A summary that the lossless engine has begun."""

    summary_input: SummaryInput
    growth_input: GrowthInput
    thread_state: ThreadState
    """The state of the thread at the end of the covered messages."""
    marker: str
    other_sections: Sections
    """The sections after the nodes."""
    names: NamesSection
    warnings: tuple[str, ...]
    """Warnings about the pinned notes."""
    written_texts: tuple[NodeText, ...] = ()
    """The texts of nodes so far."""
    current_batch: tuple[PendingNode | NodeText, ...] = ()
    """The texts that are being written now."""

    @property
    def requests(self) -> Sequence[SummaryRequest]:
        return [
            node.draft.next_request for node in self.current_batch if isinstance(node, PendingNode)
        ]


class LosslessEngine(PlanningEngine):
    """An engine with nodes over old messages, recent messages unchanged, and tools to read the originals."""

    name = "lossless"
    marker = "marker_nodes"

    def __init__(self, services: Services, options: LosslessOptions | None = None) -> None:
        super().__init__(services)
        self._options = options or LosslessOptions()
        self._known_nodes: dict[str, Node] = {}
        """All nodes that were read from the store or made by this engine, by id."""
        self._tools = GraphTools.from_services(services)

    def current_state(self, graph: StoredGraph | None = None) -> EngineState:
        stored_graph = graph or StoredGraph()
        known_graph = replace(stored_graph, nodes={**stored_graph.nodes, **self._known_nodes})
        return replace(super().current_state(), graph=known_graph)

    async def read_state(self, compaction_input: CompactionInput) -> EngineState:
        """Read the nodes in view, and the messages under the nodes that a model can rewrite."""
        archive = self._services.archive
        if archive is None:
            return self.current_state()
        earlier_summary = read_earlier_summary(compaction_input.messages)
        visible_nodes = _read_nodes_in_view(earlier_summary, first_turn=1)
        if any(part.node.id and part.node.id not in self._known_nodes for part in visible_nodes):
            nodes = await archive.nodes()
            self._known_nodes = self._known_nodes | {
                node.id: replace(node, thread="") for node in nodes
            }
        has_foreign_summary = any(not part.node.id for part in visible_nodes)
        covered_ids = await archive.covered() if has_foreign_summary else ()
        ids = {
            *(compaction_input.ids or ()),
            *self._list_ids_to_rewrite(compaction_input, visible_nodes),
        }
        originals = await archive.originals(sorted(ids))
        graph = StoredGraph(
            is_stored=True,
            covered_ids=tuple(covered_ids),
            originals={original.id: original for original in originals},
        )
        return self.current_state(graph)

    def begin_summary(self, summary_input: SummaryInput) -> PendingGraphSummary:
        count = self._services.counter.text
        cut_plan = summary_input.cut_plan
        compaction_input = summary_input.compaction_input
        covered_state = self.load_thread_state(cut_plan.earlier_summary, summary_input.state)
        graph = summary_input.state.graph or StoredGraph()
        visible_nodes = _resolve_visible_nodes(summary_input, graph)
        leaves = self._split_into_leaves(summary_input, visible_nodes, covered_state)
        covered_state = covered_state.prepare_for_summary(cut_plan.list_covered_facts())
        state = cut_plan.add_tail(covered_state)
        budget = self._compute_summary_tokens(
            summary_input, visible_nodes, sum(leaf.tokens for leaf in leaves)
        )
        names = NamesSection.plan(
            state.names, budget, continues=bool(cut_plan.earlier_summary.text)
        )
        pinned, warnings = render_pinned_notes(summary_input.state.notes, budget // 8, count)
        marker = self._extend_marker(summary_input.marker)
        other_sections: Sections = {TASK: render_task(cut_plan.history), RULES: pinned}
        used_tokens = (
            count(marker)
            + count(render_sections(other_sections, skip_empty=True))
            + names.max_tokens
        )
        available_tokens = budget - used_tokens - 60
        state_tokens = max(
            available_tokens // STATE_DIVISOR, min(available_tokens // 2, STATE_TOKENS)
        )
        state_sections = render_state_sections(state, state_tokens, count)
        available_tokens = max(
            available_tokens - count_section_tokens(state_sections, count),
            MIN_NODE_TOKENS,
        )
        node_options = NodeOptions(
            max(available_tokens // NODE_DIVISOR, MIN_NODE_TOKENS),
            other_sections[TASK],
            focus=compaction_input.focus_topic,
            manual=compaction_input.manual,
        )
        growth_input = GrowthInput(
            tuple(visible_nodes),
            tuple(leaves),
            options=node_options,
            max_tokens=available_tokens,
            fan_in=self._options.fan_in,
            has_model=compaction_input.has_model,
            graph=graph,
        )
        pending = PendingGraphSummary(
            summary_input,
            growth_input,
            thread_state=covered_state,
            marker=marker,
            other_sections=other_sections | state_sections,
            names=names,
            warnings=warnings,
        )
        return self._begin_batch(pending) if compaction_input.has_model else pending

    def continue_summary(
        self, pending: PendingGraphSummary, drafts: Sequence[SummaryDraft]
    ) -> PendingGraphSummary | WrittenSummary:
        writer = NodeWriter(self._services.counter.text)
        remaining_drafts = iter(drafts)
        batch = tuple(
            writer.receive_draft(node, next(remaining_drafts))
            if isinstance(node, PendingNode)
            else node
            for node in pending.current_batch
        )
        texts = tuple(node for node in batch if isinstance(node, NodeText))
        if len(texts) < len(batch):
            return replace(pending, current_batch=batch)
        next_pending = replace(
            pending, written_texts=(*pending.written_texts, *texts), current_batch=()
        )
        outcome = Growth(next_pending.growth_input, writer.count_tokens).run(
            next_pending.written_texts
        )
        if isinstance(outcome, GrownGraph):
            return self._compose_summary(next_pending, outcome)
        return replace(next_pending, current_batch=tuple(map(writer.begin_node, outcome)))

    def read_thread_state(self, earlier_summary: EarlierSummary) -> ThreadState:
        text = earlier_summary.text
        end = find_nodes_end(text)
        sections = parse_sections(text[end:]) if end else earlier_summary.sections
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
            self._known_nodes = self._known_nodes | new_nodes

    def update_model(self, services: Services) -> None:
        super().update_model(services)
        self._tools = GraphTools.from_services(services)

    def _list_ids_to_rewrite(
        self, compaction_input: CompactionInput, visible_nodes: Sequence[VisibleNode]
    ) -> list[int]:
        """Return the ids of the messages under the leaves that a model may rewrite."""
        if not compaction_input.has_model:
            return []
        stored_parts = [
            replace(part, node=self._find_stored_node(part.node)) for part in visible_nodes
        ]
        leaves = [stored_parts[index].node for index in find_makeshift_nodes(stored_parts)]
        return [int(source) for leaf in leaves if not leaf.level for source in leaf.sources]

    def _find_stored_node(self, node: Node) -> Node:
        return self._known_nodes.get(node.id, node)

    def _compute_summary_tokens(
        self,
        summary_input: SummaryInput,
        visible_nodes: Sequence[VisibleNode],
        new_tokens: int,
    ) -> int:
        """Return the tokens for the summary without the user's words, if possible enough for the nodes in view."""
        cut_plan = summary_input.cut_plan
        visible_tokens = sum(self._services.counter.text(part.text) for part in visible_nodes)
        tokens_beside_words = (
            cut_plan.budget.middle_tokens * 8 // 10 - cut_plan.budget.min_user_words_tokens
        )
        max_tokens = min(
            self._services.budget.summary_max,
            cut_plan.budget.limits.summary_tokens,
            max(tokens_beside_words, MIN_NODE_TOKENS),
        )
        return min(max_tokens, max(cut_plan.budget.tokens, visible_tokens + new_tokens // 4))

    def _split_into_leaves(
        self,
        summary_input: SummaryInput,
        visible_nodes: Sequence[VisibleNode],
        thread_state: ThreadState,
    ) -> list[LeafMessages]:
        """Return the messages of the new leaves, and update `thread_state` to the state after the last one."""
        message_ids = number_messages(
            summary_input.cut_plan.history.messages,
            visible_nodes,
            summary_input.compaction_input.ids,
        )
        last_turn = visible_nodes[-1].node.last_turn if visible_nodes else -1
        leaf_tokens = self._options.compute_leaf_tokens(self._services.budget.threshold)
        splitter = LeafSplitter(summary_input, self._services.counter, leaf_tokens)
        return splitter.split(message_ids, thread_state, last_turn)

    def _extend_marker(self, marker: str) -> str:
        """Add the line on the graph's tools to the first lines of a summary, if the tools exist."""
        if self._services.lookup and not self._services.budget.is_small:
            return f"{marker}\n{read_text_file('node_tools')}"
        return marker

    def _begin_batch(self, pending: PendingGraphSummary) -> PendingGraphSummary:
        """Request the first texts, if any."""
        count = self._services.counter.text
        outcome = Growth(pending.growth_input, count).run(())
        if isinstance(outcome, GrownGraph):
            return pending
        return replace(pending, current_batch=tuple(map(NodeWriter(count).begin_node, outcome)))

    def _compose_summary(self, pending: PendingGraphSummary, graph: GrownGraph) -> WrittenSummary:
        """Join the nodes, the sections after them and the user's words to a summary."""
        count = self._services.counter.text
        cut_plan = pending.summary_input.cut_plan
        other_sections = pending.other_sections
        visible_nodes = graph.visible_nodes
        used_tokens = (
            count(pending.marker)
            + count_node_tokens(visible_nodes, count)
            + count(render_sections(other_sections, skip_empty=True))
            + pending.names.max_tokens
            + 40
        )
        available_tokens = max(
            cut_plan.budget.count_tokens_for_user_words(used_tokens),
            cut_plan.budget.min_user_words_tokens,
        )
        words = render_quotes(cut_plan.user_words, available_tokens, count)
        visible_text = "\n".join(
            [
                pending.marker,
                *(part.text for part in visible_nodes),
                *other_sections.values(),
                words,
            ]
        )
        names_text = render_names_section(pending.names, cut_plan, visible_text, count)
        text = render_view(
            pending.marker,
            visible_nodes,
            {**other_sections, USER_WORDS: words, NAMES: names_text},
        )
        warnings = dict.fromkeys(
            warning for node_text in graph.texts for warning in node_text.warnings
        )
        return WrittenSummary(
            text=text,
            author=_join_authors(graph.texts),
            verification=_add_up_checks(graph.texts),
            warnings=(*warnings, *pending.warnings),
            usage=tuple(usage for node_text in graph.texts for usage in node_text.usage),
            state=pending.thread_state.dump(),
            nodes=graph.new_nodes,
        )


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """Create the engine for the registry."""
    return LosslessEngine(services, LosslessOptions.from_mapping(options))


def _resolve_visible_nodes(summary_input: SummaryInput, graph: StoredGraph) -> list[VisibleNode]:
    """Return the nodes in view: from the graph if it has them, else as the context shows them."""
    head = summary_input.cut_plan.history.facts[: summary_input.cut_plan.cut.head_end]
    first_turn = sum(message_facts.is_user for message_facts in head) + 1
    visible_nodes = _read_nodes_in_view(summary_input.cut_plan.earlier_summary, first_turn)
    return [replace(part, node=graph.nodes.get(part.node.id, part.node)) for part in visible_nodes]


def _read_nodes_in_view(earlier_summary: EarlierSummary, first_turn: int) -> list[VisibleNode]:
    """Return the nodes in a summary. A summary without nodes becomes one node from `first_turn` on."""
    if not earlier_summary.text:
        return []
    last_turn = max((message.last_number for message in earlier_summary.quotes), default=first_turn)
    return read_visible_nodes(
        earlier_summary.text,
        first_turn=first_turn,
        last_turn=last_turn,
        message_count=earlier_summary.message_count,
    )


def _join_authors(texts: Sequence[NodeText]) -> str:
    """Return the authors, each once, models first."""
    return ", ".join(
        sorted(
            {text.author for text in texts},
            key=lambda author: (author == JOURNAL_AUTHOR, author),
        )
    )


def _add_up_checks(texts: Sequence[NodeText]) -> Verification:
    """Add up the checks of all nodes."""
    checks = [text.verification for text in texts]
    return Verification(
        checked=sum(check.checked for check in checks),
        unverified=sum(check.unverified for check in checks),
    )
