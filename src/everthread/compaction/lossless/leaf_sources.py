"""Collect the messages under a leaf, the sources of its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.compaction.history import MessageFacts, number_turns
from everthread.compaction.journal.journal import Journal
from everthread.compaction.journal.journal_builder import JournalFold
from everthread.compaction.lossless.graph import split_chunks
from everthread.compaction.planning import StoredGraph
from everthread.compaction.pruning import prune, redact_message
from everthread.compaction.summary_engine import SummaryOrder
from everthread.compaction.thread_facts import ThreadState
from everthread.core.messages import (
    Message,
    Messages,
    Result,
    calls_of,
    edit_results,
    with_text,
)
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import is_lookup_tool, shorten_answer
from everthread.core.types import Node


@dataclass(frozen=True, slots=True)
class LeafSource:
    """The messages under a leaf, the user's message each belongs to, and the journal of the work in them."""

    messages: Sequence[Message]
    pruned: Sequence[Message]
    turns: Sequence[int]
    ids: Sequence[int]
    tokens: int
    journal: Journal = field(default_factory=Journal)


@dataclass(frozen=True, slots=True)
class LeafSplitter:
    """Split the covered messages of a compaction into the sources of its leaves."""

    order: SummaryOrder
    counter: TokenCounter
    size: int
    """About this many tokens make a leaf."""

    def split(
        self, numbers: Sequence[int], facts: ThreadState, last_turn: int
    ) -> list[LeafSource]:
        """Return the sources, oldest first, and bring `facts` up to their end.

        `numbers`: an id for each message of the input. `last_turn`: the turn before, which may continue in the first.
        """
        order = self.order
        plan = order.cut
        middle = dict(zip(plan.covered, quiet_lookups(plan.middle), strict=True))
        pruned = middle
        if order.given.has_model:
            pruned = dict(zip(plan.covered, plan.pruned, strict=True))
        tokens = {index: self.counter.message(one) for index, one in middle.items()}
        runs = split_chunks(plan.messages, plan.covered, self.size, tokens.__getitem__)
        journals = self._write_journals(runs, middle, facts, last_turn)
        return [
            LeafSource(
                order.hide_secrets([middle[index] for index in run]),
                order.hide_secrets([pruned[index] for index in run]),
                turns=[plan.turns[index] for index in run],
                ids=[numbers[index] for index in run],
                tokens=sum(tokens[index] for index in run),
                journal=journal,
            )
            for run, journal in zip(runs, journals, strict=True)
        ]

    def _write_journals(
        self,
        runs: Sequence[Sequence[int]],
        messages: Mapping[int, Message],
        facts: ThreadState,
        last_turn: int,
    ) -> list[Journal]:
        """Return the journal of each run. All are read first: the facts at the end say which errors were fixed."""
        read = self.order.cut.history.facts
        turns = self.order.cut.turns
        readings = {
            at: read[at] if one is read[at].message else MessageFacts(one)
            for at, one in messages.items()
        }
        folds = [
            JournalFold(Journal(), facts).extend(
                [readings[at] for at in run], [turns[at] for at in run]
            )
            for run in runs
        ]
        journals = []
        for run, fold in zip(runs, folds, strict=True):
            first, *others = fold.journal().entries
            is_continued = turns[run[0]] == last_turn
            journals.append(
                Journal((replace(first, is_continued=is_continued), *others))
            )
            last_turn = turns[run[-1]]
        return journals


def restore_source(node: Node, graph: StoredGraph) -> LeafSource:
    """Return the source of a leaf from its original messages, for a model."""
    ids = [int(source) for source in node.sources]
    quiet = quiet_lookups([graph.originals[one].message for one in ids])
    pruned = prune(quiet, protect_from=len(quiet))
    numbers = number_turns(map(MessageFacts, quiet), before=node.first_turn - 1)
    return LeafSource(
        [redact_message(message) for message in quiet],
        [redact_message(message) for message in pruned],
        turns=[max(turn, node.first_turn) for turn in numbers],
        ids=ids,
        tokens=node.covered_tokens,
    )


def quiet_lookups(messages: Messages) -> list[Message]:
    """Cut each lookup's answer to its first line: other nodes cover the originals it quotes."""
    looked = {
        call.id
        for message in messages
        for call in calls_of(message)
        if is_lookup_tool(call.name)
    }
    if not looked:
        return list(messages)

    def edit(result: Result, _: object) -> Any:
        line = shorten_answer(result.text)
        if result.call_id not in looked or line == result.text:
            return result.content
        return with_text(result.content, line)

    return [edit_results(message, edit) for message in messages]
