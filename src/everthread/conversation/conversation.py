"""A conversation that outlives its model's window: prepare, send, record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine
from everthread.conversation.answer_recorder import AnswerRecorder, ModelAnswer
from everthread.conversation.cancellation import finish_despite_cancellation
from everthread.conversation.conversation_prompt import (
    ConversationPrompt,
    make_overflow_error,
)
from everthread.conversation.conversation_state import (
    ConversationState,
    create_session,
    find_tip,
    load_state,
)
from everthread.conversation.fixed_prompt_watch import FixedPromptWatch
from everthread.conversation.given_messages import (
    MessageInput,
    as_messages,
    make_stub_results,
    split_results,
)
from everthread.conversation.offered_tools import FIND_TOOLS, FoundTools, Toolbox
from everthread.conversation.requests import (
    PreparedRequest,
    build_request,
    find_excerpts,
)
from everthread.conversation.setup import Setup
from everthread.core.messages import Message, results_of
from everthread.core.types import ModelReply, StreamDelta, StreamingModel, System
from everthread.errors import ConfigError, EverthreadError, InputError, ModelError
from everthread.providers.resilience import ModelEvent, closing_stream
from everthread.store.records import (
    NewMessage,
    NewSession,
    Session,
    StoredMessage,
    new_id,
)
from everthread.store.store import Store
from everthread.store.usage_records import UsageRecord
from everthread.thread.engines.summary_wait import SummaryWait
from everthread.thread.events import Listener
from everthread.thread.large_results import cite_large_results, store_outputs
from everthread.thread.managed_prompt import CompactionOrder
from everthread.thread.managed_thread import ManagedThread
from everthread.thread.policy.compaction_reason import CompactionReason
from everthread.thread.recovery import ProviderRefusal, RecoveryAttempts
from everthread.thread.route import Route

MAX_READ_CHARS = 50_000
"""Maximum characters per read of a stored output, so that the result is not stored again."""


class Conversation:
    """One thread with a model. Use `send` or `stream`; for your own loop, `prepare` and `record`."""

    def __init__(self, state: ConversationState) -> None:
        self._state = state
        self._prompt = ConversationPrompt(state)
        self._thread = ManagedThread(self._prompt, state.policy, state.setup.timer)
        self._fixed_prompt_watch = FixedPromptWatch(state)
        self._recovery = RecoveryAttempts()
        self._recorder = AnswerRecorder(state, self._thread.learn_from_usage)
        self._injected: tuple[Message, ...] = ()
        self._turn_lock = asyncio.Lock()
        self._has_ended = False

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
            session = await create_session(setup, new or NewSession())
            return cls(await load_state(setup, session, tools, reason="new"))
        tip = await find_tip(setup, resume, tenant=None if new is None else new.tenant)
        return cls(await load_state(setup, tip, tools, reason="resume"))

    def __repr__(self) -> str:
        return f"<Conversation {self.id}: {len(self.messages)} messages, {self.tokens:,} of {self.window:,} tokens>"

    async def close(self, reason: str | None = None) -> None:
        """Stop the background work of the conversation. With a reason, end the session; it can still be resumed."""
        async with contextlib.AsyncExitStack() as stack:
            resources = self._state.setup.resources
            if resources is not None:
                stack.push_async_callback(resources.aclose)
            await self._thread.cancel_idle_timer()
            await self._thread.drop_preparation("the conversation was closed")
            if not self._has_ended:
                # End the engine with the conversation, even if the session continues elsewhere.
                self._has_ended = True
                self._state.engine.call(ContextEngine.on_session_end, self._state.session.id)
            if reason is not None:
                await self._state.store.end_session(self._state.session.id, reason)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def id(self) -> str:
        """The thread's id, which never changes."""
        return self._state.session.thread

    @property
    def session(self) -> Session:
        """The current session; a compaction begins another."""
        return self._state.session

    @property
    def messages(self) -> list[Message]:
        """The messages that the model sees."""
        return list(self._state.messages.bodies)

    @property
    def stored(self) -> list[StoredMessage]:
        """The stored form of `messages`, with ids and kinds."""
        return list(self._state.messages.stored)

    @property
    def tokens(self) -> int:
        """The size of the next prompt."""
        return self._state.tokens

    @property
    def window(self) -> int:
        return self._state.model.window

    @property
    def threshold(self) -> int:
        return self._state.budget.threshold

    @property
    def max_delayed_tokens(self) -> int:
        """The size up to which a due compaction may be delayed to save money."""
        if not self._state.options.economics:
            return self.threshold
        return self._state.size.max_delayed_tokens

    @property
    def is_full(self) -> bool:
        """Whether the next prompt leaves no room for an answer."""
        return self._state.size.is_full

    @property
    def route(self) -> Route:
        return self._state.model.route

    @property
    def store(self) -> Store:
        """The store that keeps the conversation."""
        return self._state.store

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The offered tools: the given tools that are not left out, the engine's own, and `find_tools`."""
        return list(self._state.toolbox.schemas)

    @property
    def toolbox(self) -> Toolbox:
        """All tools, and which of them are left out because they take too much of the window."""
        return self._state.toolbox

    async def usage(self) -> list[UsageRecord]:
        """Return the usage of every call of the thread, main and auxiliary, from the store."""
        return await self._state.store.usage.list_usage(self.id)

    @contextlib.asynccontextmanager
    async def _hold_turn(self) -> AsyncIterator[None]:
        """Lock the conversation for one operation, and stop an idle compaction."""
        async with self._turn_lock:
            await self._thread.cancel_idle_timer()
            yield

    async def prepare(
        self,
        message: MessageInput = None,
        *,
        event: str | None = None,
        inject: MessageInput = None,
        max_tokens: int | None = None,
    ) -> PreparedRequest:
        """Store the message, keep the context in bounds, and return the request to send.

        `event`: an event with the same id is stored only once. `inject`: messages that only this call sees.
        """
        state = self._state
        await self._thread.cancel_idle_timer()
        self._recovery = RecoveryAttempts(cap=max_tokens)
        self._injected = tuple(as_messages(inject))
        was_full = state.has_report and state.tokens >= state.budget.threshold
        await self._store_messages(as_messages(message), event)
        if state.messages.open_calls:
            await state.append(
                [NewMessage(stub) for stub in make_stub_results(state.messages.open_calls)]
            )
        if not state.messages.bodies:
            raise InputError("there is nothing to send: the conversation has no message yet")
        await self._fixed_prompt_watch.choose_tools()
        state.report_size()
        self._fixed_prompt_watch.check()
        await self._thread.compact_if_needed(
            reason=CompactionReason.IN_LOOP
            if was_full or message is None
            else CompactionReason.PREFLIGHT
        )
        injected = (*await find_excerpts(state), *self._injected)
        self._recorder.sent_request = build_request(state, injected, cap=self._recovery.cap)
        return self._recorder.sent_request

    async def record(self, response: Any) -> ModelAnswer:
        """Store and account for an answer: a client's response object, a list of stream chunks, or a `ModelReply`."""
        answer = await self._recorder.record(response)
        await self._thread.prepare_ahead()
        if not answer.calls:
            self._thread.start_idle_timer()
        return answer

    async def wait_for_idle_compaction(self) -> None:
        """Wait for a compaction that began while the conversation was idle."""
        await self._thread.finish_idle_work()

    async def recover(self, error: Exception) -> PreparedRequest:
        """Return the request to send after a refusal. Raise if size is not at fault or nothing helps."""
        refusal = ProviderRefusal(
            getattr(error, "status", None), getattr(error, "body", None), error
        )
        sent_request = self._recorder.sent_request
        self._prompt.request = sent_request.request if sent_request else None
        step = await self._thread.recover(self._recovery, refusal)
        if step is None:
            raise error
        if step.action == "give_up":
            raise make_overflow_error(self._state, self._recovery, error) from error
        self._recorder.sent_request = build_request(
            self._state, self._injected, cap=self._recovery.cap
        )
        return self._recorder.sent_request

    async def send(
        self,
        message: MessageInput = None,
        *,
        inject: MessageInput = None,
        max_tokens: int | None = None,
    ) -> ModelAnswer:
        """Send a message, or continue after tool results. Return the answer."""
        async with self._hold_turn():
            model = self._model
            prepared = await self.prepare(message, inject=inject, max_tokens=max_tokens)
            while True:
                try:
                    reply = await model.complete(prepared.request)
                except ModelError as error:
                    self._recorder.note_partial_reply(error)
                    await self._recorder.account_interrupted()
                    prepared = await self.recover(error)
                except asyncio.CancelledError:
                    await finish_despite_cancellation(self._recorder.record_interrupted(""))
                    raise
                else:
                    return await finish_despite_cancellation(self.record(reply))

    async def stream(
        self,
        message: MessageInput = None,
        *,
        event: str | None = None,
        inject: MessageInput = None,
        max_tokens: int | None = None,
    ) -> AsyncGenerator[StreamDelta | ModelAnswer, None]:
        """Yield the answer piece by piece, and at the end the whole `ModelAnswer`."""
        async with self._hold_turn():
            model = self._model
            prepared = await self.prepare(
                message, event=event, inject=inject, max_tokens=max_tokens
            )
            reply: ModelReply | None = None
            while reply is None:
                texts: list[str] = []
                try:
                    async with closing_stream(model.stream(prepared.request)) as pieces:
                        async for piece in pieces:
                            if isinstance(piece, ModelReply):
                                reply = piece
                            else:
                                texts.append(piece.text if piece.kind == "text" else "")
                                yield piece
                except ModelError as error:
                    self._recorder.note_partial_reply(error)
                    await self._recorder.account_interrupted()
                    prepared = await self.recover(error)
                except (asyncio.CancelledError, GeneratorExit):
                    await finish_despite_cancellation(
                        self._recorder.record_interrupted("".join(texts))
                    )
                    raise
            yield await finish_despite_cancellation(self.record(reply))

    async def add_results(self, messages: Sequence[Message]) -> list[Message]:
        """Store the results of the last answer's tool calls; large ones are kept outside the context."""
        state = self._state
        results, other_messages = split_results(as_messages(messages))
        if other_messages:
            raise InputError(
                f"add_results takes tool results only, not a message of role {other_messages[0]['role']!r}"
            )
        answered_ids = [result.call_id for message in results for result in results_of(message)]
        unknown_ids = [
            call_id or "(none given)"
            for call_id in answered_ids
            if call_id not in state.messages.open_calls
        ]
        if unknown_ids:
            raise InputError(
                f"no open call has the id {', '.join(unknown_ids)}; "
                f"open: {', '.join(state.messages.open_calls) or 'none'}"
            )
        duplicate_ids = {call_id for call_id in answered_ids if answered_ids.count(call_id) > 1}
        if duplicate_ids:
            raise InputError(
                f"a call has one result; there are several for {', '.join(sorted(duplicate_ids))}"
            )
        limited_results = await self._limit_results(results)
        await state.append([NewMessage(message) for message in limited_results])
        return limited_results

    async def _limit_results(self, messages: Sequence[Message]) -> list[Message]:
        """Return the results of one assistant turn; if they are too large, the largest are stored and cited."""
        state = self._state
        own_tools = {tool["function"]["name"] for tool in state.engine.get_tool_schemas()}
        limits = state.options.output_limits(state.budget)
        limited_results, large_outputs = cite_large_results(
            messages, state.messages.open_calls, limits, lookups=own_tools
        )
        await store_outputs(
            self.store, self.id, large_outputs, state.emit, session=state.session.id
        )
        return limited_results

    async def add(self, message: MessageInput) -> None:
        """Store a message without asking the model; the next request includes it."""
        async with self._hold_turn():
            await self._store_messages(as_messages(message), None)

    async def read_output(
        self, output_id: str, *, offset: int = 0, limit: int = MAX_READ_CHARS
    ) -> str:
        """Return a part of a stored tool output (`output:…`), and the offset of the next one."""
        text = await self.store.outputs.load_output(output_id, tenant=self.session.tenant)
        start = max(offset, 0)
        part = text[start : start + max(1, min(limit, MAX_READ_CHARS))]
        end = start + len(part)
        if not part:
            return f"[{output_id} has {len(text):,} characters; there is nothing at offset {start}]"
        if end >= len(text):
            return part
        return f"{part}\n[{len(text) - end:,} more characters; go on with offset {end}]"

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one of the tools in `toolbox.own_schemas`. Raise `KeyError` for an unknown name."""
        if name == FIND_TOOLS and self.toolbox.left_out:
            query = arguments.get("query")
            found_tools = await self.find_tools(query if isinstance(query, str) else "")
            was_refused = arguments.get("now") is True  # no permission was asked for
            return replace(found_tools, was_refused=was_refused).text
        return await self._state.engine.engine.handle_tool_call(name, arguments)

    async def find_tools(self, query: str, *, now: bool = False) -> FoundTools:
        """Find the left-out tools that match, and offer them again from the next compaction on.

        `now`: offer them at once. This loses the provider's cache; `describe_cache_loss` describes the cost.
        """
        found_tools = self.toolbox.search(query)
        names = [card.name for card in found_tools.tools]
        if not names:
            return found_tools
        self.toolbox.request(names)
        if now:
            left_out = [name for name in self.toolbox.left_out if name not in names]
            self._state.leave_out_tools(left_out, "a request for tools", is_immediate=True)
        await self._state.save()
        return replace(found_tools, is_offered_now=now)

    def describe_cache_loss(self) -> str:
        """Describe the cost of offering other tools now: the next prompt is not read from the cache."""
        state = self._state
        if state.cold_reason:
            return f"no cached prompt is lost: {state.cold_reason}"
        miss_cost = state.policy.compute_miss_cost(
            state.size, state.learnt_usage, state.model.prices
        )
        explanation = (
            f"the {state.tokens:,} tokens of the prompt have to be read anew "
            "instead of from the provider's cache"
        )
        if miss_cost is None:
            return f"{explanation}; the cost is not known"
        return f"about ${miss_cost:.4f}: {explanation}"

    async def compress(self, focus: str | None = None) -> Compaction:
        """Compact now, whatever the size."""
        if not self._state.options.enabled:
            raise ConfigError(
                "compression is disabled (compression.enabled: false); nothing was changed"
            )
        async with self._hold_turn():
            self._forget_failures()
            order = CompactionOrder(CompactionReason.MANUAL, focus=focus)
            return await self._thread.compact_manually(order)

    async def preview(self, focus: str | None = None) -> Compaction:
        """Return a preview of the parts that `compress` would keep, cut and summarise. Change nothing."""
        order = CompactionOrder(CompactionReason.PREVIEW, focus=focus)
        draft = await self._thread.prompt.draft(order, SummaryWait())
        return draft.compaction

    async def compact_before_incoming(self) -> None:
        """Compact before an incoming message, at 85 % of the window. Only report a failure."""
        state = self._state
        async with self._hold_turn():
            if not state.policy.is_due_before_incoming(state.size, len(state.messages.stored)):
                return
            previous_limit = state.learnt_usage.retry_above_tokens
            try:
                await self._thread.compact_now(CompactionOrder(CompactionReason.BEFORE_INCOMING))
            except EverthreadError as error:
                state.report_failure(error)
            state.learnt_usage.forget_failure(previous_limit)

    async def undo(self) -> Session:
        """Undo the last compaction; messages since then stay."""
        state = self._state
        async with self._hold_turn():
            await self._thread.drop_preparation("the last compaction was undone")
            session = await state.store.undo(state.session.id)
            state.show_session(session, await state.store.list_messages(session.id))
            state.compaction_count = max(0, state.compaction_count - 1)
            state.forget_last_request()
            await state.restore()
            state.learnt_usage.calibration.reset()
            self._forget_failures()
            if state.tokens >= state.budget.threshold and not state.size.is_full:
                # Otherwise the next call would compact again.
                state.learnt_usage.record_failure(state.tokens)
            state.notify("The last compaction was undone.")
            return session

    async def branch(self, at_message: int | None = None, *, title: str = "") -> Conversation:
        """Return another conversation that shares this one's history up to a message (default: all of it)."""
        state = self._state
        if not state.messages.stored:
            raise InputError("there is nothing to branch from: the conversation has no message yet")
        message_id = state.messages.stored[-1].id if at_message is None else at_message
        new_session = None
        if title:
            session = state.session
            new_session = NewSession(
                tenant=session.tenant,
                user=session.user,
                platform=session.platform,
                kind="branch",
                model=session.model,
                title=title,
                system=session.system,
                client=session.client,
                client_session=session.client_session,
            )
        branch_session = await state.store.branch(state.session.id, message_id, new=new_session)
        return Conversation(
            await load_state(
                self._shared_setup(),
                branch_session,
                state.toolbox.all_tools,
                reason="branch",
            )
        )

    async def open_another(
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
        setup = replace(setup, system=system or setup.system, listener=listener or setup.listener)
        offered_tools = self._state.toolbox.all_tools if tools is None else tools
        return await Conversation.open(setup, resume=resume, new=new, tools=offered_tools)

    async def use_model(self, route: Route) -> None:
        """Continue with another model. The next request is fitted to its window before it is sent."""
        state = self._state
        async with self._hold_turn():
            await self._thread.drop_preparation("another model was chosen")
            state.use_route(route)
            await state.load_limits()
            self._forget_failures()

    def on_model_event(self, event: ModelEvent) -> None:
        """Emit the reports of the wrappers around the model: a retry, a fallback."""
        self._state.notify(event.text, is_temporary=event.kind == "retry")
        if event.error is not None:
            self._recorder.note_partial_reply(event.error)

    def use_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """Offer other tools from the next request on. This loses the provider's cache."""
        self._state.replace_tools(tools)

    def _forget_failures(self) -> None:
        """Allow new attempts and reports, after a change of model, an undo or a manual compaction."""
        self._state.learnt_usage.forget_failure()
        self._fixed_prompt_watch.reset()

    def _shared_setup(self) -> Setup:
        """Return the setup for another conversation of the same kind, which does not close the shared resources."""
        return replace(
            self._state.setup,
            route=self._state.model.route,
            limits=self._state.limits,
            resources=None,
        )

    @property
    def _model(self) -> StreamingModel:
        model = self._state.model.route.model
        if model is None:
            raise InputError(
                "this conversation has no model to send to: use prepare and record with your own client"
            )
        return model

    async def _store_messages(self, messages: list[Message], event: str | None) -> None:
        state = self._state
        results, messages = split_results(messages)
        if results:
            await self.add_results(results)
        if not messages:
            return
        stubs = [NewMessage(stub) for stub in make_stub_results(state.messages.open_calls)]
        new_messages = []
        for index, message in enumerate(messages):
            event_id = new_id() if event is None else f"{event}.{index}"
            new_messages.append(NewMessage(message, event=event_id))
        await state.append([*stubs, *new_messages])
