"""The state of a running conversation: its session, its model, the size of its prompt, its engine and its tools."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction.engine import ContextEngine, Services, SessionStartReason
from everthread.conversation.active_model import ActiveModel
from everthread.conversation.offered_tools import Toolbox, ToolRoom
from everthread.conversation.saved_state import (
    SavedState,
    load_saved_state,
    restore_engine,
    save_state,
)
from everthread.conversation.session_archive import SessionArchive
from everthread.conversation.setup import Setup
from everthread.conversation.visible_messages import VisibleMessages
from everthread.core.messages import Message, calls_of
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import ModelRequest, System
from everthread.store.records import LimitKey, NewMessage, NewSession, Session, StoredMessage
from everthread.thread import events
from everthread.thread.accounting import Accounting
from everthread.thread.engines.engine_failures import SafeEngine
from everthread.thread.engines.plugin_engines import LoopSummarizer, report_in_loop
from everthread.thread.model_limits import CallLimits, ModelLimits
from everthread.thread.policy.compaction_policy import CompactionPolicy
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.policy.prompt_size import PromptSize
from everthread.thread.route import Route
from everthread.thread.thread_setup import SummarizerContext
from everthread.thread.used_window import UsedWindow, describe_window
from everthread.wire.anthropic.anthropic_history import EncodedHistory


class ConversationState:
    """The state that the parts of a conversation share."""

    def __init__(
        self, setup: Setup, session: Session, tools: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.setup = setup
        self.store = setup.store
        self.options = setup.options
        self.session = session
        self.learnt_usage = LearntUsage()
        self.policy = CompactionPolicy(setup.options, setup.wall_clock)
        self.limits = setup.limits or ModelLimits(setup.store, setup.clock)
        self.accounting = Accounting(setup.store, setup.wall_clock, setup.listener)
        self.last_request: ModelRequest | None = None
        self.last_marked_index: int | None = None
        """The message with the last cache mark of the last request."""
        self.last_answer_id = ""
        """The provider's id of the last answer, to ask why the cache missed."""
        self.encoded_history = EncodedHistory()
        self.compaction_count = 0
        self.model = self._open_model(setup.route)
        self.budget = self.model.nominal_budget
        self.messages = VisibleMessages(self.model.counter, setup.summary_key)
        self._report_in_loop = report_in_loop(self.emit_report)
        self.engine = SafeEngine(
            setup.make_engine(self._make_services()),
            lambda text: self._report_in_loop("notice", text=text),
        )
        self.toolbox = Toolbox(tools, self.engine.get_tool_schemas)
        self._fit_tools()

    @property
    def system(self) -> System:
        return self.session.system

    def emit(self, event: events.Event) -> None:
        self.setup.listener(event)

    def notify(self, text: str, *, is_temporary: bool = False) -> None:
        """Emit a notice for the user."""
        self.emit(events.Notice(self.session.id, text, is_temporary))

    def report_size(self) -> None:
        """Emit how full the next request is."""
        size = self.size
        event = events.Estimated(
            self.session.id,
            size.tokens,
            window=self.model.window,
            threshold=size.budget.threshold,
            is_reported=self.has_report,
        )
        self.emit(event)

    def report_failure(self, error: object) -> None:
        """Report that a compaction failed; the conversation continues."""
        self.emit(events.CompactionFailed(self.session.id, str(error)))

    def emit_report(self, kind: str, **details: Any) -> None:
        """Emit a report of an engine or a summariser as an event of the session."""
        self.emit(events.make_engine_event(self.session.id, kind, details))

    def show_session(self, session: Session, stored_messages: Sequence[StoredMessage]) -> None:
        """Replace the current session, and the messages that the model sees."""
        self.session = session
        self._fixed_estimate = self._estimate_fixed_tokens()
        self.messages.replace_all(stored_messages)
        for body in self.messages.bodies:
            self._record_tool_calls(body)

    def _record_tool_calls(self, body: Message) -> None:
        for call in calls_of(body):
            self.toolbox.record_tool_call(call.name)

    async def append(self, new_messages: Sequence[NewMessage]) -> list[StoredMessage]:
        """Store messages and add them to the view, with those that other writers stored since."""
        counted_messages = [
            replace(item, tokens=self.model.counter.message(item.body)) for item in new_messages
        ]
        stored_messages = await self.store.append(self.session.id, counted_messages)
        for message in stored_messages:
            if message.session == self.session.id and message.seq == len(self.messages.stored):
                self.messages.add(message)
                self._record_tool_calls(message.body)
            elif message.id not in self.messages.ids:
                await self.reload()
                break
        return stored_messages

    async def reload(self) -> None:
        """Read the thread's tip again, because another process wrote to it or continued it."""
        old_id = self.session.id
        await self.move_to_tip()
        if self.session.id == old_id:
            self._restore_tools(await load_saved_state(self.store, self.session))
            return
        records = await self.store.list_compactions(self.session.thread)
        self.compaction_count = sum(record.reverted_at is None for record in records)
        await self.restore()
        self.report_session_start("compression", old_id)

    def report_session_start(
        self, reason: SessionStartReason, previous_session_id: str | None
    ) -> None:
        """Tell the engine that the session has started."""
        self.engine.call(
            ContextEngine.on_session_start,
            self.session.id,
            reason=reason,
            previous=previous_session_id,
        )

    def forget_last_request(self) -> None:
        """Forget the last request, because the next one has another beginning or another model."""
        self.last_request = None
        self.last_marked_index = None

    async def move_to_tip(self) -> None:
        """Show the session at the thread's tip. If it is another one, forget the facts about the last request."""
        store = self.store
        tip = await store.get_compression_tip(self.session.id)
        session, stored_messages = await asyncio.gather(
            store.load_session(tip), store.list_messages(tip)
        )
        if session.id != self.session.id:
            self.learnt_usage.calibration.reset()
            self.forget_last_request()
        self.show_session(session, stored_messages)

    @property
    def estimate(self) -> int:
        """Tokens of the next prompt, as estimated here."""
        return self._fixed_estimate + self.messages.tokens

    @property
    def tokens(self) -> int:
        """Tokens of the next prompt: the provider's last count, and an estimate of the messages since."""
        return self.learnt_usage.calibration.project(self.model.name, self.estimate)

    @property
    def has_report(self) -> bool:
        """Whether `tokens` is based on the count of this model's provider."""
        return self.learnt_usage.calibration.has_report(self.model.name)

    @property
    def fixed_tokens(self) -> int:
        """Tokens of system prompt and tools, scaled like `tokens`."""
        return round(self._fixed_estimate * self.learnt_usage.calibration.factor(self.model.name))

    @property
    def size(self) -> PromptSize:
        """The size of the next prompt, in the form that the policy takes."""
        return PromptSize(
            self.tokens,
            self.fixed_tokens,
            self.budget,
            output_cap=self.options.max_tokens,
            is_mid_turn=self._is_mid_turn,
        )

    @property
    def _is_mid_turn(self) -> bool:
        bodies = self.messages.bodies
        return bool(bodies) and bodies[-1]["role"] == "tool"

    @property
    def cold_reason(self) -> str:
        """Why the provider's cache does not hold the next prompt; empty if it may."""
        return self.policy.explain_cold_cache(self.learnt_usage)

    def _compute_budget(self) -> Budget:
        return self.model.options.budget(self.model.window, fixed_tokens=self.fixed_tokens)

    def _estimate_fixed_tokens(self) -> int:
        return self.model.counter.request((), system=self.system, tools=self.toolbox.schemas)

    def use_route(self, route: Route) -> None:
        """Switch to another model, with its window and token counter."""
        self.learnt_usage.note_model_change(route.name)
        self.model = self._open_model(route)
        self.forget_last_request()
        self.messages.use_counter(self.model.counter)
        self._fixed_estimate = self._estimate_fixed_tokens()
        self.use_window(route.window)

    def use_window(self, window: int) -> None:
        """Apply another window."""
        self.model = self.model.with_window(window)
        self.budget = self._compute_budget()
        self.engine.call(ContextEngine.update_model, self._make_services())

    @property
    def limit_key(self) -> LimitKey:
        return self.model.make_limit_key(self.session.tenant)

    async def load_limits(self) -> None:
        """Apply the limits that were learnt for the model."""
        previous_window = self.model.window
        limits = await self.limits.load(self.limit_key, self.model.route.window)
        self.model = replace(self.model, limits=limits)
        if limits.window != previous_window:
            self.use_window(limits.window)

    def make_tool_room(self, system: System) -> ToolRoom:
        """Return the room that tools have beside a system prompt."""
        factor = self.learnt_usage.calibration.factor(self.model.name)
        return ToolRoom(
            self.model.counter,
            self.model.nominal_budget.threshold / factor,
            self.options.tools_share,
            system=system,
            messages=self.messages.bodies,
            is_limited=self.options.enabled,
        )

    def leave_out_tools(
        self, left_out: Sequence[str], reason: str, *, is_immediate: bool = False
    ) -> None:
        """Leave these tools out, and emit an event if the choice changed."""
        change = self.toolbox.leave_out(left_out, self.model.name, forget_requests=not is_immediate)
        if change is None:
            return
        self._fit_tools()
        if self.last_request is not None:
            self.learnt_usage.note_cache_change("other tools are offered")
        self.emit(
            events.ToolsChanged(
                self.session.id,
                self.toolbox.left_out,
                removed_names=change.removed_names,
                returned_names=change.returned_names,
                tool_count=len(self.toolbox.all_tools),
                tokens_saved=self.toolbox.count_saved_tokens(self.model.counter),
                reason=reason,
                is_immediate=is_immediate,
            )
        )

    def replace_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        self.learnt_usage.note_cache_change("other tools are offered")
        self.toolbox.replace_tools(tools)
        self._fit_tools()

    def _fit_tools(self) -> None:
        """Fit the budget to the tools that are offered now, and pass a changed one to the engine."""
        self._fixed_estimate = self._estimate_fixed_tokens()
        if self._compute_budget() != self.budget:
            self.use_window(self.model.window)

    def _open_model(self, route: Route) -> ActiveModel:
        """Return the model of a route, with its usual window and a summariser."""
        counter = TokenCounter(route.name)
        context = SummarizerContext(
            route,
            counter,
            get_last_request=lambda: self.last_request,
            report=self.emit_report,
            report_abandoned=lambda request: self.accounting.note_cancelled(
                self.session.id, request
            ),
            is_warm=lambda: not self.cold_reason,
        )
        return ActiveModel(
            route,
            CallLimits(route.window),
            self.options.for_model(route.name),
            counter=counter,
            summarizer=LoopSummarizer(self.setup.make_summarizer(context), counter),
        )

    def _make_services(self) -> Services:
        archive = SessionArchive(
            self.store, self.session.tenant, self.session.thread, lambda: self.messages.stored
        )
        return Services(
            self.model.summarizer,
            self.model.counter,
            budget=self.budget,
            clock=self.setup.clock,
            events=self._report_in_loop,
            lookup=archive,
            archive=archive,
            is_stored=True,
            summary_key=self.setup.summary_key,
        )

    async def save(self) -> None:
        """Save learnt usage, tools and engine with the session, so that any process can continue it."""
        used_window = UsedWindow(
            self.model.name,
            self.model.window,
            threshold=self.budget.threshold,
            source=describe_window(self.model.window, self.model.route),
        )
        await save_state(
            self.store,
            self.session.id,
            learnt_usage=self.learnt_usage,
            used_window=used_window,
            toolbox=self.toolbox,
            engine=self.engine,
        )

    async def restore(self) -> None:
        """Resume from the state that was saved for the session."""
        saved_state = await load_saved_state(self.store, self.session)
        self.learnt_usage = saved_state.learnt_usage
        self._restore_tools(saved_state)
        await restore_engine(self.store, self.session, self.engine)

    def _restore_tools(self, saved_state: SavedState) -> None:
        if saved_state.restore_tools(self.toolbox, self.model.name):
            self._fit_tools()


async def create_session(setup: Setup, new_session: NewSession) -> Session:
    """Create a session, with a system prompt written for it."""
    model = new_session.model or setup.route.name
    system = setup.build_system() if new_session.system is None else new_session.system
    return await setup.store.create_session(replace(new_session, model=model, system=system))


async def find_tip(setup: Setup, prefix: str, *, tenant: str | None) -> Session:
    """Return the tip of the thread with this id or id prefix."""
    session = await setup.store.resolve(prefix, tenant=tenant)
    return await setup.store.load_session(await setup.store.get_compression_tip(session.id))


async def load_state(
    setup: Setup,
    session: Session,
    tools: Sequence[dict[str, Any]],
    *,
    reason: SessionStartReason,
) -> ConversationState:
    """Load a session: its messages, the state of its engine, and the learnt limits of its model."""
    state = ConversationState(setup, session, tools)
    store = setup.store
    messages, records = await asyncio.gather(
        store.list_messages(session.id), store.list_compactions(session.thread)
    )
    state.show_session(session, messages)
    state.compaction_count = sum(record.reverted_at is None for record in records)
    await state.restore()
    await state.load_limits()
    state.report_session_start(reason, session.parent)
    return state
