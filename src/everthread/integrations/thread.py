"""The stored thread of a framework's conversation: takes the whole history, returns messages that fit the window.

The framework's history is not changed. Each of its messages is stored once, under its index and its identity. A
prepared call refers to the framework's own messages by index and adds only summaries and shortened messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.conversation.conversation import Conversation
from everthread.conversation.requests import PreparedRequest
from everthread.conversation.summary_note import note_in
from everthread.conversation.tool_selection import name_of
from everthread.core.messages import Message
from everthread.core.provider_errors import classify_error
from everthread.core.types import Reply, System
from everthread.errors import ModelError
from everthread.store.records import NewMessage
from everthread.thread.events import (
    Event,
)
from everthread.thread.identity import (
    identify_by_calls,
)
from everthread.thread.recovery import TOO_LARGE

_EVENT = "given"
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A model call that a framework is about to send."""

    messages: Sequence[Message]
    """Its whole history in core form, without the system prompt."""
    own: Sequence[Any]
    """The same messages in the framework's form; unchanged ones are sent from here."""
    model: str
    key: str = ""
    """The framework's name for the conversation; empty: see `name_by_opening`."""
    system: System = None
    tools: Sequence[dict[str, Any]] = ()
    owner: str = ""
    """The owner of the conversation, if one framework serves several; threads of two owners never mix."""
    window: int | None = None
    """The model's window, if the framework knows it."""
    base_url: str = ""
    max_tokens: int | None = None


Item = int | Message
"""An index into the framework's history, or a message made here."""


@dataclass(slots=True)
class PreparedCall:
    """A prepared model call: what to send, and the thread that records its answer."""

    thread: FrameworkThread
    call: ModelCall
    items: list[Item] = field(default_factory=list)
    note: str = ""
    """A note about summaries, to be put after the system prompt."""
    cap: int | None = None
    """The output cap, if the provider asked for a lower one."""
    events: list[Event] = field(default_factory=list)
    """Events since the previous call, for the framework's own log."""

    @property
    def is_changed(self) -> bool:
        """Whether what is sent differs from the framework's history."""
        return self.items != list(range(len(self.call.messages)))

    def send(self, write: Callable[[Message], Any]) -> list[Any]:
        """Return the messages to send: the framework's own, and Everthread's converted by `write`."""
        return [
            self.call.own[item] if isinstance(item, int) else write(item)
            for item in self.items
        ]


class FrameworkThread:
    """One thread of the store that follows a framework's history."""

    def __init__(
        self, conversation: Conversation, messages: list[tuple[str, int, bool]]
    ) -> None:
        self.conversation = conversation
        self._messages = messages
        """For each message of the framework: its identity, its id in the store, whether it is stored verbatim."""
        self._lock = asyncio.Lock()
        self.events: list[Event] = []
        """Events that no prepared call has passed on yet."""
        self._tools = [name_of(tool) for tool in conversation.toolbox.given]

    @classmethod
    async def open(cls, conversation: Conversation) -> FrameworkThread:
        """Load the stored messages of a thread."""
        messages = []
        for stored in await conversation.store.history(conversation.id):
            kind, _, identity = stored.event.partition(":")
            if kind == _EVENT:
                identity = identity.rpartition(":")[2]
                messages.append(
                    (identity, stored.id, identify_by_calls(stored.body) == identity)
                )
        return cls(conversation, messages)

    @property
    def identities(self) -> list[str]:
        """The identity of each message."""
        return [identity for identity, _, _ in self._messages]

    async def branch(self, length: int) -> FrameworkThread:
        """A new thread with the first messages of this one."""
        conversation = await self.conversation.branch(self._messages[length - 1][1])
        branch = FrameworkThread(conversation, self._messages[:length])
        branch.events = self.events  # it has its parent's listener
        return branch

    async def prepare(self, call: ModelCall) -> PreparedCall:
        """Store the new messages and prepare the call."""
        async with self._lock:
            if [name_of(tool) for tool in call.tools] != self._tools:
                self._tools = [name_of(tool) for tool in call.tools]
                self.conversation.use_tools(call.tools)
            for (
                name
            ) in self._tools:  # a framework's tools are its own: none is left out
                self.conversation.toolbox.note_call(name)
            await self._store(call.messages)
            return self._make_turn(
                call, await self.conversation.prepare(max_tokens=call.max_tokens)
            )

    async def _store(self, messages: Sequence[Message]) -> None:
        start = len(self._messages)
        identified = [
            (identify_by_calls(message), message) for message in messages[start:]
        ]
        new = [
            NewMessage(message, event=f"{_EVENT}:{index}:{identity}")
            for index, (identity, message) in enumerate(identified, start)
        ]
        stored = {item.event: item for item in await self.conversation.follow(new)}
        for (identity, _), item in zip(identified, new, strict=True):
            stored_message = stored[item.event]
            self._messages.append(
                (
                    identity,
                    stored_message.id,
                    identify_by_calls(stored_message.body) == identity,
                )
            )

    async def recover(self, turn: PreparedCall, error: BaseException) -> PreparedCall:
        """Prepare a smaller call after a refusal. Raises the error itself if it is not about size."""
        if (
            not isinstance(error, Exception)
            or classify_error(error).kind not in TOO_LARGE
        ):
            raise error
        async with self._lock:
            return self._make_turn(
                turn.call, await self.conversation.recover(_model_error(error))
            )

    async def record(
        self,
        turn: PreparedCall,
        message: Message,
        usage: Mapping[str, Any] | None,
        stop: str | None,
    ) -> None:
        """Store the answer and its usage."""
        async with self._lock:
            identity = identify_by_calls(message)
            index = len(turn.call.messages)
            reply = Reply(message, stop, dict(usage or {}) or None)
            if (
                len(self._messages) != index
            ):  # the history continued meanwhile and brought the answer
                await self.conversation.account(reply)
                return
            answer = await self.conversation.record(
                reply, event=f"{_EVENT}:{index}:{identity}"
            )
            self._messages.append((identity, answer.id, True))

    def _make_turn(self, call: ModelCall, prepared: PreparedRequest) -> PreparedCall:
        indexes = {
            stored: index
            for index, (_, stored, verbatim) in enumerate(self._messages)
            if verbatim
        }
        stored = self.conversation.stored
        items: list[Item] = [
            indexes.get(item.id, _strip_private(item.body)) for item in stored
        ]
        items += (
            _strip_private(message)
            for message in prepared.request.messages[len(stored) :]
        )
        params = prepared.request.params
        cap = next((params[name] for name in _CAPS if name in params), None)
        events = list(self.events)
        self.events[:] = []
        note = note_in(self.conversation.session.system)
        return PreparedCall(
            self,
            call,
            items=items,
            note=note,
            cap=cap if cap != call.max_tokens else None,
            events=events,
        )


def _strip_private(message: Message) -> Message:
    """A copy without Everthread's own fields."""
    plain: Any = {
        key: value
        for key, value in message.items()
        if not key.startswith("_") and key != "cache_control"
    }
    message_copy: Message = plain
    return message_copy


def _model_error(error: Exception) -> ModelError:
    """A framework's exception as a `ModelError`, with the provider's status and body from its chain of causes."""
    current: BaseException | None = error
    while current is not None:
        status = getattr(current, "status_code", None) or getattr(current, "code", None)
        body = getattr(current, "body", None) or getattr(current, "details", None)
        if isinstance(status, int) and body is not None:
            return ModelError(str(error), status=status, body=body)
        current = current.__cause__ or current.__context__
    return ModelError(
        str(error), status=getattr(error, "status_code", None), body=str(error)
    )
