"""The history that a compaction works on, and the facts of each of its messages.

`MessageFacts` holds the facts of one message, independent of its neighbours; `CompactionHistory` what depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from everthread.compaction.history.call_lines import MAX_LINE_CHARS
from everthread.compaction.history.tool_calls import CallWithOutput
from everthread.core.messages import (
    RESULT_BLOCK_KINDS,
    Message,
    ToolCall,
    ToolResult,
    calls_of,
    kind_of,
    results_of,
)
from everthread.core.secrets.redaction import redact
from everthread.core.summary_marks import is_summary, is_summary_first, without_summary
from everthread.core.turns import (
    CallPairs,
    CallPosition,
    Span,
    count_head_messages,
    is_user_message,
    pair_calls,
    split_into_spans,
    user_text,
)
from everthread.core.user_words import find_typed_words


class OutputText(NamedTuple):
    """The text of a tool's result."""

    text: str
    is_marked_failed: bool
    """Whether the result has the mark of a failed call."""


class MessageFacts:
    """The facts of one message, read once. They never change."""

    def __init__(self, message: Message) -> None:
        role = message.get("role")
        self.message = message
        self.is_summary = is_summary(message)
        self.without_summary = without_summary(message) if self.is_summary else message
        """The message without an earlier summary in it, or None if it is nothing but a summary."""
        self.calls: Sequence[ToolCall] = calls_of(message) if role == "assistant" else ()
        self.results: Sequence[ToolResult] = results_of(message)
        self.outputs: Sequence[OutputText] = (
            _list_outputs(message, self.results) if self.results else ()
        )
        """The text of each result."""
        self.user_words = user_text(message) if role == "user" else ""
        """The user's words in the message."""
        self.is_user = role == "user" and (bool(self.user_words) or is_user_message(message))

    @property
    def redacted_words(self) -> str:
        """The user's words without secrets."""
        return redact(self.user_words) if self.user_words else ""

    def read_result(self, number: int, call: ToolCall | None) -> CallWithOutput:
        """Return one of the message's results with the call that it answers, or with None if that is unknown."""
        output = self.outputs[number]
        tool_name = self.results[number].tool_name
        return CallWithOutput(call, output.text, name=tool_name, failed=output.is_marked_failed)


def _list_outputs(message: Message, results: Sequence[ToolResult]) -> list[OutputText]:
    """Return the text of each result, and whether it is marked as that of a failed call."""
    content: Any = message.get("content")
    if message.get("role") == "tool":
        is_error = message.get("is_error") is True
        return [OutputText(result.text, is_error) for result in results]
    failed_flags = (
        part.get("is_error") is True for part in content if kind_of(part) in RESULT_BLOCK_KINDS
    )
    return [
        OutputText(result.text, failed)
        for result, failed in zip(results, failed_flags, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class CompactionHistory:
    """The messages of one compaction, with their calls, results and turns."""

    messages: list[Message]
    sizes: Sequence[int] = ()
    """Tokens of each message. Only the planner of a cut needs them."""
    last_covered_turns: Sequence[int] = ()
    """The last turn that each summary among the messages covers."""

    @cached_property
    def facts(self) -> list[MessageFacts]:
        """The facts of each message."""
        return [MessageFacts(message) for message in self.messages]

    @cached_property
    def turns(self) -> list[int]:
        """The number of the user message that each message belongs to."""
        return number_turns(self.facts, last_covered_turns=self.last_covered_turns)

    @cached_property
    def user_indices(self) -> list[int]:
        """Indices of the user's messages."""
        return [index for index, facts in enumerate(self.facts) if facts.is_user]

    @property
    def latest_user_index(self) -> int | None:
        """The index of the latest user message, or None."""
        return self.user_indices[-1] if self.user_indices else None

    @property
    def last_assistant_index(self) -> int | None:
        """The index of the last assistant message, or None."""
        return next(
            (
                index
                for index in range(len(self.messages) - 1, -1, -1)
                if self.messages[index].get("role") == "assistant"
            ),
            None,
        )

    @cached_property
    def summary_indices(self) -> list[int]:
        """Indices of the messages that hold an earlier summary."""
        return [index for index, facts in enumerate(self.facts) if facts.is_summary]

    @cached_property
    def call_pairs(self) -> CallPairs:
        """The calls and the results that answer them."""
        return pair_calls(self.messages)

    @cached_property
    def groups(self) -> list[Span]:
        """Spans of messages that must not be split: calls with their results, or single messages."""
        return split_into_spans(self.messages, self.call_pairs)

    @cached_property
    def head_end(self) -> int:
        """The end of the head, which is never summarised. It is before an earlier summary, and never inside a group."""
        end = count_head_messages(self.messages)
        end = next(
            (index for index in range(end) if _begins_with_summary(self.messages[index])), end
        )
        return max((group.end for group in self.groups if group.end <= end), default=0)

    @cached_property
    def last_output_positions(self) -> dict[str, CallPosition]:
        """For each long output, the position of the last result that has it."""
        return {
            output.text: CallPosition(index, number)
            for index, facts in enumerate(self.facts)
            for number, output in enumerate(facts.outputs)
            if len(output.text) > MAX_LINE_CHARS
        }

    @cached_property
    def typed_words(self) -> Mapping[int, str]:
        """The redacted words that the user typed into calls, by the index of the message with the results."""
        words_by_index = {
            index: self._find_typed_words(index)
            for index, facts in enumerate(self.facts)
            if facts.results
        }
        return {index: words for index, words in words_by_index.items() if words}

    def find_answered_call(self, index: int, number: int) -> ToolCall | None:
        """Return the call that a result of the message at this index answers, or None if that call is missing."""
        call = self.call_pairs.call_by_result.get(CallPosition(index, number))
        return self.facts[call.message_index].calls[call.number] if call else None

    def read_result(self, index: int, number: int) -> CallWithOutput:
        """Return a result of the message at this index with the call that it answers."""
        return self.facts[index].read_result(number, self.find_answered_call(index, number))

    def _find_typed_words(self, index: int) -> str:
        """Return the redacted words that the user typed into the calls that a message answers."""
        texts: list[str] = []
        for number, output in enumerate(self.facts[index].outputs):
            call = self.find_answered_call(index, number)
            tool_name = call.name if call else ""
            texts.append(find_typed_words(output.text, tool_name, failed=output.is_marked_failed))
        return redact("\n".join(filter(None, texts)))


def _begins_with_summary(message: Message) -> bool:
    """Return whether a message is a summary or begins with one."""
    if without_summary(message) is None:
        return True
    return is_summary(message) and is_summary_first(message)


def number_turns(
    facts: Iterable[MessageFacts],
    *,
    turns_before: int = 0,
    last_covered_turns: Sequence[int] = (),
) -> list[int]:
    """Return the turn of each message: the number of the user message that it belongs to, after `turns_before` turns.

    `last_covered_turns`: the last turn that each summary among the messages covers.
    """
    turns: list[int] = []
    turn = turns_before
    remaining_turns = iter(last_covered_turns)
    for message_facts in facts:
        if message_facts.is_summary:
            starts_with_summary = is_summary_first(message_facts.message)
            last_covered_turn = next(remaining_turns, 0)
            if starts_with_summary:
                turn = max(turn, last_covered_turn) + message_facts.is_user
            else:
                turn = max(turn + message_facts.is_user, last_covered_turn)
        else:
            turn += message_facts.is_user
        turns.append(turn)
    return turns
