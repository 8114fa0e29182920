"""A history as a compaction reads it: every message once, and at the next compaction only the new ones.

`MessageFacts` is what one message holds, whatever stands around it. `Memory` keeps the history that was read last: a
conversation grows at its end, and the facts of a message hold for every equal message.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from everthread.compaction.tool_calls import LINE, CallFacts, Effect
from everthread.compaction.words import UserMessage, entry_tokens, user_message
from everthread.core.messages import (
    RESULT_BLOCKS,
    Call,
    Message,
    Messages,
    Result,
    calls_of,
    kind_of,
    message_key,
    results_of,
)
from everthread.core.redaction import find_secrets, redact
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import (
    Span,
    head_length,
    is_summary,
    is_user_message,
    summary_leads,
    user_text,
    without_summary,
)

if TYPE_CHECKING:
    from everthread.compaction.journal import Step


Output = tuple[str, bool]
"""A tool's result: its text, and whether it says of itself that the call failed."""


class MessageFacts:
    """The facts of one message. Those that only a summary needs are filled in when one is written."""

    size: tuple[TokenCounter, int] | None = None
    """Its tokens, by the counter that counted them."""
    redacted: str | None = None
    """The user's words without secrets."""
    beginning: str | None = None
    """The beginning of these words, for the task section."""
    counted_entry: tuple[UserMessage, TokenCounter, int] | None = None
    """The words as an entry of What the User Said, the counter, and the entry's tokens."""
    pruned: Any = None
    """The pruned message, and what the pruning depended on (`pruning`)."""
    pruned_size: tuple[TokenCounter, int] | None = None
    readings: tuple[CallFacts | None, ...] = ()
    """Its results, each with the call that it answers."""
    effects: tuple[tuple[CallFacts | None, ...], tuple[Effect, ...]] | None = None
    """The effects of its calls, with the readings they come from (`state`)."""
    step: tuple[tuple[Effect, ...], Step] | None = None
    """The effects in words, for the journal."""
    closing: str | None = None
    """The message's text as the closing words of a turn in the journal."""

    def __init__(self, message: Message) -> None:
        role = message.get("role")
        self.message = message
        self.is_summary = is_summary(message)
        self.rest = without_summary(message) if self.is_summary else message
        """The message without a summary of ours; None where it is nothing else."""
        self.calls: Sequence[Call] = calls_of(message) if role == "assistant" else ()
        self.results: Sequence[Result] = results_of(message)
        self.outputs: Sequence[Output] = _outputs(message, self.results) if self.results else ()
        """The results as texts."""
        self.words = user_text(message) if role == "user" else ""
        """The user's words in the message."""
        self.is_user = role == "user" and (bool(self.words) or is_user_message(message))

    def count(self, counter: TokenCounter) -> int:
        """Its tokens."""
        if self.size is None or self.size[0] is not counter:
            self.size = counter, counter.message(self.message)
        return self.size[1]

    def reading(self, number: int, call: Call | None) -> CallFacts:
        """One of its results as the answer to a call."""
        readings = self.readings or (None,) * len(self.results)
        facts = readings[number]
        if facts is None or facts.call is not call:
            text, failed = self.outputs[number]
            facts = CallFacts(call, text, name=self.results[number].name, failed=failed)
            self.readings = (*readings[:number], facts, *readings[number + 1 :])
        return facts

    def entry(self, number: int, counter: TokenCounter) -> tuple[UserMessage, int]:
        """The user's words as an entry under this number, and its tokens."""
        if self.counted_entry is None or self.counted_entry[0].number != number or self.counted_entry[1] is not counter:
            message = user_message(number, self.redacted_words())
            self.counted_entry = message, counter, entry_tokens(message, counter.text)
        return self.counted_entry[0], self.counted_entry[2]

    def redacted_words(self) -> str:
        """The user's words without secrets."""
        if self.redacted is None:
            self.redacted = redact(self.words) if self.words else ""
        return self.redacted


def redact_words(facts: Iterable[MessageFacts]) -> None:
    """Redact the user's words of these messages: all at once where they hold no secret, which is cheaper."""
    new = [one for one in facts if one.redacted is None]
    if not find_secrets("\n\n".join(one.words for one in new)):
        for one in new:
            one.redacted = one.words


def _outputs(message: Message, results: Sequence[Result]) -> list[Output]:
    content: Any = message.get("content")
    if message.get("role") == "tool":
        return [(result.text, message.get("is_error") is True) for result in results]
    flags = (part.get("is_error") is True for part in content if kind_of(part) in RESULT_BLOCKS)
    return [(result.text, failed) for result, failed in zip(results, flags, strict=True)]


_NOTHING: Mapping[Hashable, MessageFacts] = MappingProxyType({})


class Memory:
    """The history that was read last. A history that continues it costs only its new messages."""

    def __init__(self) -> None:
        self._last = CompactionHistory([])
        self._counter: TokenCounter | None = None

    def read(self, messages: Messages, counter: TokenCounter, covered: tuple[int, ...]) -> CompactionHistory:
        """The history, counted; the turns of its summaries, which end with `covered`, count too."""
        current, last, read_before = list(messages), self._last, _NOTHING
        if current[: len(last.messages)] != last.messages:
            read_before = {message_key(one.message): one for one in last.facts}
            last = CompactionHistory([])
        history = last.extend(current, read_before)
        if counter is not self._counter:
            history.sizes = []
        history.sizes += (one.count(counter) for one in history.facts[len(history.sizes) :])
        if history.covered != covered:
            history.covered, history.turns = covered, number_turns(history.facts, covered=covered)
        self._last, self._counter = history, counter
        return history


@dataclass(slots=True)
class CompactionHistory:
    """The messages of one compaction, read and counted, with their calls, results and turns."""

    messages: list[Message]
    covered: tuple[int, ...] = (0,)
    """For each summary in the list the last turn that it stands for."""
    facts: list[MessageFacts] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Tokens of each, where they were counted."""
    turns: list[int] = field(default_factory=list)
    """For each message the number of the user's message it belongs to."""
    users: list[int] = field(default_factory=list)
    """The indices of the user's messages."""
    summaries: list[int] = field(default_factory=list)
    """The indices of messages with a summary of ours in them."""
    pieces: list[Span] = field(default_factory=list)
    """The spans that must not be split."""
    head_end: int = 0
    calls: dict[str, Call] = field(default_factory=dict)
    """The latest call of each id."""
    answered_calls: dict[int, tuple[Call | None, ...]] = field(default_factory=dict)
    """For each message with results, the calls they answer."""
    newest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The last index of each long output: the message, and which of its results."""
    _waiting: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The indices of calls without a result, by their ids."""
    _ends: dict[int, int] = field(default_factory=dict)
    """For each message with calls, where its group ends."""

    @property
    def latest_user(self) -> int | None:
        return self.users[-1] if self.users else None

    def extend(
        self, messages: list[Message], read_before: Mapping[Hashable, MessageFacts] = _NOTHING
    ) -> CompactionHistory:
        """The history of a list that goes on from this one; `read_before`: facts of messages by their keys."""
        start = len(self.messages)
        facts = [_facts_of(message, read_before) for message in messages[start:]]
        later = self.covered[len(self.summaries) :]
        turns = number_turns(facts, before=self.turns[-1] if self.turns else 0, covered=later)
        grown = CompactionHistory(
            messages, self.covered, [*self.facts, *facts], [*self.sizes], [*self.turns, *turns],
            [*self.users, *(index for index, one in enumerate(facts, start) if one.is_user)],
            [*self.summaries, *(index for index, one in enumerate(facts, start) if one.is_summary)], [*self.pieces],
            self.head_end, {**self.calls}, {**self.answered_calls}, {**self.newest}, {**self._waiting}, {**self._ends},
        )  # fmt: skip
        changed = grown._pair(start)
        grown._cut_pieces(changed)
        if not self.users or changed <= self.head_end or self.head_end >= start - 1:
            grown.head_end = head_end_of(messages, grown.pieces)
        return grown

    def _pair(self, start: int) -> int:
        """Give the new results to their calls: of an id the latest; the first place whose group is another now."""
        changed = start
        for index in range(start, len(self.facts)):
            one = self.facts[index]
            for call in one.calls:
                self.calls[call.id] = call
                self._waiting[call.id] = ()
                self._ends[index] = index + 1
            for call in one.calls:
                self._waiting[call.id] += (index,)
            for number, result in enumerate(one.results):
                owners = self._waiting.get(result.call_id)
                if owners:
                    self._waiting[result.call_id] = owners[:-1]
                    self._ends[owners[-1]] = index + 1
                    changed = min(changed, owners[-1])
                if len(one.outputs[number][0]) > LINE:
                    self.newest[one.outputs[number][0]] = index, number
            if one.results:
                self.answered_calls[index] = tuple(self.calls.get(result.call_id) for result in one.results)
        return changed

    def _cut_pieces(self, changed: int) -> None:
        """Cut the messages into pieces again, from the piece with this index on."""
        while self.pieces and self.pieces[-1].end > changed:
            self.pieces.pop()
        index = self.pieces[-1].end if self.pieces else 0
        while index < len(self.messages):
            start, end = index, index + 1
            while index < end:
                end = max(end, self._ends.get(index, 0))
                index += 1
            self.pieces.append(Span(start, end))


def _facts_of(message: Message, read_before: Mapping[Hashable, MessageFacts]) -> MessageFacts:
    one = read_before.get(message_key(message)) if read_before else None
    return one if one is not None and one.message == message else MessageFacts(message)


def head_end_of(messages: Messages, pieces: Sequence[Span]) -> int:
    """The end of the protected start: before an earlier summary, and never inside a group."""
    end = head_length(messages)
    end = next((index for index in range(end) if without_summary(messages[index]) is None), end)
    for piece in pieces:
        if piece.end >= end:
            return piece.start if piece.end > end else end
    return end


def number_turns(facts: Iterable[MessageFacts], *, before: int = 0, covered: Sequence[int] = ()) -> list[int]:
    """For each message the number of the user's message it belongs to, counted on from `before`.

    `covered`: for each summary among them the last number that it stands for.
    """
    turns: list[int] = []
    turn, ends = before, iter(covered)
    for one in facts:
        if one.is_summary:
            leads, end = summary_leads(one.message), next(ends, 0)
            turn = max(turn, end) + one.is_user if leads else max(turn + one.is_user, end)
        else:
            turn += one.is_user
        turns.append(turn)
    return turns
