"""Encode a history in Anthropic's form; what an earlier request encoded is not encoded again."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from everthread.core.message_repair import OPENING_TEXT
from everthread.core.messages import (
    Messages,
    kind_of,
)
from everthread.wire.alternating_roles import (
    EncodedMessage,
    group_by_role,
    needs_opening,
)
from everthread.wire.anthropic.anthropic_encoding import (
    AnthropicCallIds,
    encode_message,
    find_certain_role,
)


def encode_messages(
    messages: Messages,
    *,
    model: str | None = None,
    encoded_history: EncodedHistory | None = None,
) -> list[dict[str, Any]]:
    """Return wire messages for `model`; without a model, keep the reasoning of every model.

    `encoded_history`: the encoding of an earlier, shorter list; the shared beginning is not encoded again.
    """
    reusable_history = EncodedHistory()
    if encoded_history and encoded_history.is_start_of(messages, model):
        reusable_history = encoded_history
    wire_messages = reusable_history.wire_messages[:]
    call_ids = reusable_history.call_ids.copy()
    start = len(reusable_history.messages)
    settled_count = _count_settled_messages(messages, start) if encoded_history else start
    if encoded_history and settled_count > start:
        wire_messages += _encode_new_messages(
            messages[start:settled_count], model, call_ids, is_start=not start
        )
        encoded_history.messages = messages[:settled_count]
        encoded_history.model = model
        encoded_history.call_ids = call_ids.copy()
        encoded_history.wire_messages = wire_messages[:]
        start = settled_count
    wire_messages += _encode_new_messages(messages[start:], model, call_ids, is_start=not start)
    return wire_messages


def _encode_new_messages(
    messages: Messages, model: str | None, call_ids: AnthropicCallIds, *, is_start: bool
) -> list[dict[str, Any]]:
    encoded_messages = [
        encoded_message
        for message in messages
        if (encoded_message := encode_message(message, model, call_ids)) is not None
    ]
    wire_messages = [_join_neighbours(neighbours) for neighbours in group_by_role(encoded_messages)]
    if is_start and messages and needs_opening(encoded_messages, assistant_role="assistant"):
        wire_messages.insert(0, {"role": "user", "content": OPENING_TEXT})
    return wire_messages


def _count_settled_messages(messages: Messages, start: int) -> int:
    """Return how many first messages will hardly change any more. The last of them is never joined with the next."""
    if len(messages) - start < _NEAR_END_MESSAGES + _MIN_SETTLED_BATCH:
        return start
    for cut in range(len(messages) - _NEAR_END_MESSAGES, start, -1):
        role_before = find_certain_role(messages[cut - 1])
        role_after = find_certain_role(messages[cut])
        if role_before and role_after and role_before != role_after:
            return cut
    return start


_NEAR_END_MESSAGES = 32
"""Cache marks are expected on the last N messages. A mark further back forces a full encoding."""
_MIN_SETTLED_BATCH = 16


@dataclass(slots=True)
class EncodedHistory:
    """The encoded start of a growing history.

    Its wire messages are returned again with every request, in a new list: they are treated as immutable, as all
    messages are. Checking each of them would dominate the cost of a turn (`benchmarks session`).
    """

    messages: Messages = ()
    model: str | None = None
    wire_messages: list[dict[str, Any]] = field(default_factory=list)
    call_ids: AnthropicCallIds = field(default_factory=AnthropicCallIds)

    def is_start_of(self, messages: Messages, model: str | None) -> bool:
        """Return whether the list begins with the very same messages."""
        is_same = model == self.model and len(messages) >= len(self.messages)
        return is_same and all(map(operator.is_, self.messages, messages))


def _join_neighbours(neighbours: list[EncodedMessage]) -> dict[str, Any]:
    """Return one native message with the blocks of neighbouring messages of one role, results first."""
    first = neighbours[0]
    if len(neighbours) == 1 and first.native is not None:
        return dict(first.native)
    blocks = [block for neighbour in neighbours for block in neighbour.parts]
    if len(blocks) == 1:
        return {"role": first.role, "content": blocks}
    if first.native is not None and all(neighbour.native is not None for neighbour in neighbours):
        return {**first.native, "content": blocks}
    return {
        "role": first.role,
        "content": sorted(blocks, key=lambda block: kind_of(block) != "tool_result"),
    }
