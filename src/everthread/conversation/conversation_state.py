"""The state of a running conversation: the messages in view, their size, the engine and the summariser."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction.engine import ContextEngine, Services, StartReason
from everthread.conversation.offered_tools import Toolbox
from everthread.conversation.session_archive import SessionArchive
from everthread.core.messages import Message, ToolCall, calls_of, results_of
from everthread.core.summary_marks import mark_summary
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import ModelRequest, System
from everthread.errors import InputError
from everthread.store.records import LimitKey, NewMessage, NewSession, Session, StoredMessage
from everthread.thread import events
from everthread.thread.accounting import Accounting
from everthread.thread.engines.engine_failures import SafeEngine
from everthread.thread.engines.plugin_engines import LoopSummarizer, report_in_loop
from everthread.thread.model_limits import CallLimits, ModelLimits
from everthread.thread.options import Route, Setup, SummarizerContext
from everthread.thread.policy.call_prices import CallPrices
from everthread.thread.policy.compaction_policy import CompactionPolicy
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.policy.prompt_size import PromptSize
from everthread.thread.used_window import (
    CONVERSATION_STATE,
    UsedWindow,
    describe_window,
)
from everthread.wire.anthropic.anthropic_history import EncodedHistory

ENGINE_KEY = "engine"
TOOLS_KEY = "tools"
LEFT_OUT_TOOLS_KEY = "tools_left_out"
"""A key of a compaction's figures: the tools left out are committed in one transaction with the new session."""


class ConversationState:
    """A session in memory. Its messages were read from the store or confirmed by it."""

    def __init__(
        self, setup: Setup, session: Session, tools: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.setup = setup
        self.session = session
        self.route = setup.route
        self.call_limits = CallLimits(setup.route.window)
        self.budget = self.nominal_budget
        self.counter = TokenCounter(self.route.name)
        self.learnt = LearntUsage()
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
        self.toolbox = Toolbox(self, tools)
        self.stored: list[StoredMessage] = []
        self.bodies: list[Message] = []
        self.ids_in_view: set[int] = set()
        self.open_calls: dict[str, ToolCall] = {}
        self.summarizer = self._make_summarizer()
        self._report_in_loop = report_in_loop(self.emit_report)
        self.engine = SafeEngine(
            setup.make_engine(self._make_services()),
            lambda text: self._report_in_loop("notice", text=text),
        )
        self.tools = self.toolbox.schemas
        self._total_tokens = self.counter.request((), system=self.system, tools=self.tools)
        self._fit_budget()

    @property
    def window(self) -> int:
        return self.call_limits.window

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
            window=self.window,
            threshold=size.budget.threshold,
            reported=self.has_report,
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
        self.stored = []
        self.bodies = []
        self.open_calls = {}
        self.ids_in_view.clear()
        self._recount_tokens()
        for message in stored_messages:
            self.add(message)

    def add(self, message: StoredMessage) -> None:
        self.stored.append(message)
        self.ids_in_view.add(message.id)
        body = message.body
        self.bodies.append(
            mark_summary(body, self.setup.summary_key) if message.kind == "summary" else body
        )
        self._total_tokens += self.counter.message(message.body)
        for result in results_of(message.body):
            self.open_calls.pop(result.call_id, None)
        for call in calls_of(message.body):
            self.open_calls[call.id] = call
            self.toolbox.record_tool_call(call.name)

    async def append(self, new_messages: Sequence[NewMessage]) -> list[StoredMessage]:
        """Store messages and add them to the view, with those that other writers stored since."""
        counted_messages = [
            replace(item, tokens=self.counter.message(item.body)) for item in new_messages
        ]
        stored_messages = await self.setup.store.append(self.session.id, counted_messages)
        for message in stored_messages:
            if message.session == self.session.id and message.seq == len(self.stored):
                self.add(message)
            elif message.id not in self.ids_in_view:
                await self.reload()
                break
        return stored_messages

    async def reload(self) -> None:
        """Read the thread's tip again, because another process wrote to it or continued it."""
        old_id = self.session.id
        await self.move_to_tip()
        if self.session.id == old_id:
            await self.restore_tools()
            return
        records = await self.setup.store.compactions(self.session.thread)
        self.compaction_count = sum(record.reverted_at is None for record in records)
        await self.restore()
        self.report_session_start("compression", old_id)

    def report_session_start(self, reason: StartReason, previous_session_id: str | None) -> None:
        """Tell the engine that the session has started."""
        self.engine.call(
            ContextEngine.on_session_start,
            self.session.id,
            reason=reason,
            previous=previous_session_id,
        )

    async def move_to_tip(self) -> None:
        """Show the thread's tip. In another session, forget the facts about the last request."""
        store = self.setup.store
        tip = await store.get_compression_tip(self.session.id)
        session, stored_messages = await asyncio.gather(store.session(tip), store.messages(tip))
        if session.id != self.session.id:
            self.learnt.calibration.reset()
            self.last_marked_index = None
            self.last_request = None
        self.show_session(session, stored_messages)

    @property
    def estimate(self) -> int:
        return self._total_tokens

    @property
    def tokens(self) -> int:
        """Tokens of the next prompt: the provider's last count, and an estimate of the messages since."""
        return self.learnt.calibration.project(self.route.name, self.estimate)

    @property
    def has_report(self) -> bool:
        """Whether `tokens` is based on the count of this model's provider."""
        return self.learnt.calibration.has_report(self.route.name)

    @property
    def answering_model(self) -> str:
        """The name of the model that answers: the route's own, or its fallback."""
        return self.route.name if self.route.model is None else self.route.model.name

    @property
    def fixed_tokens(self) -> int:
        """Tokens of system prompt and tools, scaled like `tokens`."""
        estimate = self.counter.request((), system=self.system, tools=self.tools)
        return round(estimate * self.learnt.calibration.factor(self.route.name))

    @property
    def size(self) -> PromptSize:
        """The size of the next prompt, in the form that the policy takes."""
        return PromptSize(
            self.tokens,
            self.fixed_tokens,
            self.budget,
            output_cap=self.setup.options.max_tokens,
            is_mid_turn=bool(self.bodies) and self.bodies[-1]["role"] == "tool",
        )

    @property
    def prices(self) -> CallPrices:
        route = self.route
        return CallPrices(
            route.name,
            route.provider,
            route.caches_by_marks,
            self.summarizer.summarizer,
        )

    @property
    def cold_reason(self) -> str:
        """Why the provider's cache does not hold the next prompt; empty if it may."""
        return self.policy.find_cold_reason(self.learnt)

    @property
    def nominal_budget(self) -> Budget:
        """The budget by the settings, whatever the size of system prompt and tools."""
        return self.setup.options.for_model(self.route.name).budget(self.window)

    def _fit_budget(self) -> None:
        """Compute the budget for this window, system prompt and tools, and pass a changed one to the engine."""
        if self._compute_budget() != self.budget:
            self.use_window(self.window)

    def _compute_budget(self) -> Budget:
        return self.setup.options.for_model(self.route.name).budget(
            self.window, fixed_tokens=self.fixed_tokens
        )

    def _recount_tokens(self) -> None:
        self._total_tokens = self.counter.request((), system=self.system, tools=self.tools)
        for body in self.bodies:
            self._total_tokens += self.counter.message(body)

    def use_route(self, route: Route) -> None:
        """Switch to another model, with its window and token counter."""
        self.learnt.cache_change = f"the model is {route.name} now"
        self.learnt.pause.unjudged_tokens_before = 0
        self.route = route
        self.counter = TokenCounter(route.name)
        self.summarizer = self._make_summarizer()
        self.last_marked_index = None
        self.last_request = None
        self.learnt.calibration.reset()
        self._recount_tokens()
        self.use_window(route.window)

    def use_window(self, window: int) -> None:
        """Apply another window."""
        self.call_limits = replace(self.call_limits, window=window)
        self.budget = self._compute_budget()
        self.engine.call(ContextEngine.update_model, self._make_services())

    @property
    def limit_key(self) -> LimitKey:
        """The key under which limits of the model are kept."""
        return LimitKey(
            self.route.base_url,
            self.route.name,
            tenant=self.session.tenant,
            headers=self.route.headers,
        )

    async def load_limits(self) -> None:
        """Apply the limits that were learnt for the model."""
        previous_window = self.window
        self.call_limits = await self.limits.load(self.limit_key, self.route.window)
        if self.window != previous_window:
            self.use_window(self.window)

    def replace_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        self.learnt.cache_change = "other tools are offered"
        self.toolbox.replace_tools(tools)
        self.offer_tools(self.toolbox.schemas)

    def offer_tools(self, tools: list[dict[str, Any]]) -> None:
        """Offer these tools to the model."""
        self.tools = tools
        self._recount_tokens()
        self._fit_budget()

    def _make_summarizer(self) -> LoopSummarizer:
        return LoopSummarizer(
            self.setup.make_summarizer(self._make_summarizer_context()), self.counter
        )

    def _make_summarizer_context(self) -> SummarizerContext:
        return SummarizerContext(
            self.route,
            self.counter,
            get_last_request=lambda: self.last_request,
            report=self.emit_report,
            report_abandoned=lambda request: self.accounting.note_cancelled(
                self.session.id, request
            ),
            is_warm=lambda: not self.cold_reason,
        )

    def _make_services(self) -> Services:
        archive = SessionArchive(
            self.setup.store, self.session.tenant, self.session.thread, lambda: self.stored
        )
        return Services(
            self.summarizer,
            self.counter,
            budget=self.budget,
            clock=self.setup.clock,
            events=self._report_in_loop,
            lookup=archive,
            archive=archive,
            is_stored=True,
            summary_key=self.setup.summary_key,
        )

    async def save(self) -> None:
        """Save engine, calibration, call pattern and tools per session, so that an undo finds the parent's."""
        store = self.setup.store
        session = self.session.id
        used_window = UsedWindow(
            self.route.name,
            self.window,
            threshold=self.budget.threshold,
            source=describe_window(self.window, self.route),
        )
        saved_state = {**self.learnt.dump(), **used_window.dump()}
        if self.toolbox.all_tools:
            saved_state[TOOLS_KEY] = self.toolbox.dump()
        await asyncio.gather(
            self._save_engine(session),
            store.state.put_state(session, CONVERSATION_STATE, saved_state),
        )

    async def _save_engine(self, session: str) -> None:
        engine_state = self.engine.call(ContextEngine.dump_state)
        state = {"name": self.engine.name, "state": engine_state or {}}
        try:
            await self.setup.store.state.put_state(session, ENGINE_KEY, state)
        except InputError as error:  # not JSON
            self.engine.report_failed_method("dump_state", error)

    async def restore(self) -> None:
        """Resume from the saved state of the session. A continuation without one uses the state of its parent.

        A branch begins with its parent's context, so it also begins with the engine's state.
        """
        store = self.setup.store
        session = self.session
        engine, calibration = await asyncio.gather(
            store.state.get_state(session.id, ENGINE_KEY),
            store.state.get_state(session.id, CONVERSATION_STATE),
        )
        self.learnt = LearntUsage.load(calibration)
        if (
            engine is None
            and session.parent is not None
            and session.kind in ("continuation", "branch")
        ):
            engine = await store.state.get_state(session.parent, ENGINE_KEY)
        if calibration is None and session.parent is not None and session.kind == "continuation":
            self.learnt = LearntUsage.load(
                await store.state.get_state(session.parent, CONVERSATION_STATE)
            )
            self.learnt.calibration.reset()
        await self.restore_tools()
        if isinstance(engine, dict) and engine.get("name") == self.engine.name:
            self.engine.call(ContextEngine.load_state, engine.get("state") or {})

    async def restore_tools(self) -> None:
        """Offer the tools that were saved with the session, or with its parent if the session has no saved state."""
        if not self.toolbox.all_tools:
            return
        store = self.setup.store
        session = self.session
        own_state = await store.state.get_state(session.id, CONVERSATION_STATE)
        if own_state is None and self.toolbox.is_settled and session.kind != "continuation":
            return  # no process has saved a state: keep the choice made here
        if (
            own_state is not None
            or session.parent is None
            or session.kind not in ("continuation", "branch")
        ):
            self.toolbox.load(_read_tools(own_state))
            return
        parent_state = await store.state.get_state(session.parent, CONVERSATION_STATE)
        left_out = None
        if session.kind == "continuation":
            records = [
                record
                for record in await store.compactions(session.thread)
                if record.session == session.id
            ]
            left_out = [
                name
                for record in records
                for name in record.record.figures.get(LEFT_OUT_TOOLS_KEY, ())
            ]
        self.toolbox.load(_read_tools(parent_state), left_out=left_out)


def _read_tools(saved_state: Any) -> Any:
    return saved_state.get(TOOLS_KEY) if isinstance(saved_state, dict) else None


async def create_session(setup: Setup, new_session: NewSession) -> Session:
    """Create a session, with a system prompt written for it."""
    model = new_session.model or setup.route.name
    system = setup.build_system() if new_session.system is None else new_session.system
    return await setup.store.create_session(replace(new_session, model=model, system=system))


async def find_tip(setup: Setup, prefix: str, *, tenant: str | None) -> Session:
    """Return the tip of the thread with this id or id prefix."""
    session = await setup.store.resolve(prefix, tenant=tenant)
    return await setup.store.session(await setup.store.get_compression_tip(session.id))


async def load_state(
    setup: Setup,
    session: Session,
    tools: Sequence[dict[str, Any]],
    *,
    reason: StartReason,
) -> ConversationState:
    """Load a session: its messages, the state of its engine, and the learnt limits of its model."""
    state = ConversationState(setup, session, tools)
    store = setup.store
    messages, records = await asyncio.gather(
        store.messages(session.id), store.compactions(session.thread)
    )
    state.show_session(session, messages)
    state.compaction_count = sum(record.reverted_at is None for record in records)
    await state.restore()
    await state.load_limits()
    state.report_session_start(reason, session.parent)
    return state
