"""The lossless engine: a graph of summaries covers the messages out of view, which stay readable word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from everthread.compaction.composition import (
    SummaryEngine,
    SummaryOrder,
    asks_model,
    pinned_text,
    request_messages,
    section_tokens,
    task_lines,
    text_file,
)
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.history import MessageFacts, number_turns
from everthread.compaction.journal import AUTHOR, Journal, JournalFold, state_sections
from everthread.compaction.lossless.graph import (
    LEAST,
    Growth,
    NodeOrder,
    NodeText,
    NodeWriter,
    Source,
    VisibleNode,
    number_messages,
    part_tokens,
    read_parts,
    split_chunks,
    view_text,
)
from everthread.compaction.lossless.tools import SCHEMAS, Tools
from everthread.compaction.plan import Earlier, Plan, read_state
from everthread.compaction.pruning import prune
from everthread.compaction.state import ThreadState
from everthread.compaction.summary import (
    RULES,
    TASK,
    WORDS,
    Compaction,
    Sections,
    Verification,
    nodes_end,
    parse_sections,
    render_sections,
)
from everthread.compaction.words import render_words
from everthread.core.messages import Message, Messages, Result, calls_of, edit_results, with_text
from everthread.core.transcript import gist, is_lookup
from everthread.core.types import Node
from everthread.errors import ConfigError, InputError

_SHARE = 5
"""One node may take this part (1/n) of the room for all nodes."""
_STATE_SHARE, _STATE_TOKENS = 3, 200
"""The sections made from the state may take this part (1/n) of the room for nodes and them, and up to half of it where
that is not so many tokens."""
_REWRITTEN = 4
"""So many makeshift nodes are written again in one compaction."""
_FAN_IN = (2, 16)
_LEAF_TOKENS = (200, 1_000_000)


@dataclass(frozen=True, slots=True)
class LosslessOptions:
    """The engine's options, as `engines.lossless` names them; checked when they are made."""

    fan_in: int = 4
    """So many nodes side by side at one level become one above them."""
    leaf_tokens: int | None = None
    """About so many tokens of messages make a leaf; None: an eighth of the threshold, at least 1,000."""

    def __post_init__(self) -> None:
        _check("fan_in", self.fan_in, _FAN_IN)
        if self.leaf_tokens is not None:
            _check("leaf_tokens", self.leaf_tokens, _LEAF_TOKENS)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> LosslessOptions:
        names = [field.name for field in fields(cls)]
        unknown = ", ".join(sorted(set(options) - set(names)))
        if unknown:
            raise ConfigError(f"engines.lossless: unknown option(s) {unknown}; known: {', '.join(names)}")
        return cls(**options)

    def leaf_size(self, threshold: int) -> int:
        return self.leaf_tokens or max(threshold // 8, 1_000)


def _check(name: str, value: Any, allowed: tuple[int, int]) -> None:
    low, high = allowed
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"engines.lossless.{name}: {value!r} is not allowed; it must be a whole number from {low:,} to {high:,}."
        )


class LosslessEngine(SummaryEngine):
    """Nodes over old messages, the recent ones as they are, and tools that read the originals."""

    name = "lossless"
    marker = "marker_nodes"

    def __init__(self, services: Services, options: LosslessOptions | None = None) -> None:
        super().__init__(services)
        self._options = options or LosslessOptions()
        self._nodes: dict[str, Node] = {}
        """Nodes that were read or made; the store has them all."""
        self._tools = Tools.of(services)

    async def write(self, plan: Plan, order: SummaryOrder) -> tuple[str, Compaction]:
        state = self.state_before(plan)
        return await _Compaction(self._services, self._options, plan, self._nodes, state).run(order)

    def read_summary_state(self, earlier: Earlier) -> ThreadState:
        end = nodes_end(earlier.text)
        sections = parse_sections(earlier.text[end:]) if end else earlier.sections
        return read_state(sections, is_ours=bool(end))

    # Tools

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [dict(schema) for schema in SCHEMAS] if self._tools else []

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        if self._tools is None:
            raise InputError(f"there is no tool {name[:60]!r} here: nothing is stored that it could look up")
        return await self._tools.call(name, arguments)

    # Life

    def on_compacted(self, compaction: Compaction) -> None:
        super().on_compacted(compaction)
        if compaction.changed:
            self._nodes |= {node.id: replace(node, thread="") for node in compaction.nodes}

    def update_model(self, services: Services) -> None:
        super().update_model(services)
        self._tools = Tools.of(services)


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """The factory for the registry."""
    return LosslessEngine(services, LosslessOptions.of(options))


@dataclass(slots=True)
class _Compaction:
    """The work of one compaction. `nodes`: the engine's cache of nodes, which only grows.

    `state`: how things stood before it, and then at its end.
    """

    services: Services
    options: LosslessOptions
    plan: Plan
    nodes: dict[str, Node]
    state: ThreadState

    async def run(self, order: SummaryOrder) -> tuple[str, Compaction]:
        services, plan, count = self.services, self.plan, self.services.counter.text
        marker = order.marker
        earlier = await self._resolve(self._parts_in_view())
        sources = self._sources(number_messages(plan.messages, earlier, order.ids), earlier)
        budget = self._budget(earlier, sum(source.tokens for source in sources))
        task = task_lines(plan)
        pinned, dropped = pinned_text(order.notes, budget // 8, count)
        if services.lookup and not services.budget.small:
            marker = f"{marker}\n{text_file('node_tools')}"
        around: Sections = {TASK: task, RULES: pinned}
        room = budget - count(marker) - count(render_sections(around, brief=True)) - 60
        standing = state_sections(self.state, max(room // _STATE_SHARE, min(room // 2, _STATE_TOKENS)), count)
        room = max(room - section_tokens(standing, count), LEAST)
        around |= standing
        node_order = NodeOrder(max(room // _SHARE, LEAST), task, order.focus, order.manual)
        growth = Growth(NodeWriter(services.summarizer, count), node_order, self.options.fan_in, services.archive)
        earlier = [await self._take_over(part, growth) for part in earlier]
        earlier = await self._rewrite(earlier, growth)
        parts = await growth.condense([*earlier, *await growth.add_leaves(sources)], room)
        used = count(marker) + part_tokens(parts, count) + count(render_sections(around, brief=True)) + 40
        words = render_words(plan.words, max(plan.words_room(used), plan.words_least), count)
        warnings = dict.fromkeys(warning for one in growth.texts for warning in one.warnings)
        return view_text(marker, parts, {**around, WORDS: words}), Compaction(
            messages=[], summary="", tokens_before=0, tokens_after=0, author=_authors(growth.texts),
            verification=_figures(growth.texts), warnings=(*warnings, *dropped),
            usage=tuple(used for one in growth.texts for used in one.usage), nodes=tuple(growth.new_nodes.values()),
            state=self.state.dump(),
        )  # fmt: skip

    # What is there

    def _parts_in_view(self) -> list[VisibleNode]:
        earlier = self.plan.earlier
        if not earlier.text:
            return []
        first = sum(one.is_user for one in self.plan.history.facts[: self.plan.cut.head_end]) + 1
        last = max((message.end for message in earlier.words), default=first)
        return read_parts(earlier.text, first_turn=first, last_turn=last, messages=earlier.messages)

    async def _resolve(self, parts: list[VisibleNode]) -> list[VisibleNode]:
        """The nodes in view as the store has them; those it does not have, as the context shows them."""
        archive = self.services.archive
        if archive is not None and any(part.node.id and part.node.id not in self.nodes for part in parts):
            self.nodes |= {node.id: replace(node, thread="") for node in await archive.nodes()}
        return [replace(part, node=self.nodes.get(part.node.id, part.node)) for part in parts]

    def _sources(self, numbers: Sequence[int], earlier: Sequence[VisibleNode]) -> list[Source]:
        """The messages of each new leaf."""
        plan, counter = self.plan, self.services.counter
        middle = dict(zip(plan.covered, quiet_lookups(plan.middle), strict=True))
        pruned = dict(zip(plan.covered, plan.pruned, strict=True)) if asks_model(self.services) else middle
        tokens = {index: counter.message(message) for index, message in middle.items()}
        size = self.options.leaf_size(self.services.budget.threshold)
        runs = split_chunks(plan.messages, plan.covered, size, tokens.__getitem__)
        journals = self._journals(runs, middle, earlier[-1].node.last_turn if earlier else -1)
        return [
            Source(
                request_messages([middle[index] for index in run], self.services),
                request_messages([pruned[index] for index in run], self.services),
                [plan.turns[index] for index in run],
                [numbers[index] for index in run],
                sum(tokens[index] for index in run),
                journal,
            )
            for run, journal in zip(runs, journals, strict=True)
        ]

    def _journals(self, runs: Sequence[Sequence[int]], messages: Mapping[int, Message], last: int) -> list[Journal]:
        """The journal of each run. The state is brought up to the end of all first: it tells what was fixed later.

        `last`: the turn before the first run, which may go on in it.
        """
        read, turns = self.plan.history.facts, self.plan.turns
        facts = {at: read[at] if one is read[at].message else MessageFacts(one) for at, one in messages.items()}
        folds = [
            JournalFold(Journal(), self.state).extend([facts[at] for at in run], [turns[at] for at in run])
            for run in runs
        ]
        journals = []
        for run, fold in zip(runs, folds, strict=True):
            first, *others = fold.journal().entries
            journals.append(Journal((replace(first, is_continued=turns[run[0]] == last), *others)))
            last = turns[run[-1]]
        return journals

    def _budget(self, earlier: Sequence[VisibleNode], new: int) -> int:
        """Tokens for the summary without the user's words: nodes in view keep their room as far as possible."""
        plan = self.plan
        present = sum(self.services.counter.text(part.text) for part in earlier)
        beside_words = max(plan.middle_tokens * 8 // 10 - plan.words_least, LEAST)
        most = min(self.services.budget.summary_max, plan.fit.room.summary, beside_words)
        return min(most, max(plan.summary_budget, present + new // 4))

    # Earlier nodes

    async def _take_over(self, part: VisibleNode, growth: Growth) -> VisibleNode:
        """Another engine's summary becomes a leaf over what the store knows it to cover."""
        node, archive = part.node, self.services.archive
        if node.id:
            return part
        ids = await archive.covered() if archive else []
        node = replace(node, covered_tokens=self.services.counter.text(node.body), sources=tuple(map(str, ids)))
        if ids:
            node = replace(node, first_message=ids[0], last_message=ids[-1])
        return growth.add(node, len(ids) or part.messages)

    async def _rewrite(self, parts: list[VisibleNode], growth: Growth) -> list[VisibleNode]:
        """Let a model rewrite makeshift nodes; stop at the first that it cannot write."""
        if self.services.archive is None or not growth.writer.has_model:
            return parts
        makeshift = [index for index, part in enumerate(parts) if part.node.degraded and part.node.sources][:_REWRITTEN]
        for index in makeshift:
            new = await self._rewrite_part(parts[index], growth)
            if new is None:
                break
            parts = [*parts[:index], new, *parts[index + 1 :]]
        return parts

    async def _rewrite_part(self, part: VisibleNode, growth: Growth) -> VisibleNode | None:
        node, archive = part.node, self.services.archive
        order = replace(growth.order, room=max(min(growth.order.room, node.covered_tokens // 2), LEAST))
        if node.level:
            children = [self.nodes[source] for source in node.sources if source in self.nodes]
            if len(children) < len(node.sources):
                return None
            text = await growth.writer.write_condensed([VisibleNode(child, 0) for child in children], order)
        else:
            originals = await archive.originals([int(source) for source in node.sources]) if archive else []
            if len(originals) < len(node.sources):
                return None
            text = await growth.writer.write_leaf(
                self._source([original.message for original in originals], node), order
            )
        if text.is_makeshift:
            return None
        return growth.add(replace(node, body=text.body, author=text.author, degraded=False), part.messages, text)

    def _source(self, messages: Sequence[Message], node: Node) -> Source:
        quiet = quiet_lookups(messages)
        pruned = request_messages(prune(quiet, protect_from=len(quiet)), self.services)
        numbers = number_turns(map(MessageFacts, quiet), before=node.first_turn - 1)
        turns = [max(turn, node.first_turn) for turn in numbers]
        return Source(
            request_messages(quiet, self.services), pruned, turns, list(map(int, node.sources)), node.covered_tokens
        )


def quiet_lookups(messages: Messages) -> list[Message]:
    """The messages, with a lookup's answer cut to its first line: the originals it quotes are covered elsewhere."""
    looked = {call.id for message in messages for call in calls_of(message) if is_lookup(call.name)}

    def edit(result: Result, _: object) -> Any:
        line = gist(result.text)
        if result.call_id not in looked or line == result.text:
            return result.content
        return with_text(result.content, line)

    return [edit_results(message, edit) for message in messages] if looked else list(messages)


def _authors(texts: Sequence[NodeText]) -> str:
    """The authors, each once, models first."""
    return ", ".join(sorted({one.author for one in texts}, key=lambda author: (author == AUTHOR, author)))


def _figures(texts: Sequence[NodeText]) -> Verification:
    """The checks of all nodes, added up."""
    checks = [one.verification for one in texts]
    return Verification(
        checked=sum(check.checked for check in checks), unverified=sum(check.unverified for check in checks)
    )
