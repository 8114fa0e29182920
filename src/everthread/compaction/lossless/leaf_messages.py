"""Collect the messages under each leaf, from which its text is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.compaction.cutting.pruning import prune_messages, redact_message
from everthread.compaction.engine_input import StoredGraph
from everthread.compaction.history.compaction_history import MessageFacts, number_turns
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.journal.journal import Journal
from everthread.compaction.journal.journal_builder import JournalBuilder
from everthread.compaction.lossless.graph import split_chunks
from everthread.compaction.planning_engine import SummaryInput
from everthread.core.lookup_tools import is_lookup_tool, shorten_answer
from everthread.core.messages import (
    Message,
    Messages,
    ToolResult,
    calls_of,
    edit_results,
    with_text,
)
from everthread.core.tokens import TokenCounter
from everthread.core.types import Node


@dataclass(frozen=True, slots=True)
class LeafMessages:
    """The messages under a leaf, and the journal of the work in them."""

    messages: Sequence[Message]
    pruned_messages: Sequence[Message]
    turns: Sequence[int]
    """The turn of each message."""
    message_ids: Sequence[int]
    tokens: int
    journal: Journal = field(default_factory=Journal)


@dataclass(frozen=True, slots=True)
class LeafSplitter:
    """A splitter of the covered messages of a compaction into leaves."""

    summary_input: SummaryInput
    counter: TokenCounter
    leaf_tokens: int
    """About this many tokens make a leaf."""

    def split(
        self, message_ids: Sequence[int], thread_state: ThreadState, last_turn: int
    ) -> list[LeafMessages]:
        """Return the messages of each leaf, oldest first, and update `thread_state` to the state after the last one.

        `message_ids`: an id for each message of the input. `last_turn`: the last turn that is covered already, which
        the first leaf may continue.
        """
        summary_input = self.summary_input
        cut_plan = summary_input.cut_plan
        middle = dict(
            zip(
                cut_plan.covered_indices,
                shorten_lookup_answers(cut_plan.middle_messages),
                strict=True,
            )
        )
        messages_for_model = middle
        if summary_input.compaction_input.has_model:
            messages_for_model = dict(
                zip(cut_plan.covered_indices, cut_plan.prune_covered_messages(), strict=True)
            )
        tokens = {index: self.counter.message(message) for index, message in middle.items()}
        chunks = split_chunks(
            cut_plan.history.messages,
            cut_plan.covered_indices,
            self.leaf_tokens,
            tokens.__getitem__,
        )
        journals = self._build_journals(chunks, middle, thread_state, last_turn)
        leaves = []
        for chunk, journal in zip(chunks, journals, strict=True):
            leaf = LeafMessages(
                summary_input.hide_secrets([middle[index] for index in chunk]),
                summary_input.hide_secrets([messages_for_model[index] for index in chunk]),
                turns=[cut_plan.history.turns[index] for index in chunk],
                message_ids=[message_ids[index] for index in chunk],
                tokens=sum(tokens[index] for index in chunk),
                journal=journal,
            )
            leaves.append(leaf)
        return leaves

    def _build_journals(
        self,
        runs: Sequence[Sequence[int]],
        messages: Mapping[int, Message],
        thread_state: ThreadState,
        last_turn: int,
    ) -> list[Journal]:
        """Return the journal of each run. All runs are read first: a later run may fix errors of earlier ones."""
        input_facts = self.summary_input.cut_plan.history.facts
        turns = self.summary_input.cut_plan.history.turns
        facts_by_index: dict[int, MessageFacts] = {}
        for index, message in messages.items():
            facts = input_facts[index]
            facts_by_index[index] = facts if message is facts.message else MessageFacts(message)
        journal_builders = []
        for run in runs:
            run_facts = [facts_by_index[index] for index in run]
            run_turns = [turns[index] for index in run]
            journal_builders.append(JournalBuilder.read(run_facts, run_turns, thread_state))
        journals = []
        for run, journal_builder in zip(runs, journal_builders, strict=True):
            journal = journal_builder.build_journal(thread_state)
            first_entry, *other_entries = journal.entries
            is_continued = turns[run[0]] == last_turn
            journals.append(
                Journal(
                    (replace(first_entry, is_continued=is_continued), *other_entries),
                    journal.quiet_message_count,
                )
            )
            last_turn = turns[run[-1]]
        return journals


def restore_leaf_messages(node: Node, graph: StoredGraph) -> LeafMessages:
    """Return the messages of a leaf from the stored originals, redacted for a model."""
    ids = [int(source) for source in node.sources]
    messages = shorten_lookup_answers([graph.originals[message_id].message for message_id in ids])
    pruned = prune_messages(messages, protect_from=len(messages))
    turns = number_turns(map(MessageFacts, messages), turns_before=node.first_turn - 1)
    return LeafMessages(
        [redact_message(message) for message in messages],
        [redact_message(message) for message in pruned],
        turns=[max(turn, node.first_turn) for turn in turns],
        message_ids=ids,
        tokens=node.covered_tokens,
    )


def shorten_lookup_answers(messages: Messages) -> list[Message]:
    """Cut the answer of each lookup tool to its first line, because other nodes cover the originals that it quotes."""
    lookup_ids = {
        call.id for message in messages for call in calls_of(message) if is_lookup_tool(call.name)
    }
    if not lookup_ids:
        return list(messages)

    def edit(result: ToolResult, _: object) -> Any:
        line = shorten_answer(result.text)
        if result.call_id not in lookup_ids or line == result.text:
            return result.content
        return with_text(result.content, line)

    return [edit_results(message, edit) for message in messages]
