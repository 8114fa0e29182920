"""A history as a compaction reads it: every message once, and at the next compaction only the new ones.

`Facts` is what one message holds, whatever stands around it. `Memory` keeps the facts of the history that was read
last, by the messages' identity: messages are immutable, and a conversation grows by appending to the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from everthread.core.messages import RESULT_BLOCKS, Call, Message, Messages, Result, calls_of, kind_of, results_of
from everthread.core.redaction import redact
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import (
    Span,
    cut_spans,
    head_length,
    is_summary,
    is_user_message,
    pair_calls,
    summary_leads,
    user_text,
    without_summary,
)

if TYPE_CHECKING:
    from everthread.compaction.journal import Step
    from everthread.compaction.tool_calls import Effect


Output = tuple[str, bool]
"""A tool's result: its text, and whether it says of itself that the call failed."""


@dataclass(slots=True)
class Facts:
    """What one message holds. What only a summary needs is filled in when one is written."""

    message: Message
    rest: Message | None
    """The message without a summary of ours; None where it is nothing else."""
    calls: Sequence[Call]
    results: Sequence[Result]
    outputs: Sequence[Output]
    """The same results as texts."""
    words: str
    """What the user says in it."""
    is_user: bool
    is_summary: bool
    said: str | None = None
    """The user's words without secrets."""
    pruned: Any = None
    """What pruning made of it, and what that depended on (`pruning`)."""
    effects: tuple[tuple[Output | None, ...], tuple[Effect, ...]] | None = None
    """What its calls did, with the outputs that tells it (`state`)."""
    step: tuple[tuple[Effect, ...], Step] | None = None
    """The same in words, for the journal."""
    closing: str | None = None
    """What it says, as the end of a turn in the journal."""

    def said_safely(self) -> str:
        """What the user says, without secrets."""
        if self.said is None:
            self.said = redact(self.words) if self.words else ""
        return self.said


def read_facts(message: Message) -> Facts:
    """What a message holds."""
    role = message.get("role")
    marked = is_summary(message)
    words = user_text(message) if role == "user" else ""
    results = results_of(message)
    return Facts(
        message,
        without_summary(message) if marked else message,
        calls_of(message) if role == "assistant" else (),
        results,
        _outputs(message, results) if results else (),
        words,
        bool(words) or is_user_message(message),
        marked,
    )


def _outputs(message: Message, results: Sequence[Result]) -> list[Output]:
    content: Any = message.get("content")
    if message.get("role") == "tool":
        return [(result.text, message.get("is_error") is True) for result in results]
    flags = (part.get("is_error") is True for part in content if kind_of(part) in RESULT_BLOCKS)
    return [(result.text, failed) for result, failed in zip(results, flags, strict=True)]


class Memory:
    """The facts of the messages that were read last: it never holds more than one history."""

    def __init__(self) -> None:
        self._known: dict[int, Facts] = {}

    def read(self, messages: Messages) -> list[Facts]:
        known = self._known
        facts = [known.get(id(message)) or read_facts(message) for message in messages]
        self._known = {id(one.message): one for one in facts}
        return facts


@dataclass(slots=True)
class History:
    """The messages of one compaction, read and counted, and how they hang together."""

    messages: list[Message]
    facts: list[Facts]
    sizes: list[int]
    """Tokens of each."""
    pieces: list[Span]
    """What must not be split."""
    head_end: int
    latest_user: int | None
    turns: list[int] = field(default_factory=list)
    """For each message the number of the user's message it belongs to."""

    @classmethod
    def of(cls, messages: Messages, memory: Memory, counter: TokenCounter) -> History:
        given = list(messages)
        facts = memory.read(given)
        groups = pair_calls([one.calls for one in facts], [one.results for one in facts])
        pieces = cut_spans(groups, len(given))
        latest = next((at for at in range(len(facts) - 1, -1, -1) if facts[at].is_user), None)
        return cls(given, facts, list(map(counter.message, given)), pieces, head_end_of(given, pieces), latest)

    def number_turns(self, covered: int) -> None:
        """Number the turns; a summary's numbers, which end with `covered`, count too."""
        self.turns = number_turns(self.facts, covered=covered)


def head_end_of(messages: Messages, pieces: Sequence[Span]) -> int:
    """Where the protected start ends: before an earlier summary, and never inside a group."""
    end = head_length(messages)
    end = next((index for index in range(end) if without_summary(messages[index]) is None), end)
    return next((piece.start for piece in pieces if piece.start < end < piece.end), end)


def number_turns(facts: Iterable[Facts], *, before: int = 0, covered: int = 0) -> list[int]:
    """For each message the number of the user's message it belongs to, counted on from `before`.

    `covered`: the last number that a summary in the list stands for.
    """
    turns: list[int] = []
    turn = before
    for one in facts:
        if one.is_summary:
            leads = summary_leads(one.message)
            turn = max(turn, covered) + one.is_user if leads else max(turn + one.is_user, covered)
        else:
            turn += one.is_user
        turns.append(turn)
    return turns
