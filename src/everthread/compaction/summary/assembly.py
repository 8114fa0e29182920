"""Assemble head, summary and tail into one valid list of messages."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from everthread.compaction.cutting.cut_plan import CutPlan
from everthread.compaction.summary.summary_message import read_text_file
from everthread.core.message_repair import repair
from everthread.core.messages import (
    SYSTEM_ROLES,
    Message,
    calls_of,
    parts_of,
    with_content,
)
from everthread.core.summary_marks import is_summary, mark_summary, without_summary
from everthread.core.turns import is_user_message
from everthread.wire.permanent_parts import has_fixed_position, join_instructions

KeptMessage = tuple[Message, int | None]
"""A message and its index in the input, or None for a new message."""


def make_system_note(plan: CutPlan) -> str:
    """Return the note that a thread's first compaction adds to the system prompt, or an empty string later."""
    return "" if plan.earlier_summary.text else read_text_file("system_note")


def assemble_messages(
    plan: CutPlan, text: str, note: str
) -> tuple[list[Message], tuple[int | None, ...]]:
    """Return the compacted messages, and the input index of each, or None for a new message."""
    cut = plan.cut
    fitted_messages = cut.messages
    head = _keep_messages(fitted_messages, range(cut.head_end))
    tail = _keep_messages(fitted_messages, range(cut.tail_start, len(fitted_messages)))
    kept_user = cut.kept_user_message
    if kept_user is not None:
        index = None
        if cut.kept_user_index is not None and kept_user is fitted_messages[cut.kept_user_index]:
            index = cut.kept_user_index
        tail.insert(0, (kept_user, index))
    if note:
        head = _add_note(head, note)
    indices = plan.permanent.list_indices_between(cut.head_end, cut.tail_start)
    permanent = [(plan.permanent.messages[index], index) for index in indices]
    instructions = [entry for entry in permanent if entry[0]["role"] in SYSTEM_ROLES]
    other_messages = [entry for entry in permanent if entry[0]["role"] not in SYSTEM_ROLES]
    kept_messages = _put_instructions(
        _insert_summary([*head, *other_messages], tail, text), instructions
    )
    repair_result = repair([message for message, _ in kept_messages], in_flight=True)
    return repair_result.messages, tuple(
        None if index is None else kept_messages[index][1]
        for index in repair_result.original_indexes
    )


def _keep_messages(messages: list[Message], indices: range) -> list[KeptMessage]:
    """Return the messages at these indices, without the earlier summary that was merged into one of them."""
    pairs = ((without_summary(messages[index]), index) for index in indices)
    return [
        (remainder, index if remainder is messages[index] else None)
        for remainder, index in pairs
        if remainder is not None
    ]


def _add_note(head: list[KeptMessage], note: str) -> list[KeptMessage]:
    """Add the note to the head as a separate block of the system message, so that the text before it stays cached."""
    for index, (message, _) in enumerate(head):
        if message["role"] in ("system", "developer"):
            if any(part.get("text") == note for part in parts_of(message)):
                return head
            system_message = with_content(
                message, [*parts_of(message), {"type": "text", "text": note}]
            )
            return [*head[:index], (system_message, None), *head[index + 1 :]]
    return head


class SummaryPlacement(Enum):
    """How a summary gets between the head and the tail."""

    USER_MESSAGE = "user message"
    ASSISTANT_MESSAGE = "assistant message"
    MERGED_INTO_HEAD = "merged into the last message of the head"
    MERGED_INTO_TAIL = "merged into the first message of the tail"


def _choose_placement(head: list[KeptMessage], tail: list[KeptMessage]) -> SummaryPlacement:
    """Choose a role that neither neighbour has, or else the neighbour that takes the summary.

    Merge the summary into the latest user message only if nothing else is possible, because that message should stay
    unchanged.
    """
    message_before = head[-1][0] if head else None
    message_after = tail[0][0] if tail else None
    role_before = message_before["role"] if message_before else ""
    role_after = message_after["role"] if message_after else ""
    follows_results = role_before == "tool" and role_after in ("", "assistant")
    neighbour_roles = {
        _get_speaking_role(message) for message in (message_before, message_after) if message
    }
    if follows_results or "user" not in neighbour_roles:
        return SummaryPlacement.USER_MESSAGE
    has_user_in_head = any(message["role"] == "user" for message, _ in head)
    if "assistant" not in neighbour_roles and has_user_in_head and tail:
        return SummaryPlacement.ASSISTANT_MESSAGE
    if message_before and role_before != "system" and not calls_of(message_before):
        has_later_user_message = any(is_user_message(message) for message, _ in tail)
        if has_later_user_message or not is_user_message(message_before):
            return SummaryPlacement.MERGED_INTO_HEAD
    if role_after == "user":
        return SummaryPlacement.MERGED_INTO_TAIL
    if role_before == "user":
        return SummaryPlacement.MERGED_INTO_HEAD
    return SummaryPlacement.USER_MESSAGE


def _insert_summary(
    head: list[KeptMessage], tail: list[KeptMessage], text: str
) -> list[KeptMessage]:
    """Insert the summary between head and tail, marked as a summary."""
    match _choose_placement(head, tail):
        case SummaryPlacement.USER_MESSAGE:
            return [*head, _mark_as_summary({"role": "user", "content": text}), *tail]
        case SummaryPlacement.ASSISTANT_MESSAGE:
            return [*head, _mark_as_summary({"role": "assistant", "content": text}), *tail]
        case SummaryPlacement.MERGED_INTO_HEAD:
            merged_message = _add_text(head[-1][0], text)
            return [*head[:-1], _mark_as_summary(merged_message), *tail]
        case SummaryPlacement.MERGED_INTO_TAIL:
            merged_message = _add_text(tail[0][0], text, at_start=True)
            return [*head, _mark_as_summary(merged_message), *tail[1:]]


def _put_instructions(
    messages: list[KeptMessage], instructions: Sequence[KeptMessage]
) -> list[KeptMessage]:
    """Put system messages from the middle before the summary, or else directly after it, in their original order."""
    result = list(messages)
    min_position = 0
    for message, index in instructions:
        earlier_positions = [
            position
            for position, (_, origin) in enumerate(result)
            if origin is not None and origin < (index or 0)
        ]
        min_position = max([min_position, *(position + 1 for position in earlier_positions)])
        position = _find_position(result, message, min_position)
        result.insert(position, (message, index))
        min_position = position + 1
    return _join_instructions(result)


def _find_position(messages: Sequence[KeptMessage], instruction: Message, min_position: int) -> int:
    """Return the position for a system message. Anthropic accepts one only between the user's side and an answer."""
    summary_position = next(
        position for position, (message, _) in enumerate(messages) if is_summary(message)
    )
    is_merged = without_summary(messages[summary_position][0]) is not None
    fallback = max(summary_position + is_merged, min_position)
    if not has_fixed_position(instruction):
        return fallback
    positions = [
        position
        for position in range(min_position, len(messages) + 1)
        if _accepts_instructions(messages, position)
    ]
    positions_before = [position for position in positions if position <= summary_position]
    if positions_before:
        return positions_before[0]
    if positions:
        return positions[0]
    return fallback


def _accepts_instructions(messages: Sequence[KeptMessage], position: int) -> bool:
    """Return whether a system message may be put at this position."""
    message_before = messages[position - 1][0] if position else None
    message_after = messages[position][0] if position < len(messages) else None
    follows_user = message_before is not None and _get_speaking_role(message_before) in (
        "user",
        *SYSTEM_ROLES,
    )
    return follows_user and (message_after is None or message_after["role"] == "assistant")


def _join_instructions(messages: Sequence[KeptMessage]) -> list[KeptMessage]:
    """Join adjacent system messages if the API accepts only one at a time. A joined message counts as new."""
    result: list[KeptMessage] = []
    for message, index in messages:
        is_next = (
            bool(result)
            and message["role"] in SYSTEM_ROLES
            and result[-1][0]["role"] in SYSTEM_ROLES
        )
        joined_messages = join_instructions([result[-1][0], message]) if is_next else [message]
        if is_next and len(joined_messages) == 1:
            result[-1] = (joined_messages[0], None)
        else:
            result.append((message, index))
    return result


def _mark_as_summary(message: Message) -> KeptMessage:
    """Return the message marked as a summary, as a new message."""
    return mark_summary(message), None


def _get_speaking_role(message: Message) -> str:
    """Return the role of a message, in which results count as the user's."""
    return {"tool": "user", "function": "user"}.get(message["role"], message["role"])


def _add_text(message: Message, text: str, *, at_start: bool = False) -> Message:
    """Return the message with a text added after its content, or before it."""
    content = message.get("content")
    if isinstance(content, list):
        part = {"type": "text", "text": text}
        return with_content(message, [part, *content] if at_start else [*content, part])
    pair = (text, content) if at_start else (content, text)
    return with_content(message, "\n\n".join(part for part in pair if part))
