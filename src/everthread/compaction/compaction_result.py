"""The result of a compaction: the new messages, the summary, and the reasons and costs; two results become one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from everthread.compaction.summarizers.summarizer import Verification
from everthread.core.messages import Message, Messages
from everthread.core.types import Node


class CompactionLevel(IntEnum):
    """The strength of a compaction: after an overflow each attempt is stronger than the one before."""

    NORMAL = 0
    HALF_TAIL = 1
    LATEST_GROUP = 2


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a compaction: tokens before and after it, and a note."""

    name: str
    before: int
    after: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The result of compacting a list of messages. `changed` is False when nothing could be made smaller."""

    messages: list[Message]
    summary: str
    """The whole summary message's text, or an empty string when nothing changed."""
    tokens_before: int
    tokens_after: int
    covered: tuple[int, ...] = ()
    """Indices of the input's messages that the summary covers."""
    kept: tuple[int | None, ...] = ()
    """The input index of each message of the result, or None for a new one."""
    changed: bool = True
    reason: str = ""
    """The reason why nothing changed, or the trigger of the compaction."""
    author: str = ""
    phases: tuple[Phase, ...] = ()
    verification: Verification = field(default_factory=Verification)
    to_store: tuple[Any, ...] = ()
    """The outputs that the result cites (`core.tool_outputs.OutputToStore`). They must be stored before it is used."""
    boundaries: tuple[str, ...] = ()
    """The end of the head and the start of the tail, with reasons."""
    steps: tuple[str, ...] = ()
    """The reductions needed for the tail to fit."""
    warnings: tuple[str, ...] = ()
    system_note: str = ""
    """A block to add to the system prompt at a thread's first compaction."""
    usage: tuple[Mapping[str, Any], ...] = ()
    duration: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    """The engine's state after the compaction is committed."""
    nodes: tuple[Node, ...] = ()
    """Summaries of a graph that the result cites, to be stored in the same transaction."""

    def __repr__(self) -> str:
        figures = (
            f"{len(self.messages)} messages, {self.tokens_before:,} -> {self.tokens_after:,} tokens"
        )
        return f"<Compaction: {figures}{'' if self.changed else ', unchanged'}>"


def append_new_messages(
    prepared: Compaction, new_messages: Messages, prepared_count: int
) -> Compaction:
    """Return a compaction of the whole list: the compacted first `prepared_count` messages, then `new_messages`."""
    return replace(
        prepared,
        messages=[*prepared.messages, *new_messages],
        kept=(
            *prepared.kept,
            *range(prepared_count, prepared_count + len(new_messages)),
        ),
    )


def merge_compactions(first: Compaction, second: Compaction) -> Compaction:
    """Merge two successive compactions into one of the original list. `second` compacted the result of `first`."""
    first_indices = first.kept
    newly_covered = [
        first_index for index in second.covered if (first_index := first_indices[index]) is not None
    ]
    merged = replace(
        first,
        messages=second.messages,
        kept=tuple(None if index is None else first_indices[index] for index in second.kept),
        covered=(
            *first.covered,
            *sorted(set(newly_covered) - set(first.covered)),
        ),
        tokens_after=second.tokens_after,
        to_store=(*first.to_store, *second.to_store),
        steps=(*first.steps, *second.steps),
        nodes=(*first.nodes, *second.nodes),
    )
    if not second.summary:
        return merged
    authors = dict.fromkeys((first.author, second.author))
    return replace(merged, summary=second.summary, state=second.state, author=", ".join(authors))
