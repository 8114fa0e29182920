"""The messages that the model of a conversation sees."""

from __future__ import annotations

from collections.abc import Iterable

from everthread.core.messages import Message, ToolCall, calls_of, results_of
from everthread.core.summary_marks import mark_summary
from everthread.core.tokens import TokenCounter
from everthread.store.records import StoredMessage


class VisibleMessages:
    """The messages of a session in memory. They were read from the store or confirmed by it."""

    def __init__(self, counter: TokenCounter, summary_key: bytes) -> None:
        self._counter = counter
        self._summary_key = summary_key
        self.stored: list[StoredMessage] = []
        self.bodies: list[Message] = []
        self.ids: set[int] = set()
        self.open_calls: dict[str, ToolCall] = {}
        """By its id, each tool call that has no result yet."""
        self.tokens = 0
        """Tokens of all messages, as estimated here."""

    def add(self, message: StoredMessage) -> None:
        body = message.body
        self.stored.append(message)
        self.ids.add(message.id)
        self.bodies.append(
            mark_summary(body, self._summary_key) if message.kind == "summary" else body
        )
        self.tokens += self._counter.message(body)
        for result in results_of(body):
            self.open_calls.pop(result.call_id, None)
        self.open_calls |= {call.id: call for call in calls_of(body)}

    def replace_all(self, messages: Iterable[StoredMessage]) -> None:
        """Show these messages instead."""
        self.stored = []
        self.bodies = []
        self.ids = set()
        self.open_calls = {}
        self.tokens = 0
        for message in messages:
            self.add(message)

    def use_counter(self, counter: TokenCounter) -> None:
        """Count the tokens again, for another model."""
        self._counter = counter
        self.tokens = sum(counter.message(message.body) for message in self.stored)
