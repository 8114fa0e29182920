"""Find the messages that no summary covers: instructions in the list, definitions of tools, items of a provider.

Each stays once, in order; if one replaces another, only the newest stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everthread.compaction.history.compaction_history import (
    CompactionHistory,
    MessageFacts,
)
from everthread.core.messages import SYSTEM_ROLES, Message, text_of
from everthread.core.turns import Span
from everthread.wire.permanent_parts import (
    PermanentPart,
    find_answered_call_ids,
    find_permanent_parts,
    keep_parts,
)


@dataclass(frozen=True, slots=True)
class PermanentMessages:
    """The messages that always stay, by index, each reduced to its permanent parts."""

    messages: dict[int, Message] = field(default_factory=dict)
    mixed_indices: frozenset[int] = frozenset()
    """Indices of messages that also hold conversation, which the summary covers."""

    @property
    def standalone_indices(self) -> frozenset[int]:
        """Indices of messages without any conversation."""
        return frozenset(self.messages) - self.mixed_indices

    def list_indices_between(self, start: int, end: int) -> list[int]:
        """Return the indices in `[start, end)`."""
        return [index for index in self.messages if start <= index < end]


def find_permanent_messages(history: CompactionHistory) -> PermanentMessages:
    """Find the parts of a history that are not conversation."""
    parts_by_index = {
        index: parts
        for index, facts in enumerate(history.facts)
        if (parts := find_permanent_parts(facts.message))
    }
    if not parts_by_index:
        return PermanentMessages()
    latest_parts = _drop_replaced(parts_by_index)
    head_contents = {
        part.content
        for index, parts in parts_by_index.items()
        if index < history.head_end
        for part in parts
    }
    for index, parts in parts_by_index.items():
        if (
            index >= history.head_end
            and index in latest_parts
            and all(part.content in head_contents for part in parts)
        ):
            del latest_parts[index]  # the head already says it
    messages: dict[int, Message] = {}
    mixed_indices: set[int] = set()
    for group in history.groups:
        if any(index in latest_parts for index in range(group.start, group.end)):
            _keep_group_parts(
                history,
                group,
                latest_parts,
                messages=messages,
                mixed_indices=mixed_indices,
            )
    return PermanentMessages(dict(sorted(messages.items())), frozenset(mixed_indices))


def _drop_replaced(
    parts_by_index: Mapping[int, Sequence[PermanentPart]],
) -> dict[int, list[PermanentPart]]:
    """Return the parts that no later part replaces."""
    later_keys: set[str] = set()
    latest_parts: dict[int, list[PermanentPart]] = {}
    for index in sorted(parts_by_index, reverse=True):
        parts = [
            part for part in parts_by_index[index] if not part.keys or not part.keys <= later_keys
        ]
        if parts:
            latest_parts[index] = parts
        for part in parts_by_index[index]:
            later_keys |= part.keys
    return latest_parts


def _keep_group_parts(
    history: CompactionHistory,
    group: Span,
    latest_parts: dict[int, list[PermanentPart]],
    *,
    messages: dict[int, Message],
    mixed_indices: set[int],
) -> None:
    """Add the permanent parts of a group to `messages`, each result together with its call."""
    answered_ids: set[str] = set()
    for index in range(group.start, group.end):
        positions = {part.position for part in latest_parts.get(index, ())}
        answered_ids |= find_answered_call_ids(history.facts[index].message, positions)
    for index in range(group.start, group.end):
        facts = history.facts[index]
        kept_call_ids = {call.id for call in facts.calls} & answered_ids
        parts = latest_parts.get(index, [])
        if not parts and not kept_call_ids:
            continue
        messages[index] = keep_parts(
            facts.message, {part.position for part in parts}, kept_call_ids
        )
        has_no_conversation = facts.message.get("role") in (
            *SYSTEM_ROLES,
            "tool",
        ) or _only_makes_calls(facts, kept_call_ids)
        if not has_no_conversation:
            mixed_indices.add(index)


def _only_makes_calls(facts: MessageFacts, call_ids: set[str]) -> bool:
    """Return whether a message makes these calls and does nothing else."""
    return (
        bool(call_ids) and len(facts.calls) == len(call_ids) and not text_of(facts.message).strip()
    )
