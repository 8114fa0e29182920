"""Read the history that a compaction works on: every message once, and at the next compaction only the new ones.

`MessageFacts` holds the facts of one message, independent of its neighbours. `HistoryReader` keeps the last history:
most histories continue it, and equal messages have equal facts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from everthread.compaction.history.call_lines import MAX_LINE_CHARS
from everthread.compaction.history.effect_kinds import NamedFiles, find_named_files
from everthread.compaction.history.tool_calls import CallEffect, CallWithOutput
from everthread.compaction.summary.user_quotes import (
    UserQuote,
    count_quote_tokens,
    make_user_quote,
)
from everthread.core.messages import (
    RESULT_BLOCK_KINDS,
    Message,
    Messages,
    ToolCall,
    ToolResult,
    calls_of,
    kind_of,
    message_key,
    results_of,
)
from everthread.core.secrets.redaction import find_secrets, redact
from everthread.core.summary_marks import is_summary, is_summary_first, without_summary
from everthread.core.tokens import TokenCounter
from everthread.core.turns import Span, count_head_messages, is_user_message, user_text
from everthread.core.user_words import find_typed_words
from everthread.wire.permanent_parts import PermanentPart, find_permanent_parts

if TYPE_CHECKING:
    from everthread.compaction.journal.steps import Step

T = TypeVar("T")


class ResultText(NamedTuple):
    """The text of a tool's result."""

    text: str
    states_failure: bool
    """Whether the result has the mark of a failed call."""


class MessageFacts:
    """The facts of one message. Facts that only a summary needs are computed when a summary is written."""

    words_without_secrets: str | None = None
    """The user's words, redacted."""
    calls_with_output: tuple[CallWithOutput | None, ...] = ()
    """Each result of the message with the call that it answers."""
    effects: tuple[tuple[CallWithOutput | None, ...], tuple[CallEffect, ...]] | None = None
    """The calls of the message with their results, and the effects of the calls (see `call_records`)."""
    step: tuple[tuple[CallEffect, ...], Step] | None = None
    """The effects, and their description for the journal."""
    closing_text: str | None = None
    """The whole text of the message, reduced to the closing words of a turn in the journal."""

    def __init__(self, message: Message) -> None:
        role = message.get("role")
        self.message = message
        self.is_summary = is_summary(message)
        self.without_summary = without_summary(message) if self.is_summary else message
        """The message without an earlier summary in it; None if it is nothing but a summary."""
        self.calls: Sequence[ToolCall] = calls_of(message) if role == "assistant" else ()
        self.results: Sequence[ToolResult] = results_of(message)
        self.outputs: Sequence[ResultText] = (
            _list_outputs(message, self.results) if self.results else ()
        )
        """The text of each result."""
        self.user_words = user_text(message) if role == "user" else ""
        """The user's words in the message."""
        self.is_user = role == "user" and (bool(self.user_words) or is_user_message(message))
        self.secret_names: dict[str, bool] = {}
        """For each name that was looked up in the message, whether it is a secret or part of one."""
        self._remembered: dict[str, tuple[Any, Any]] = {}
        """Computed values with the inputs that they were computed from, by name."""

    def remember(self, name: str, inputs: Any, compute: Callable[[], T]) -> T:
        """Return the value of this name. Compute it only if its inputs differ from the last ones."""
        remembered = self._remembered.get(name)
        if remembered is None or remembered[0] != inputs:
            remembered = self._remembered[name] = inputs, compute()
        value: T = remembered[1]
        return value

    def count_tokens(self, counter: TokenCounter) -> int:
        """Count the message's tokens."""
        return self.remember("tokens", counter, lambda: counter.message(self.message))

    def read_result(self, result_number: int, call: ToolCall | None) -> CallWithOutput:
        """Return one of the message's results with the call that it answers."""
        calls_with_output = self.calls_with_output or (None,) * len(self.results)
        facts = calls_with_output[result_number]
        if facts is None or facts.call is not call:
            text, failed = self.outputs[result_number]
            facts = CallWithOutput(
                call, text, name=self.results[result_number].tool_name, failed=failed
            )
            self.calls_with_output = (
                *calls_with_output[:result_number],
                facts,
                *calls_with_output[result_number + 1 :],
            )
        return facts

    def find_named_files(self, calls: tuple[ToolCall | None, ...]) -> Sequence[NamedFiles]:
        """Return the files that the calls name, the last call first. `calls`: the calls that the message answers."""
        return self.remember("named files", calls, lambda: _list_named_files(calls))

    def find_permanent_parts(self) -> Sequence[PermanentPart]:
        """Return the parts of the message that are not conversation (see `permanent_messages`)."""
        return self.remember("permanent parts", None, lambda: find_permanent_parts(self.message))

    def make_quote(self, number: int, counter: TokenCounter) -> tuple[UserQuote, int]:
        """Return a quote of the user's words under this number, and its tokens."""

        def make() -> tuple[UserQuote, int]:
            quote = make_user_quote(number, self.redacted_words())
            return quote, count_quote_tokens(quote, counter.text)

        return self.remember("quote", (number, counter), make)

    def find_typed_words(self, calls: Sequence[ToolCall | None]) -> str:
        """Return the redacted words that the user typed into the calls that the message answers."""
        return self.remember("typed words", None, lambda: _find_typed_words(calls, self.outputs))

    def redacted_words(self) -> str:
        """Return the user's words without secrets."""
        if self.words_without_secrets is None:
            self.words_without_secrets = redact(self.user_words) if self.user_words else ""
        return self.words_without_secrets


def _list_named_files(calls: Sequence[ToolCall | None]) -> list[NamedFiles]:
    """Return the files that calls name, the last call first."""
    files = (find_named_files(call) for call in reversed(calls) if call)
    return [named_files for named_files in files if named_files]


def _find_typed_words(calls: Sequence[ToolCall | None], outputs: Sequence[ResultText]) -> str:
    """Return the redacted words that the user typed into calls with these outputs."""
    texts = (
        find_typed_words(text, call.name if call else "", failed=failed)
        for call, (text, failed) in zip(calls, outputs, strict=True)
    )
    return redact("\n".join(filter(None, texts)))


def redact_user_words(facts: Iterable[MessageFacts]) -> None:
    """Search the user's words of all these messages for secrets at once, which is cheaper than one by one.

    If a secret is found, each message is redacted separately when its words are needed.
    """
    new_facts = [
        message_facts for message_facts in facts if message_facts.words_without_secrets is None
    ]
    if not find_secrets("\n\n".join(message_facts.user_words for message_facts in new_facts)):
        for message_facts in new_facts:
            message_facts.words_without_secrets = message_facts.user_words


def _list_outputs(message: Message, results: Sequence[ToolResult]) -> list[ResultText]:
    """Return the text of each result, and whether it states that the call failed."""
    content: Any = message.get("content")
    if message.get("role") == "tool":
        is_error = message.get("is_error") is True
        return [ResultText(result.text, is_error) for result in results]
    failed_flags = (
        part.get("is_error") is True for part in content if kind_of(part) in RESULT_BLOCK_KINDS
    )
    return [
        ResultText(result.text, failed)
        for result, failed in zip(results, failed_flags, strict=True)
    ]


_NO_FACTS: Mapping[Hashable, MessageFacts] = MappingProxyType({})


class HistoryReader:
    """A reader that keeps the last history, so that it reads only the new messages of a history that continues it."""

    def __init__(self) -> None:
        self._last_history = CompactionHistory([])
        self._counter: TokenCounter | None = None

    def read(
        self,
        messages: Messages,
        counter: TokenCounter,
        last_covered_turns: tuple[int, ...],
    ) -> CompactionHistory:
        """Read and count a history. `last_covered_turns`: the last turn that each summary in it covers."""
        all_messages = list(messages)
        last_history = self._last_history
        known_facts = _NO_FACTS
        if all_messages[: len(last_history.messages)] != last_history.messages:
            known_facts = {
                message_key(message_facts.message): message_facts
                for message_facts in last_history.facts
            }
            last_history = CompactionHistory([])
        history = last_history.extend(all_messages, known_facts)
        if counter is not self._counter:
            history.sizes = []
        history.sizes += (
            message_facts.count_tokens(counter)
            for message_facts in history.facts[len(history.sizes) :]
        )
        if history.last_covered_turns != last_covered_turns:
            history.last_covered_turns = last_covered_turns
            history.turns = number_turns(history.facts, last_covered_turns=last_covered_turns)
        self._last_history = history
        self._counter = counter
        return history


@dataclass(slots=True)
class CompactionHistory:
    """The messages of one compaction, read and counted, with their calls, results and turns."""

    messages: list[Message]
    last_covered_turns: tuple[int, ...] = (0,)
    """The last turn that each summary in the list covers."""
    facts: list[MessageFacts] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Tokens of each message counted so far."""
    turns: list[int] = field(default_factory=list)
    """The number of the user message that each message belongs to."""
    user_indices: list[int] = field(default_factory=list)
    """Indices of the user's messages."""
    summary_indices: list[int] = field(default_factory=list)
    """Indices of the messages that hold an earlier summary."""
    groups: list[Span] = field(default_factory=list)
    """Spans of messages that must not be split: calls with their results, or single messages."""
    head_end: int = 0
    """The end of the head, which is never summarised."""
    calls_by_id: dict[str, ToolCall] = field(default_factory=dict)
    """The latest call with each id."""
    answered_calls: dict[int, tuple[ToolCall | None, ...]] = field(default_factory=dict)
    """For each message with results, the calls they answer."""
    newest_outputs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each long output, the index of the last message that has it, and its position among the message's results."""
    _unanswered_calls: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Message indices of the calls without a result, by call id."""
    _group_ends: dict[int, int] = field(default_factory=dict)
    """The end of the group of each message with calls."""

    @property
    def latest_user_index(self) -> int | None:
        """The index of the latest user message, or None."""
        return self.user_indices[-1] if self.user_indices else None

    def extend(
        self,
        messages: list[Message],
        known_facts: Mapping[Hashable, MessageFacts] = _NO_FACTS,
    ) -> CompactionHistory:
        """Return the history of a longer list that begins with this one.

        `known_facts`: facts of messages read before, by message key.
        """
        start = len(self.messages)
        facts = [_reuse_facts(message, known_facts) for message in messages[start:]]
        remaining_turns = self.last_covered_turns[len(self.summary_indices) :]
        turns = number_turns(
            facts,
            turns_before=self.turns[-1] if self.turns else 0,
            last_covered_turns=remaining_turns,
        )
        extended = CompactionHistory(
            messages,
            self.last_covered_turns,
            facts=[*self.facts, *facts],
            sizes=[*self.sizes],
            turns=[*self.turns, *turns],
            user_indices=[
                *self.user_indices,
                *(
                    index
                    for index, message_facts in enumerate(facts, start)
                    if message_facts.is_user
                ),
            ],
            summary_indices=[
                *self.summary_indices,
                *(
                    index
                    for index, message_facts in enumerate(facts, start)
                    if message_facts.is_summary
                ),
            ],
            groups=[*self.groups],
            head_end=self.head_end,
            calls_by_id={**self.calls_by_id},
            answered_calls={**self.answered_calls},
            newest_outputs={**self.newest_outputs},
            _unanswered_calls={**self._unanswered_calls},
            _group_ends={**self._group_ends},
        )
        first_changed = extended._pair_results(start)
        extended._split_groups(first_changed)
        if not self.user_indices or first_changed <= self.head_end or self.head_end >= start - 1:
            extended.head_end = find_head_end(messages, extended.groups)
        return extended

    def _pair_results(self, start: int) -> int:
        """Match the results from `start` on with their calls; for a repeated id, with the latest call.

        Return the index of the first message whose group changed.
        """
        first_changed_index = start
        for index in range(start, len(self.facts)):
            facts = self.facts[index]
            for call in facts.calls:
                self.calls_by_id[call.id] = call
                self._unanswered_calls[call.id] = ()
                self._group_ends[index] = index + 1
            for call in facts.calls:
                self._unanswered_calls[call.id] += (index,)
            for result_number, result in enumerate(facts.results):
                call_indices = self._unanswered_calls.get(result.call_id)
                if call_indices:
                    self._unanswered_calls[result.call_id] = call_indices[:-1]
                    self._group_ends[call_indices[-1]] = index + 1
                    first_changed_index = min(first_changed_index, call_indices[-1])
                if len(facts.outputs[result_number].text) > MAX_LINE_CHARS:
                    self.newest_outputs[facts.outputs[result_number].text] = (
                        index,
                        result_number,
                    )
            if facts.results:
                self.answered_calls[index] = tuple(
                    self.calls_by_id.get(result.call_id) for result in facts.results
                )
        return first_changed_index

    def _split_groups(self, first_changed_index: int) -> None:
        """Split the messages into groups again, from the group of this message on."""
        while self.groups and self.groups[-1].end > first_changed_index:
            self.groups.pop()
        index = self.groups[-1].end if self.groups else 0
        while index < len(self.messages):
            start = index
            end = index + 1
            while index < end:
                end = max(end, self._group_ends.get(index, 0))
                index += 1
            self.groups.append(Span(start, end))


def _reuse_facts(message: Message, known_facts: Mapping[Hashable, MessageFacts]) -> MessageFacts:
    """Return the known facts of an equal message, or new facts."""
    found_facts = known_facts.get(message_key(message)) if known_facts else None
    if found_facts is not None and found_facts.message == message:
        return found_facts
    return MessageFacts(message)


def find_head_end(messages: Messages, groups: Sequence[Span]) -> int:
    """Return the end of the protected start: before an earlier summary, and never inside a group."""
    end = count_head_messages(messages)
    end = next((index for index in range(end) if _begins_with_summary(messages[index])), end)
    for group in groups:
        if group.end >= end:
            return group.start if group.end > end else end
    return end


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
