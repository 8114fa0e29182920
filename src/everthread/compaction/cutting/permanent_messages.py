"""Find the messages that no summary covers: instructions in the list, definitions of tools, items of a provider.

Each stays once, in order; of two that replace each other the newest stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everthread.compaction.history.compaction_history import (
    CompactionHistory,
    MessageFacts,
)
from everthread.core.messages import SYSTEM_ROLES, Message, text_of
from everthread.core.transcript import Span
from everthread.wire.definitions import (
    PermanentPart,
    find_answered_call_ids,
    keep_parts,
)


@dataclass(frozen=True, slots=True)
class PermanentMessages:
    """The messages that stay, by their places in the input, with only those parts that stay."""

    messages: dict[int, Message] = field(default_factory=dict)
    covered: frozenset[int] = frozenset()
    """Places of messages that also hold conversation: the summary covers the rest of them."""

    @property
    def uncovered(self) -> frozenset[int]:
        """Places of messages without any conversation."""
        return frozenset(self.messages) - self.covered

    def between(self, start: int, end: int) -> list[int]:
        """Return the places in `[start, end)`."""
        return [index for index in self.messages if start <= index < end]


def find_permanent(history: CompactionHistory) -> PermanentMessages:
    """Find everything in a history that is outside the conversation."""
    parts_by_index = {
        index: parts
        for index, facts in enumerate(history.facts)
        if (parts := facts.find_permanent_parts())
    }
    if not parts_by_index:
        return PermanentMessages()
    latest = _drop_replaced(parts_by_index)
    head_contents = {
        part.content
        for index, parts in parts_by_index.items()
        if index < history.head_end
        for part in parts
    }
    for index, parts in parts_by_index.items():
        if (
            index >= history.head_end
            and index in latest
            and all(part.content in head_contents for part in parts)
        ):
            del latest[index]  # the head already says it
    messages: dict[int, Message] = {}
    covered: set[int] = set()
    for piece in history.pieces:
        if any(index in latest for index in range(piece.start, piece.end)):
            _keep_piece(history, piece, latest, messages=messages, covered=covered)
    return PermanentMessages(dict(sorted(messages.items())), frozenset(covered))


def _drop_replaced(
    parts_by_index: Mapping[int, Sequence[PermanentPart]],
) -> dict[int, list[PermanentPart]]:
    """Leave out parts that later parts replace."""
    later_keys: set[str] = set()
    latest: dict[int, list[PermanentPart]] = {}
    for index in sorted(parts_by_index, reverse=True):
        parts = [
            part
            for part in parts_by_index[index]
            if not part.keys or not part.keys <= later_keys
        ]
        if parts:
            latest[index] = parts
        for part in parts_by_index[index]:
            later_keys |= part.keys
    return latest


def _keep_piece(
    history: CompactionHistory,
    piece: Span,
    latest: dict[int, list[PermanentPart]],
    *,
    messages: dict[int, Message],
    covered: set[int],
) -> None:
    """Keep the permanent parts of a piece, and with a result the call that it answers."""
    results: set[str] = set()
    for index in range(piece.start, piece.end):
        positions = {part.position for part in latest.get(index, ())}
        results |= find_answered_call_ids(history.facts[index].message, positions)
    for index in range(piece.start, piece.end):
        facts = history.facts[index]
        calls = {call.id for call in facts.calls} & results
        parts = latest.get(index, [])
        if not parts and not calls:
            continue
        messages[index] = keep_parts(
            facts.message, {part.position for part in parts}, calls
        )
        is_whole = facts.message.get("role") in (*SYSTEM_ROLES, "tool") or _only_calls(
            facts, calls
        )
        if not is_whole:
            covered.add(index)


def _only_calls(facts: MessageFacts, calls: set[str]) -> bool:
    """Return whether a message makes these calls and does nothing else."""
    return (
        bool(calls)
        and len(facts.calls) == len(calls)
        and not text_of(facts.message).strip()
    )
