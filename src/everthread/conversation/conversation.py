"""A conversation that outlives its model's window: prepare, send, record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from everthread.compaction.summary import Compaction
from everthread.conversation.answers import Answer, Recorder
from everthread.conversation.cancellation import finish
from everthread.conversation.compaction import (
    ConversationContext,
    FixedPartWatch,
    compact_for_hygiene,
    overflow_error,
)
from everthread.conversation.given_messages import (
    Given,
    as_messages,
    open_stubs,
    split_results,
)
from everthread.conversation.offered_tools import FIND, FoundTools, Toolbox
from everthread.conversation.requests import (
    PreparedRequest,
    build_request,
    find_excerpts,
)
from everthread.conversation.state import (
    ConversationState,
    create_session,
    find_tip,
    load_state,
)
from everthread.conversation.tool_results import READ_LIMIT, limit_results
from everthread.core.messages import Message, results_of
from everthread.core.types import Reply, StreamDelta, StreamingModel, System
from everthread.errors import ConfigError, InputError, ModelError
from everthread.providers.resilience import ModelEvent, closing_stream
from everthread.store.records import (
    NewMessage,
    NewSession,
    Session,
    StoredMessage,
    UsageRecord,
    new_id,
)
from everthread.store.store import Store
from everthread.thread.events import Listener
from everthread.thread.managed import (
    CompactionOrder,
    ManagedThread,
    ProviderRefusal,
    ThreadTools,
)
from everthread.thread.options import Route, Setup
from everthread.thread.recovery import RecoveryAttempts
from everthread.thread.summary_wait import SummaryWait


class Conversation:
    """One thread with a model. Use `send` or `stream`; for your own loop, `prepare` and `record`."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self._context = ConversationContext(live)
        options = live.setup.options
        tools = ThreadTools(live.policy, options, live.setup.wall, live.setup.timer)
        self._thread = ManagedThread(self._context, tools)
        self._fixed_part = FixedPartWatch(live)
        self._recovery = RecoveryAttempts()
        self._recorder = Recorder(live, self._thread.learn_from_usage)
        self._injected: tuple[Message, ...] = ()
        self._turn = asyncio.Lock()
        self._ended = False

    # Opening and closing

    @classmethod
    async def open(
        cls,
        setup: Setup,
        *,
        resume: str | None = None,
        new: NewSession | None = None,
        tools: Sequence[dict[str, Any]] = (),
    ) -> Self:
        """Open a new conversation, or with `resume` (an id of the thread, or its prefix) the thread at its tip."""
        if resume is None:
            return cls(
                await load_state(
                    setup,
                    await create_session(setup, new or NewSession()),
                    tools,
                    reason="new",
                )
            )
        tip = await find_tip(setup, resume, tenant=None if new is None else new.tenant)
        return cls(await load_state(setup, tip, tools, reason="resume"))

    def __repr__(self) -> str:
        return f"<Conversation {self.id}: {len(self.messages)} messages, {self.tokens:,} of {self.window:,} tokens>"

    async def close(self, reason: str | None = None) -> None:
        """Stop the background work of the conversation. With a reason, end the session; it can still be resumed."""
        async with contextlib.AsyncExitStack() as stack:
            for close in reversed(self._live.setup.closing):
                stack.push_async_callback(close)
            await self._thread.cancel_idle_timer()
            await self._thread.drop_preparation("the conversation was closed")
            if not self._ended:  # end the engine with the conversation, even if the session continues elsewhere
                self._ended = True
                self._live.engine.on_session_end(self._live.session.id)
            if reason is not None:
                await self._live.setup.store.end_session(self._live.session.id, reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # Identity and size

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
        """The messages that the model sees."""
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
    def latest_compaction(self) -> int:
        """The size up to which a compaction that is due may be put off to save money."""
        if not self._live.setup.options.economics:
            return self.threshold
        return self._live.size.delay_limit

    @property
    def is_full(self) -> bool:
        """Whether the next prompt leaves no room for an answer."""
        return self._live.size.is_full

    @property
    def route(self) -> Route:
        return self._live.route

    @property
    def store(self) -> Store:
        """The store that keeps the conversation."""
        return self._live.setup.store

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the model is offered: those given and not left out, the engine's own, and `find_tools`."""
        return list(self._live.tools)

    @property
    def toolbox(self) -> Toolbox:
        """The tools it was given, and which of them are left out because they press on the window."""
        return self._live.toolbox

    async def usage(self) -> list[UsageRecord]:
        """Return the usage of every call of the thread, main and auxiliary, from the store."""
        return await self._live.setup.store.usage(self.id)

    @contextlib.asynccontextmanager
    async def _hold_turn(self) -> AsyncIterator[None]:
        """Hold the conversation for one operation, without an idle compaction beside it."""
        async with self._turn:
            await self._thread.cancel_idle_timer()
            yield

    # Prepare and record

    async def prepare(
        self,
        message: Given = None,
        *,
        event: str | None = None,
        inject: Given = None,
        max_tokens: int | None = None,
    ) -> PreparedRequest:
        """Store the message, keep the context in bounds, and return the request to send.

        `event`: an event with the same id is stored only once. `inject`: messages that only this call sees.
        """
        live = self._live
        await self._thread.cancel_idle_timer()
        self._recovery = RecoveryAttempts(cap=max_tokens)
        self._injected = tuple(as_messages(inject))
        full = live.reported and live.tokens >= live.budget.threshold
        await self._store(as_messages(message), event)
        if live.open_calls:
            await live.append(
                [NewMessage(stub) for stub in open_stubs(live.open_calls)]
            )
        if not live.bodies:
            raise InputError(
                "there is nothing to send: the conversation has no message yet"
            )
        await self._fixed_part.settle_tools()
        live.report_size()
        self._fixed_part.check()
        await self._thread.compact_if_needed(
            reason="in-loop" if full or message is None else "preflight"
        )
        injected = (*await find_excerpts(live), *self._injected)
        self._recorder.sent = build_request(live, injected, cap=self._recovery.cap)
        return self._recorder.sent

    async def record(self, response: Any) -> Answer:
        """Store and account for an answer: a client's response object, a list of stream chunks, or a `Reply`."""
        answer = await self._recorder.record(response)
        await self._thread.prepare_ahead()
        if not answer.calls:
            self._thread.start_idle_timer()
        return answer

    async def settle(self) -> None:
        """Wait for a compaction that began while the conversation was idle."""
        await self._thread.finish_idle_work()

    async def recover(self, error: Exception) -> PreparedRequest:
        """Return the request to send after a refusal. Raise if size is not at fault or nothing helps."""
        refusal = ProviderRefusal(
            getattr(error, "status", None), getattr(error, "body", None), error
        )
        self._context.request = (
            self._recorder.sent.request if self._recorder.sent else None
        )
        step = await self._thread.recover(self._recovery, refusal)
        if step is None:
            raise error
        if step.action == "give_up":
            raise overflow_error(self._live, self._recovery, error) from error
        self._recorder.sent = build_request(
            self._live, self._injected, cap=self._recovery.cap
        )
        return self._recorder.sent

    # Send and stream

    async def send(
        self,
        message: Given = None,
        *,
        inject: Given = None,
        max_tokens: int | None = None,
    ) -> Answer:
        """Send a message, or continue after tool results. Return the answer."""
        async with self._hold_turn():
            model = self._model
            prepared = await self.prepare(message, inject=inject, max_tokens=max_tokens)
            while True:
                try:
                    reply = await model.complete(prepared.request)
                except ModelError as error:
                    self._recorder.note_partial_reply(error)
                    await self._recorder.account_lost()
                    prepared = await self.recover(error)
                except asyncio.CancelledError:
                    await finish(self._recorder.record_interrupted(""))
                    raise
                else:
                    return await finish(self.record(reply))

    async def stream(
        self,
        message: Given = None,
        *,
        event: str | None = None,
        inject: Given = None,
        max_tokens: int | None = None,
    ) -> AsyncGenerator[StreamDelta | Answer, None]:
        """Yield the answer piece by piece, and at the end the whole `Answer`."""
        async with self._hold_turn():
            model = self._model
            prepared = await self.prepare(
                message, event=event, inject=inject, max_tokens=max_tokens
            )
            reply: Reply | None = None
            while reply is None:
                spoken: list[str] = []
                try:
                    async with closing_stream(model.stream(prepared.request)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, Reply):
                                reply = piece
                            else:
                                spoken.append(
                                    piece.text if piece.kind == "text" else ""
                                )
                                yield piece
                except ModelError as error:
                    self._recorder.note_partial_reply(error)
                    await self._recorder.account_lost()
                    prepared = await self.recover(error)
                except (asyncio.CancelledError, GeneratorExit):
                    await finish(self._recorder.record_interrupted("".join(spoken)))
                    raise
            yield await finish(self.record(reply))

    async def add_results(self, messages: Sequence[Message]) -> list[Message]:
        """Store the results of the last answer's tool calls; those that are too large outside the context."""
        live = self._live
        results, other_messages = split_results(as_messages(messages))
        if other_messages:
            raise InputError(
                f"add_results takes tool results only, not a message of role {other_messages[0]['role']!r}"
            )
        answered = [
            result.call_id for message in results for result in results_of(message)
        ]
        unknown = [
            call_id or "(none given)"
            for call_id in answered
            if call_id not in live.open_calls
        ]
        if unknown:
            raise InputError(
                f"no open call has the id {', '.join(unknown)}; open: {', '.join(live.open_calls) or 'none'}"
            )
        twice = {call_id for call_id in answered if answered.count(call_id) > 1}
        if twice:
            raise InputError(
                f"a call has one result; there are several for {', '.join(sorted(twice))}"
            )
        fitting = await limit_results(live, results)
        await live.append([NewMessage(message) for message in fitting])
        return fitting

    async def add(self, message: Given) -> None:
        """Store a message without asking the model; it is in view from the next request on."""
        async with self._hold_turn():
            await self._store(as_messages(message), None)

    async def read_output(
        self, cited: str, *, offset: int = 0, limit: int = READ_LIMIT
    ) -> str:
        """Return a part of a stored tool output (`output:…`), and the offset of the next one."""
        text = await self.store.output(cited, tenant=self.session.tenant)
        start = max(offset, 0)
        part = text[start : start + max(1, min(limit, READ_LIMIT))]
        end = start + len(part)
        if not part:
            return f"[{cited} has {len(text):,} characters; there is nothing at offset {start}]"
        return (
            part
            if end >= len(text)
            else f"{part}\n[{len(text) - end:,} more characters; go on with offset {end}]"
        )

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one of the tools of `toolbox.own`; `KeyError` for an unknown name."""
        if name == FIND and self.toolbox.out:
            return await self.toolbox.answer(arguments)
        return await self._live.engine.handle_tool_call(name, arguments)

    async def find_tools(self, query: str, *, now: bool = False) -> FoundTools:
        """Find the left-out tools that match, and offer them again from the next compaction on.

        `now`: offer them at once. This loses the provider's cache; `toolbox.price()` returns the cost.
        """
        return await self.toolbox.find(query, now=now)

    # Manual actions

    async def compress(self, focus: str | None = None) -> Compaction:
        """Compact now, whatever the size."""
        if not self._live.setup.options.enabled:
            raise ConfigError(
                "compression is disabled (compression.enabled: false); nothing was changed"
            )
        async with self._hold_turn():
            self._forget_failures()
            order = CompactionOrder("manual", focus=focus, is_manual=True)
            return await self._thread.compact_by_hand(order)

    async def preview(self, focus: str | None = None) -> Compaction:
        """Return a preview of the parts that `compress` would keep, cut and summarise. Change nothing."""
        order = CompactionOrder("preview", focus=focus, is_manual=True, is_preview=True)
        drafted = await self._thread.context.draft(order, SummaryWait())
        return drafted.compaction

    async def hygiene(self) -> None:
        """Compact if needed before a gateway takes an incoming message."""
        async with self._hold_turn():
            await compact_for_hygiene(self._thread, self._live)

    async def undo(self) -> Session:
        """Take the last compaction back; messages since then stay."""
        live = self._live
        async with self._hold_turn():
            await self._thread.drop_preparation("the last compaction was taken back")
            session = await live.setup.store.undo(live.session.id)
            live.show(session, await live.setup.store.messages(session.id))
            live.compactions = max(0, live.compactions - 1)
            live.marked = None
            live.last_request = None
            await live.restore()
            live.state.calibration.reset()
            self._forget_failures()
            if live.tokens >= live.budget.threshold and not live.size.is_full:
                live.state.fail(live.tokens)  # else the next call would compact again
            live.notify("The last compaction was taken back.")
            return session

    async def branch(
        self, at_message: int | None = None, *, title: str = ""
    ) -> Conversation:
        """Return another conversation that shares this one's history up to a message (default: all of it)."""
        live = self._live
        if not live.stored:
            raise InputError(
                "there is nothing to branch from: the conversation has no message yet"
            )
        at = live.stored[-1].id if at_message is None else at_message
        new = None
        if title:
            old = live.session
            new = NewSession(
                tenant=old.tenant,
                user=old.user,
                platform=old.platform,
                kind="branch",
                model=old.model,
                title=title,
                system=old.system,
                client=old.client,
                client_session=old.client_session,
            )
        session = await live.setup.store.branch(live.session.id, at, new=new)
        return Conversation(
            await load_state(
                self._shared_setup(), session, live.toolbox.given, reason="branch"
            )
        )

    async def another(
        self,
        *,
        resume: str | None = None,
        new: NewSession | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
        system: System | Callable[[], System] = None,
        listener: Listener | None = None,
    ) -> Conversation:
        """Open another conversation with the same model, store and engine: new, or resumed.

        Closing it closes no shared resource.
        """
        setup = self._shared_setup()
        setup = replace(
            setup, system=system or setup.system, listener=listener or setup.listener
        )
        offered = self._live.toolbox.given if tools is None else tools
        return await Conversation.open(setup, resume=resume, new=new, tools=offered)

    async def use_model(self, route: Route) -> None:
        """Continue with another model. The next request is fitted to its window before it is sent."""
        live = self._live
        async with self._hold_turn():
            await self._thread.drop_preparation("another model was chosen")
            live.use(route)
            await live.load_limits()
            self._forget_failures()

    def on_model_event(self, event: ModelEvent) -> None:
        """Emit the reports of the wrappers around the model: a retry, a fallback."""
        self._live.notify(event.text, passing=event.kind == "retry")
        if event.error is not None:
            self._recorder.note_partial_reply(event.error)

    def use_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """Offer other tools from the next request on. The provider's cache is lost by it."""
        self._live.take_tools(tools)

    # Helpers

    def _forget_failures(self) -> None:
        """Try and report again at once, after another model, an undo or a compaction by hand."""
        self._live.state.retry_above_tokens = 0
        self._fixed_part.reset()

    def _shared_setup(self) -> Setup:
        """Return the setup for another conversation of the same kind. This one still closes its own resources."""
        return replace(
            self._live.setup,
            route=self._live.route,
            limits=self._live.limits,
            closing=(),
        )

    @property
    def _model(self) -> StreamingModel:
        model = self._live.route.model
        if model is None:
            raise InputError(
                "this conversation has no model to send to: use prepare and record with your own client"
            )
        return model

    async def _store(self, messages: list[Message], event: str | None) -> None:
        live = self._live
        results, messages = split_results(messages)
        if results:
            await self.add_results(results)
        if not messages:
            return
        stubs = [NewMessage(stub) for stub in open_stubs(live.open_calls)]
        names = (
            new_id() if event is None else f"{event}.{index}"
            for index in range(len(messages))
        )
        new = [
            NewMessage(message, event=name)
            for message, name in zip(messages, names, strict=True)
        ]
        await live.append([*stubs, *new])
