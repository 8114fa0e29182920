"""A conversation that outlives its model's window: prepare, send, record."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from everthread.compaction.summary import Compaction
from everthread.context.recovery import RecoveryAttempts
from everthread.conversation.compaction import Compactor, commit, discard, draft, recover
from everthread.conversation.events import Listener
from everthread.conversation.options import Route, Setup
from everthread.conversation.requests import (
    READ_LIMIT,
    Answer,
    Given,
    PreparedRequest,
    Recorder,
    as_messages,
    build_request,
    finish,
    limit_results,
    open_stubs,
    recall_message,
    split_results,
)
from everthread.conversation.state import ConversationState, create_session, find_tip, load_state
from everthread.conversation.toolbox import FIND, FoundTools, Toolbox
from everthread.core.messages import Message, calls_of, results_of
from everthread.core.types import Reply, StreamDelta, StreamingModel, System
from everthread.errors import ConfigError, InputError, ModelError
from everthread.providers.resilience import ModelEvent, closing
from everthread.store.models import NewMessage, NewSession, Session, StoredMessage, UsageRecord, new_id
from everthread.store.store import Store


class Conversation:
    """One thread with a model. Use `send` or `stream`; with a loop of your own, `prepare` and `record`."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self._compactor = Compactor(live)
        self._recovery = RecoveryAttempts()
        self._recorder = Recorder(live)
        self._injected: tuple[Message, ...] = ()
        self._turn = asyncio.Lock()
        self._ended = False

    # Life

    @classmethod
    async def open(
        cls,
        setup: Setup,
        *,
        resume: str | None = None,
        new: NewSession | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> Self:
        """A new conversation, or with `resume` (any id of the thread, or how it begins) the thread at its tip."""
        if resume is None:
            return cls(await load_state(setup, await create_session(setup, new or NewSession()), tools, reason="new"))
        tip = await find_tip(setup, resume, tenant=None if new is None else new.tenant)
        return cls(await load_state(setup, tip, tools, reason="resume"))

    def __repr__(self) -> str:
        return f"<Conversation {self.id}: {len(self.messages)} messages, {self.tokens:,} of {self.window:,} tokens>"

    async def close(self, reason: str | None = None) -> None:
        """Stop what runs beside the conversation. With a reason the session ends; it can still be resumed."""
        async with contextlib.AsyncExitStack() as stack:
            for close in reversed(self._live.setup.closing):
                stack.push_async_callback(close)
            self._compactor.wake()
            await self._compactor.preparation.drop("the conversation was closed")
            if not self._ended:  # its engine ends with it, whether or not the session goes on elsewhere
                self._ended = True
                self._live.engine.on_session_end(self._live.session.id)
            if reason is not None:
                await self._live.setup.store.end_session(self._live.session.id, reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What it is

    @property
    def id(self) -> str:
        """The thread: stable for ever."""
        return self._live.session.thread

    @property
    def session(self) -> Session:
        """The session it is in now."""
        return self._live.session

    @property
    def messages(self) -> list[Message]:
        """What the model sees."""
        return list(self._live.bodies)

    @property
    def stored(self) -> list[StoredMessage]:
        """The same with their ids and kinds, as the store has them."""
        return list(self._live.stored)

    @property
    def tokens(self) -> int:
        """The size of the next prompt."""
        return self._live.tokens

    @property
    def window(self) -> int:
        return self._live.window

    @property
    def threshold(self) -> int:
        return self._live.budget.threshold

    @property
    def route(self) -> Route:
        return self._live.route

    @property
    def store(self) -> Store:
        """Where it is kept."""
        return self._live.setup.store

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the model is offered: the tools given, less those left out, then the engine's own and `find_tools`."""
        return list(self._live.tools)

    @property
    def toolbox(self) -> Toolbox:
        """The tools it was given, and which of them are left out because they press on the window."""
        return self._live.toolbox

    async def usage(self) -> list[UsageRecord]:
        """What every call of the thread used, main and auxiliary, from the store."""
        return await self._live.setup.store.usage(self.id)

    # The halves

    async def prepare(
        self, message: Given = None, *, event: str | None = None, inject: Given = None, max_tokens: int | None = None
    ) -> PreparedRequest:
        """Store the message, keep the context in bounds, and give the request to send.

        `event`: the same event given again is stored once. `inject`: what only this call shall see.
        """
        live = self._live
        self._compactor.wake()
        self._recovery = RecoveryAttempts(cap=max_tokens)
        self._injected = tuple(as_messages(inject))
        full = live.reported and live.tokens >= live.budget.threshold
        await self._store(as_messages(message), event)
        if live.open_calls:
            await live.append([NewMessage(stub) for stub in open_stubs(live.open_calls)])
        if not live.bodies:
            raise InputError("there is nothing to send: the conversation has no message yet")
        await self._compactor.settle_tools()
        await self._compactor.relieve(reason="in-loop" if full or message is None else "preflight")
        injected = (*await recall_message(live), *self._injected)
        self._recorder.sent = build_request(live, injected, cap=self._recovery.cap)
        return self._recorder.sent

    async def record(self, response: Any, *, event: str | None = None) -> Answer:
        """Store and account for an answer: of a client, as it came; a list of stream chunks; or a `Reply`.

        `event`: under which a history that is kept elsewhere brings it again, see `follow`.
        """
        answer = await self._recorder.record(response, event)
        await self._compactor.prepare_ahead()
        if not answer.calls:
            self._compactor.rest()
        return answer

    async def account(self, response: Any) -> None:
        """Account for an answer that is not stored here: the conversation went on without it."""
        await self._recorder.account(response)

    async def recover(self, error: Exception) -> PreparedRequest:
        """After a refused request: the one to send instead. Raises where size is not at fault or nothing helps."""
        sent = self._recorder.sent.request if self._recorder.sent else None
        await self._compactor.preparation.drop("the provider refused the request")
        await recover(self._live, self._recovery, error, sent)
        self._recorder.sent = build_request(self._live, self._injected, cap=self._recovery.cap)
        return self._recorder.sent

    # The whole

    async def send(self, message: Given = None, *, inject: Given = None, max_tokens: int | None = None) -> Answer:
        """Send a message, or go on after tool results; the answer."""
        async with self._turn:
            model = self._model
            prepared = await self.prepare(message, inject=inject, max_tokens=max_tokens)
            while True:
                try:
                    reply = await model.complete(prepared.request)
                except ModelError as error:
                    self._recorder.lose(error)
                    await self._recorder.account_lost()
                    prepared = await self.recover(error)
                except asyncio.CancelledError:
                    await finish(self._recorder.record_interrupted(""))
                    raise
                else:
                    return await finish(self.record(reply))

    async def stream(
        self, message: Given = None, *, event: str | None = None, inject: Given = None, max_tokens: int | None = None
    ) -> AsyncGenerator[StreamDelta | Answer, None]:
        """The answer piece by piece, then the whole `Answer`, once and last."""
        async with self._turn:
            model = self._model
            prepared = await self.prepare(message, event=event, inject=inject, max_tokens=max_tokens)
            reply: Reply | None = None
            while reply is None:
                spoken: list[str] = []
                try:
                    async with closing(model.stream(prepared.request)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Reply):
                                reply = piece
                            else:
                                spoken.append(piece.text if piece.kind == "text" else "")
                                yield piece
                except ModelError as error:
                    self._recorder.lose(error)
                    await self._recorder.account_lost()
                    prepared = await self.recover(error)
                except (asyncio.CancelledError, GeneratorExit):
                    await finish(self._recorder.record_interrupted("".join(spoken)))
                    raise
            yield await finish(self.record(reply))

    async def add_results(self, messages: Sequence[Message]) -> list[Message]:
        """Store the results of the tools the last answer asked for, those too large outside the context."""
        live = self._live
        results, other_messages = split_results(as_messages(messages))
        if other_messages:
            raise InputError(
                f"add_results takes tool results only, not a message of role {other_messages[0]['role']!r}"
            )
        answered = [result.call_id for message in results for result in results_of(message)]
        unknown = [call_id or "(none given)" for call_id in answered if call_id not in live.open_calls]
        if unknown:
            raise InputError(
                f"no open call has the id {', '.join(unknown)}; open: {', '.join(live.open_calls) or 'none'}"
            )
        twice = {call_id for call_id in answered if answered.count(call_id) > 1}
        if twice:
            raise InputError(f"a call has one result; there are several for {', '.join(sorted(twice))}")
        fitting = await limit_results(live, results)
        await live.append([NewMessage(message) for message in fitting])
        return fitting

    async def follow(self, messages: Sequence[NewMessage]) -> list[StoredMessage]:
        """Store what is new in a history that is kept elsewhere, in its order; the same event is stored once.

        Results that are too large are stored outside the context, as those of `add_results`.
        """
        stored: list[StoredMessage] = []
        async with self._turn:
            for are_results, run in itertools.groupby(messages, lambda item: item.body["role"] == "tool"):
                new = list(run)
                if are_results:
                    bodies = await limit_results(self._live, [item.body for item in new])
                    new = [replace(item, body=body) for item, body in zip(new, bodies, strict=True)]
                    stored += await self._live.append(new)
                    continue
                opened, batch = set(self._live.open_calls), list[NewMessage]()
                for item in new:  # a call that the next message does not answer was never answered
                    batch += (NewMessage(stub) for stub in open_stubs(opened))
                    batch.append(item)
                    opened = {call.id for call in calls_of(item.body)}
                events = {item.event for item in new}
                stored += (item for item in await self._live.append(batch) if item.event in events)
        return stored

    async def add(self, message: Given) -> None:
        """Store a message without asking the model; it is in view from the next request on."""
        async with self._turn:
            await self._store(as_messages(message), None)

    async def read_output(self, cited: str, *, offset: int = 0, limit: int = READ_LIMIT) -> str:
        """A part of a stored tool output (`output:…`), and where it goes on."""
        text = await self.store.output(cited, tenant=self.session.tenant)
        start = max(offset, 0)
        part = text[start : start + max(1, min(limit, READ_LIMIT))]
        end = start + len(part)
        if not part:
            return f"[{cited} has {len(text):,} characters; there is nothing at offset {start}]"
        return part if end >= len(text) else f"{part}\n[{len(text) - end:,} more characters; go on with offset {end}]"

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one of the tools of `toolbox.own`; `KeyError` for an unknown name."""
        if name == FIND and self.toolbox.out:
            return await self.toolbox.answer(arguments)
        return await self._live.engine.handle_tool_call(name, arguments)

    async def find_tools(self, query: str, *, now: bool = False) -> FoundTools:
        """Tools left out that match. They are offered again from the next compaction on.

        `now`: at once. The provider's cache is lost by it; `toolbox.price()` tells what that costs.
        """
        return await self.toolbox.find(query, now=now)

    # By hand

    async def compress(self, focus: str | None = None) -> Compaction:
        """Compact now, whatever the size."""
        live = self._live
        if not live.setup.options.enabled:
            raise ConfigError("compression is disabled (compression.enabled: false); nothing was changed")
        async with self._turn:
            await self._compactor.preparation.drop("a person asked for another")
            drafted = await draft(live, reason="manual", focus=focus, manual=True)
            self._compactor.forget()
            if not drafted.compaction.changed:
                await discard(live, drafted, drafted.compaction.reason)
                return drafted.compaction
            unused = await commit(live, drafted, reason="manual", focus=focus)
            return replace(drafted.compaction, changed=False, reason=unused) if unused else drafted.compaction

    async def preview(self, focus: str | None = None) -> Compaction:
        """What `compress` would keep, cut and summarise; nothing is changed."""
        drafted = await draft(self._live, reason="preview", focus=focus, manual=True, preview=True)
        return drafted.compaction

    async def hygiene(self) -> None:
        """The safety net of a gateway, before it takes an incoming message."""
        async with self._turn:
            await self._compactor.hygiene()

    async def undo(self) -> Session:
        """Take the last compaction back; what was said since stays."""
        live = self._live
        async with self._turn:
            await self._compactor.preparation.drop("the last compaction was taken back")
            session = await live.setup.store.undo(live.session.id)
            live.show(session, await live.setup.store.messages(session.id))
            live.compactions = max(0, live.compactions - 1)
            live.marked, live.last_request = None, None
            await live.restore()
            live.context.calibration.reset()
            self._compactor.forget()
            live.notify("The last compaction was taken back.")
            return session

    async def branch(self, at_message: int | None = None, *, title: str = "") -> Conversation:
        """Another conversation that shares this one's history up to a message (default: all of it)."""
        live = self._live
        if not live.stored:
            raise InputError("there is nothing to branch from: the conversation has no message yet")
        at = live.stored[-1].id if at_message is None else at_message
        new = None
        if title:
            old = live.session
            new = NewSession(
                tenant=old.tenant, user=old.user, platform=old.platform, kind="branch", model=old.model, title=title,
                system=old.system, client=old.client, client_session=old.client_session,
            )  # fmt: skip
        session = await live.setup.store.branch(live.session.id, at, new=new)
        return Conversation(await load_state(self._shared_setup(), session, live.toolbox.given, reason="branch"))

    async def another(
        self,
        *,
        resume: str | None = None,
        new: NewSession | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        system: System | Callable[[], System] = None,
        listener: Listener | None = None,
    ) -> Conversation:
        """Another conversation with the same model, store and engine: new, or resumed. It closes nothing but itself."""
        setup = self._shared_setup()
        setup = replace(setup, system=system or setup.system, listener=listener or setup.listener)
        offered = self._live.toolbox.given if tools is None else tools
        return await Conversation.open(setup, resume=resume, new=new, tools=offered)

    async def use_model(self, route: Route) -> None:
        """Go on with another model. The next request is fitted to its window before it is sent."""
        live = self._live
        async with self._turn:
            await self._compactor.preparation.drop("another model was chosen")
            live.use(route)
            await live.load_limits()
            self._compactor.forget()

    def on_model_event(self, event: ModelEvent) -> None:
        """Emit what the wrappers around the model report: a retry, a fallback."""
        self._live.notify(event.text, passing=event.kind == "retry")
        if event.error is not None:
            self._recorder.lose(event.error)

    def use_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """Offer other tools from the next request on. The provider's cache is lost by it."""
        self._live.take_tools(tools)

    # Inside

    def _shared_setup(self) -> Setup:
        """What another conversation of the same kind is made of; what was opened stays this one's to close."""
        return replace(self._live.setup, route=self._live.route, limits=self._live.limits, closing=())

    @property
    def _model(self) -> StreamingModel:
        model = self._live.route.model
        if model is None:
            raise InputError("this conversation has no model to send to: use prepare and record with your own client")
        return model

    async def _store(self, messages: list[Message], event: str | None) -> None:
        live = self._live
        results, messages = split_results(messages)
        if results:
            await self.add_results(results)
        if not messages:
            return
        stubs = [NewMessage(stub) for stub in open_stubs(live.open_calls)]
        names = (new_id() if event is None else f"{event}.{index}" for index in range(len(messages)))
        new = [NewMessage(message, event=name) for message, name in zip(messages, names, strict=True)]
        await live.append([*stubs, *new])
