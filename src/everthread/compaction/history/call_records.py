"""List the calls of a history, each with its result and its effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.history.tool_calls import (
    EDIT_MARK,
    MAX_ERROR_LINE_CHARS,
    CallEffect,
    CallWithOutput,
    parse_edit_blocks,
)
from everthread.core.messages import ToolCall, text_of
from everthread.core.secrets.redaction import clip_words
from everthread.core.text import one_line
from everthread.core.user_words import TaskEnd, find_task_ends


class ToolCallRecord(NamedTuple):
    """The effect of a call, the index of its message, and the turn it belongs to."""

    message_index: int
    turn: int
    effect: CallEffect


UnmatchedResults = dict[str, list[tuple[MessageFacts, int]]]
"""Results that no call has taken yet, by call id. Each is a message, and the position among its results."""


def read_calls(
    facts: Sequence[MessageFacts],
    turns: Sequence[int],
    start: int = 0,
    unmatched_results: UnmatchedResults | None = None,
) -> list[ToolCallRecord]:
    """Return every call from `start` on with its first result, in order.

    `unmatched_results`: results that no call has taken yet.
    """
    unmatched_results = {} if unmatched_results is None else unmatched_results
    for message_facts in facts[start:]:
        for number, result in enumerate(message_facts.results):
            unmatched_results.setdefault(result.call_id, []).append((message_facts, number))
    records: list[ToolCallRecord] = []
    for index in range(start, len(facts)):
        message_facts = facts[index]
        if message_facts.calls:
            calls_with_output = tuple(
                [_take_result(call, unmatched_results.get(call.id)) for call in message_facts.calls]
            )
            effects = _read_effects(message_facts, calls_with_output)
            records += (ToolCallRecord(index, turns[index], effect) for effect in effects)
        elif message_facts.message.get("role") == "user":
            for task_end in find_task_ends(text_of(message_facts.message)):
                effect = _describe_task_end(task_end)
                records.append(ToolCallRecord(index, turns[index], effect))
        elif (
            message_facts.without_summary is not None
            and message_facts.message.get("role") == "assistant"
            and EDIT_MARK in (text := text_of(message_facts.without_summary))
        ):
            message_facts.effects = message_facts.effects or (
                (),
                tuple(parse_edit_blocks(text)),
            )
            records += (
                ToolCallRecord(index, turns[index], effect) for effect in message_facts.effects[1]
            )
    return records


def _read_effects(
    message_facts: MessageFacts, calls_with_output: tuple[CallWithOutput | None, ...]
) -> tuple[CallEffect, ...]:
    """Return the effects of a message's calls; read them anew only if other results were found."""
    if message_facts.effects is None or message_facts.effects[0] != calls_with_output:
        pairs = zip(message_facts.calls, calls_with_output, strict=True)
        effects = [
            (call_with_output or CallWithOutput(call, None)).effect()
            for call, call_with_output in pairs
        ]
        message_facts.effects = (calls_with_output, tuple(effects))
    return message_facts.effects[1]


def _describe_task_end(task_end: TaskEnd) -> CallEffect:
    """Return the end of a background task as an effect; only the state knows which command it was."""
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


def _take_result(
    call: ToolCall, matching_results: list[tuple[MessageFacts, int]] | None
) -> CallWithOutput | None:
    """Remove the first of these results, and return it with the call; None if there is no result."""
    if not matching_results:
        return None
    facts, number = matching_results.pop(0)
    return facts.read_result(number, call)
