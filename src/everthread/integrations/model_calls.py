"""The values of a framework's model call, before and after it is made to fit the window."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from everthread.core.messages import Message, ToolCall, calls_of
from everthread.core.tool_outputs import OutputLimits, replace_reader_name
from everthread.core.types import System
from everthread.thread.caller.prepared_call import PreparedCall
from everthread.thread.events import Event
from everthread.thread.large_results import LargeOutput, cite_large_results
from everthread.thread.wire_messages import encode_value


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call that a framework is about to send."""

    messages: Sequence[Message]
    """The whole history in core form, without the system prompt."""
    native_messages: Sequence[Any]
    """The same messages in the framework's form, in which unchanged messages are sent."""
    model: str
    conversation_key: str = ""
    """The framework's name for the conversation; if empty, the messages identify it."""
    system: System = None
    tools: Sequence[dict[str, Any]] = ()
    owner: str = ""
    """The owner of the conversation, if the framework serves several. Owners never share threads."""
    window: int | None = None
    """The model's window, if the framework knows it."""
    base_url: str = ""
    max_tokens: int | None = None


class HistoryMessage:
    """A `CallerMessage`: one message of a framework's history."""

    def __init__(self, value: Message, *, is_native: bool = True) -> None:
        self.value = value
        self.is_native = is_native
        """Whether the message is sent in the framework's own form."""

    @cached_property
    def text(self) -> str:
        return encode_value(self.value)

    @property
    def raw(self) -> bytes:
        return self.text.encode()


SentItem = int | Message
"""An index into the framework's history, or a message made here."""


@dataclass(frozen=True, slots=True)
class FittedCall:
    """A model call that fits the window, and the thread's call that will record its answer."""

    call: ModelCall
    prepared_call: PreparedCall
    items: Sequence[SentItem]
    note: str = ""
    """The note about summaries, to append to the system prompt."""
    output_cap: int | None = None
    """The output cap to send, or None for the framework's own."""
    events: Sequence[Event] = field(default_factory=list)
    """Events since the previous call, for the framework's own log."""

    @property
    def is_changed(self) -> bool:
        """Whether the messages to send differ from the framework's history."""
        return list(self.items) != list(range(len(self.call.messages)))

    def messages_to_send(self, convert: Callable[[Message], Any]) -> list[Any]:
        """Return the messages to send: the framework's own, and Everthread's converted by `convert`."""
        return [
            self.call.native_messages[item] if isinstance(item, int) else convert(item)
            for item in self.items
        ]


def cite_large_outputs(
    messages: Sequence[Message], limits: OutputLimits, reader: str | None
) -> tuple[list[HistoryMessage], list[LargeOutput]]:
    """Return the history with citations in place of results that are too large, and the outputs to store.

    `reader`: the framework's tool that reads stored outputs, or None if it has none.
    """
    history: list[HistoryMessage] = []
    large_outputs: list[LargeOutput] = []
    calls: dict[str, ToolCall] = {}
    for are_results, messages_run in itertools.groupby(
        messages, lambda message: message["role"] == "tool"
    ):
        turn = list(messages_run)
        if not are_results:
            calls = {call.id: call for message in turn for call in calls_of(message)}
            history += map(HistoryMessage, turn)
            continue
        shortened_messages, new_outputs = cite_large_results(turn, calls, limits)
        large_outputs += new_outputs
        for original, shortened in zip(turn, shortened_messages, strict=True):
            if shortened is original:
                history.append(HistoryMessage(original))
            else:
                message = replace_reader_name(shortened, reader)
                history.append(HistoryMessage(message, is_native=False))
    return history, large_outputs


def make_items(prepared: PreparedCall, history: Sequence[HistoryMessage]) -> list[SentItem]:
    """Return the messages to send: indexes into the framework's history, and messages that were changed or added."""
    items: list[SentItem] = []
    for item in prepared.list_items():
        if not isinstance(item, int):
            changed_message: Any = item
            items.append(changed_message)
        else:
            message = history[item]
            items.append(item if message.is_native else message.value)
    return items
