"""Read the effects of the calls in a list of messages, each call with its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.history.tool_calls import (
    EDIT_MARK,
    MAX_ERROR_LINE_CHARS,
    CallEffect,
    CallWithOutput,
    parse_edit_blocks,
)
from everthread.core.messages import text_of
from everthread.core.secrets.redaction import clip_words
from everthread.core.text import one_line
from everthread.core.turns import CallPosition, pair_calls
from everthread.core.user_words import TaskEnd, find_task_ends

EffectsByIndex = Mapping[int, Sequence[CallEffect]]
"""The effects of messages by their index, in order. A message without an effect has no entry."""


def read_effects(facts: Sequence[MessageFacts]) -> EffectsByIndex:
    """Return the effects of an assistant's calls and edits, and of the background tasks that a client reports as ended.

    A call has its first result among these messages.
    """
    result_by_call = pair_calls([message_facts.message for message_facts in facts]).result_by_call
    effects_by_index: dict[int, Sequence[CallEffect]] = {}
    for index, message_facts in enumerate(facts):
        effects: list[CallEffect] = []
        for number, call in enumerate(message_facts.calls):
            result = result_by_call.get(CallPosition(index, number))
            if result is None:
                effects.append(CallWithOutput(call, None).read_effect())
            else:
                call_with_output = facts[result.message_index].read_result(result.number, call)
                effects.append(call_with_output.read_effect())
        effects = effects or _read_effects_of_text(message_facts)
        if effects:
            effects_by_index[index] = effects
    return effects_by_index


def _read_effects_of_text(message_facts: MessageFacts) -> list[CallEffect]:
    """Return the effects that the text of a message without calls states."""
    role = message_facts.message.get("role")
    if role == "user":
        return list(map(_describe_task_end, find_task_ends(text_of(message_facts.message))))
    text = text_of(message_facts.without_summary or {})
    return parse_edit_blocks(text) if role == "assistant" and EDIT_MARK in text else []


def _describe_task_end(task_end: TaskEnd) -> CallEffect:
    """Return the end of a background task as an effect. Only the state knows which command started the task."""
    description = clip_words(one_line(task_end.description), MAX_ERROR_LINE_CHARS)
    is_failure = task_end.status == "failed"
    return CallEffect(
        "looked",
        "",
        "",
        failed=is_failure,
        errors=(description,) if is_failure and description else (),
        arguments={"task_id": task_end.task_id},
        output=f"<status>{task_end.status}</status>\n{description}",
    )
