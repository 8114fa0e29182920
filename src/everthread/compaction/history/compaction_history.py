"""A history that a compaction reads: every message once, and at the next compaction only the new ones.

`MessageFacts` holds the facts of one message, independent of its neighbours. `Memory` keeps the history that was read
last: a conversation grows at its end, and the facts of a message hold for every equal message.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from everthread.compaction.history.tool_calls import (
    MAX_LINE_CHARS,
    CallFacts,
    Effect,
    NamedFiles,
    named_files,
)
from everthread.compaction.summary.user_quotes import (
    UserMessage,
    entry_tokens,
    user_message,
)
from everthread.core.messages import (
    RESULT_BLOCKS,
    Call,
    Message,
    Messages,
    Result,
    calls_of,
    find_typed_words,
    kind_of,
    message_key,
    results_of,
)
from everthread.core.secrets.redaction import find_secrets, redact
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import (
    Span,
    count_head_messages,
    is_summary,
    is_summary_first,
    is_user_message,
    user_text,
    without_summary,
)
from everthread.wire.definitions import PermanentPart, find_permanent_parts

if TYPE_CHECKING:
    from everthread.compaction.journal.steps import Step
    from everthread.compaction.names.names_in_use import MessageNames


Output = tuple[str, bool]
"""A tool's result: its text, and whether it states that the call failed."""


class MessageFacts:
    """The facts of one message. Those that only a summary needs are filled in when one is written."""

    size: tuple[TokenCounter, int] | None = None
    """Its tokens, by the counter that counted them."""
    redacted: str | None = None
    """The user's words without secrets."""
    beginning: str | None = None
    """The beginning of these words, for the task section."""
    counted_entry: tuple[UserMessage, TokenCounter, int] | None = None
    """The entry for these words in the section of user quotes, the counter, and the entry's tokens."""
    pruned: Any = None
    """The pruned message, and the inputs of its pruning (`pruning`)."""
    pruned_size: tuple[TokenCounter, int] | None = None
    readings: tuple[CallFacts | None, ...] = ()
    """Its results, each with the call that it answers."""
    effects: tuple[tuple[CallFacts | None, ...], tuple[Effect, ...]] | None = None
    """The effects of its calls, with the readings they come from (`state`)."""
    step: tuple[tuple[Effect, ...], Step] | None = None
    """The effects in words, for the journal."""
    closing: str | None = None
    """The message's text as the closing words of a turn in the journal."""
    reply: str | None = None
    """The words, without secrets, that the user typed into the calls that it answers."""
    names: MessageNames | None = None
    """The names in its calls and text (`names_in_use`)."""
    output_names: tuple[str, ...] | None = None
    """The names at the ends of its outputs."""
    output_files: tuple[str, ...] | None = None
    """The files in its outputs, read only if the message is old."""
    shown_names: tuple[Message, frozenset[str]] | None = None
    """The message as it was shown last, whole or pruned, and all names in it."""
    named_files: tuple[tuple[Call | None, ...], tuple[NamedFiles, ...]] | None = None
    """The calls that it answers, and the files that they name, newest first."""
    permanent: Sequence[PermanentPart] | None = None
    """Its parts that are not conversation (`permanent`)."""

    def __init__(self, message: Message) -> None:
        role = message.get("role")
        self.message = message
        self.is_summary = is_summary(message)
        self.rest = without_summary(message) if self.is_summary else message
        """The message without a summary; None if it is nothing else."""
        self.calls: Sequence[Call] = calls_of(message) if role == "assistant" else ()
        self.results: Sequence[Result] = results_of(message)
        self.outputs: Sequence[Output] = (
            _outputs(message, self.results) if self.results else ()
        )
        """The results as texts."""
        self.words = user_text(message) if role == "user" else ""
        """The user's words in the message."""
        self.is_user = role == "user" and (bool(self.words) or is_user_message(message))
        self.secret_names: dict[str, bool] = {}
        """Whether a name is a secret, or part of one, for names that were checked in its text."""

    def count(self, counter: TokenCounter) -> int:
        """Count the message's tokens."""
        if self.size is None or self.size[0] is not counter:
            self.size = counter, counter.message(self.message)
        return self.size[1]

    def reading(self, number: int, call: Call | None) -> CallFacts:
        """Return one of its results as the answer to a call."""
        readings = self.readings or (None,) * len(self.results)
        facts = readings[number]
        if facts is None or facts.call is not call:
            text, failed = self.outputs[number]
            facts = CallFacts(call, text, name=self.results[number].name, failed=failed)
            self.readings = (*readings[:number], facts, *readings[number + 1 :])
        return facts

    def files_named_by(self, calls: tuple[Call | None, ...]) -> tuple[NamedFiles, ...]:
        """Return the files that these calls name, which it answers; the last call first."""
        if self.named_files is None or self.named_files[0] != calls:
            files = (named_files(call) for call in reversed(calls) if call)
            self.named_files = calls, tuple(filter(None, files))
        return self.named_files[1]

    def find_permanent_parts(self) -> Sequence[PermanentPart]:
        """Return its parts that are not conversation."""
        if self.permanent is None:
            self.permanent = find_permanent_parts(self.message)
        return self.permanent

    def entry(self, number: int, counter: TokenCounter) -> tuple[UserMessage, int]:
        """Return the user's words as an entry under this number, and its tokens."""
        if (
            self.counted_entry is None
            or self.counted_entry[0].number != number
            or self.counted_entry[1] is not counter
        ):
            message = user_message(number, self.redacted_words())
            self.counted_entry = message, counter, entry_tokens(message, counter.text)
        return self.counted_entry[0], self.counted_entry[2]

    def typed_reply(self, calls: Sequence[Call | None]) -> str:
        """Return the words, without secrets, that the user typed into these calls, which it answers."""
        if self.reply is None:
            texts = (
                find_typed_words(text, call.name if call else "", failed=failed)
                for call, (text, failed) in zip(calls, self.outputs, strict=True)
            )
            self.reply = redact("\n".join(filter(None, texts)))
        return self.reply

    def redacted_words(self) -> str:
        """Return the user's words without secrets."""
        if self.redacted is None:
            self.redacted = redact(self.words) if self.words else ""
        return self.redacted


def redact_words(facts: Iterable[MessageFacts]) -> None:
    """Redact the user's words of these messages; all at once if they hold no secret, which is cheaper."""
    new_facts = [
        message_facts for message_facts in facts if message_facts.redacted is None
    ]
    if not find_secrets(
        "\n\n".join(message_facts.words for message_facts in new_facts)
    ):
        for message_facts in new_facts:
            message_facts.redacted = message_facts.words


def _outputs(message: Message, results: Sequence[Result]) -> list[Output]:
    content: Any = message.get("content")
    if message.get("role") == "tool":
        return [(result.text, message.get("is_error") is True) for result in results]
    flags = (
        part.get("is_error") is True
        for part in content
        if kind_of(part) in RESULT_BLOCKS
    )
    return [
        (result.text, failed) for result, failed in zip(results, flags, strict=True)
    ]


_NOTHING: Mapping[Hashable, MessageFacts] = MappingProxyType({})


class Memory:
    """The history that was read last. A history that continues it costs only its new messages."""

    def __init__(self) -> None:
        self._last = CompactionHistory([])
        self._counter: TokenCounter | None = None

    def read(
        self, messages: Messages, counter: TokenCounter, covered: tuple[int, ...]
    ) -> CompactionHistory:
        """Read and count the history, including the turns of its summaries, which end with `covered`."""
        message_list = list(messages)
        last_history = self._last
        read_before = _NOTHING
        if message_list[: len(last_history.messages)] != last_history.messages:
            read_before = {
                message_key(message_facts.message): message_facts
                for message_facts in last_history.facts
            }
            last_history = CompactionHistory([])
        history = last_history.extend(message_list, read_before)
        if counter is not self._counter:
            history.sizes = []
        history.sizes += (
            message_facts.count(counter)
            for message_facts in history.facts[len(history.sizes) :]
        )
        if history.covered != covered:
            history.covered = covered
            history.turns = number_turns(history.facts, covered=covered)
        self._last = history
        self._counter = counter
        return history


@dataclass(slots=True)
class CompactionHistory:
    """The messages of one compaction, read and counted, with their calls, results and turns."""

    messages: list[Message]
    covered: tuple[int, ...] = (0,)
    """For each summary in the list, the last turn that it covers."""
    facts: list[MessageFacts] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Tokens of each message counted so far."""
    turns: list[int] = field(default_factory=list)
    """The number of the user message that each message belongs to."""
    users: list[int] = field(default_factory=list)
    """The indices of the user's messages."""
    summaries: list[int] = field(default_factory=list)
    """The indices of messages that contain a summary of this package."""
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
    """The end of its group for each message with calls."""

    @property
    def latest_user(self) -> int | None:
        return self.users[-1] if self.users else None

    def extend(
        self,
        messages: list[Message],
        read_before: Mapping[Hashable, MessageFacts] = _NOTHING,
    ) -> CompactionHistory:
        """Return the history of a longer list that begins with this one.

        `read_before`: known facts of messages by key.
        """
        start = len(self.messages)
        facts = [_facts_of(message, read_before) for message in messages[start:]]
        covered_turns = self.covered[len(self.summaries) :]
        turns = number_turns(
            facts, before=self.turns[-1] if self.turns else 0, covered=covered_turns
        )
        grown = CompactionHistory(
            messages,
            self.covered,
            facts=[*self.facts, *facts],
            sizes=[*self.sizes],
            turns=[*self.turns, *turns],
            users=[
                *self.users,
                *(
                    index
                    for index, message_facts in enumerate(facts, start)
                    if message_facts.is_user
                ),
            ],
            summaries=[
                *self.summaries,
                *(
                    index
                    for index, message_facts in enumerate(facts, start)
                    if message_facts.is_summary
                ),
            ],
            pieces=[*self.pieces],
            head_end=self.head_end,
            calls={**self.calls},
            answered_calls={**self.answered_calls},
            newest={**self.newest},
            _waiting={**self._waiting},
            _ends={**self._ends},
        )
        first_changed = grown._pair_results(start)
        grown._cut_pieces(first_changed)
        if (
            not self.users
            or first_changed <= self.head_end
            or self.head_end >= start - 1
        ):
            grown.head_end = head_end_of(messages, grown.pieces)
        return grown

    def _pair_results(self, start: int) -> int:
        """Give the new results to their calls: of an id the latest; the first place whose group is another now."""
        first_changed = start
        for index in range(start, len(self.facts)):
            facts = self.facts[index]
            for call in facts.calls:
                self.calls[call.id] = call
                self._waiting[call.id] = ()
                self._ends[index] = index + 1
            for call in facts.calls:
                self._waiting[call.id] += (index,)
            for number, result in enumerate(facts.results):
                owners = self._waiting.get(result.call_id)
                if owners:
                    self._waiting[result.call_id] = owners[:-1]
                    self._ends[owners[-1]] = index + 1
                    first_changed = min(first_changed, owners[-1])
                if len(facts.outputs[number][0]) > MAX_LINE_CHARS:
                    self.newest[facts.outputs[number][0]] = index, number
            if facts.results:
                self.answered_calls[index] = tuple(
                    self.calls.get(result.call_id) for result in facts.results
                )
        return first_changed

    def _cut_pieces(self, first_changed: int) -> None:
        """Cut the messages into pieces again, from the piece with this index on."""
        while self.pieces and self.pieces[-1].end > first_changed:
            self.pieces.pop()
        index = self.pieces[-1].end if self.pieces else 0
        while index < len(self.messages):
            start = index
            end = index + 1
            while index < end:
                end = max(end, self._ends.get(index, 0))
                index += 1
            self.pieces.append(Span(start, end))


def _facts_of(
    message: Message, read_before: Mapping[Hashable, MessageFacts]
) -> MessageFacts:
    known_facts = read_before.get(message_key(message)) if read_before else None
    return (
        known_facts
        if known_facts is not None and known_facts.message == message
        else MessageFacts(message)
    )


def head_end_of(messages: Messages, pieces: Sequence[Span]) -> int:
    """Return the end of the protected start: before an earlier summary, and never inside a group."""
    end = count_head_messages(messages)
    end = next(
        (index for index in range(end) if _begins_with_summary(messages[index])), end
    )
    for piece in pieces:
        if piece.end >= end:
            return piece.start if piece.end > end else end
    return end


def _begins_with_summary(message: Message) -> bool:
    """Return whether a message is a summary or begins with one; its own text then belongs after the next one."""
    if without_summary(message) is None:
        return True
    return is_summary(message) and is_summary_first(message)


def number_turns(
    facts: Iterable[MessageFacts], *, before: int = 0, covered: Sequence[int] = ()
) -> list[int]:
    """Return, for each message, the number of its user message, counted from `before`.

    `covered`: the last number that each summary among them covers.
    """
    turns: list[int] = []
    turn = before
    ends = iter(covered)
    for message_facts in facts:
        if message_facts.is_summary:
            starts_with_summary = is_summary_first(message_facts.message)
            end = next(ends, 0)
            turn = (
                max(turn, end) + message_facts.is_user
                if starts_with_summary
                else max(turn + message_facts.is_user, end)
            )
        else:
            turn += message_facts.is_user
        turns.append(turn)
    return turns
