"""The state of a running conversation: what is in view, how large it is, and who works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from everthread.compaction.engine import Services
from everthread.conversation import events
from everthread.conversation.archive import SessionArchive
from everthread.conversation.economy import Economy
from everthread.conversation.embedding import Embedding
from everthread.conversation.guarding import Guarded
from everthread.conversation.lookup import StoreLookup
from everthread.conversation.regret import Regrets
from everthread.conversation.saving import restore, restore_tools
from everthread.conversation.setup import Desk, Route, Setup
from everthread.conversation.toolbox import Toolbox
from everthread.core.calibration import Calibration
from everthread.core.exchange import Request, System
from everthread.core.messages import Call, Message, calls_of, results_of
from everthread.core.rhythm import Rhythm
from everthread.core.tokens import TokenCounter
from everthread.store.base import NewMessage, Session, StoredMessage
from everthread.wire.anthropic.writing import Written

SPARE_OUTPUT = 4_096
"""Room for an answer where its cap is not known."""


class Live:
    """A session in memory. What it holds was read from the store or confirmed by it."""

    def __init__(self, setup: Setup, session: Session, tools: Sequence[dict[str, Any]] = ()) -> None:
        self.setup = setup
        self.session = session
        self.route = setup.route
        self.window = setup.route.window
        self.learnt: int | None = None
        self.budget = setup.options.budget(self.window)
        self.counter = TokenCounter(self.route.name)
        self.calibration = Calibration()
        self.last_request: Request | None = None
        self.marked: int | None = None
        """Which message the last request had its last cache mark on."""
        self.written = Written()
        self.compactions = 0
        self.after = 0
        """What the last compaction left, in tokens."""
        self.rhythm = Rhythm()
        self.economy = Economy(self)
        self.lost: list[Request] = []
        """Requests of a summariser that were given up under way; they are accounted for as estimated."""
        self.toolbox = Toolbox(self, tools)
        self.regrets = Regrets(self)
        self.embedding = Embedding(self)
        self.stored: list[StoredMessage] = []
        self.bodies: list[Message] = []
        self._known: set[int] = set()
        self.open_calls: dict[str, Call] = {}
        self.summarizer = setup.summarizer(self._desk())
        self.engine = Guarded(setup.engine(self._services()), lambda text: self.tell("notice", text=text))
        self.tools = self.toolbox.schemas
        self._total = self.counter.running(system=self.system, tools=self.tools)

    @property
    def system(self) -> System:
        return self.session.system

    def emit(self, event: events.Event) -> None:
        self.setup.listener(event)

    def tell(self, kind: str, **details: Any) -> None:
        """What an engine or a summariser tells, as events of the session."""
        if kind == "notice":
            self.emit(events.Notice(self.session.id, str(details.get("text", ""))))
        else:
            self.emit(events.CompactionProgress(self.session.id, events.progress_text(kind, details)))

    # What is in view

    @property
    def in_view(self) -> AbstractSet[int]:
        """Ids of the messages that are."""
        return self._known

    def show(self, session: Session, stored: Sequence[StoredMessage]) -> None:
        """Another session, or the same read anew."""
        self.session = session
        self.stored, self.bodies, self.open_calls = [], [], {}
        self._known.clear()
        self._recount()
        for message in stored:
            self.add(message)

    def add(self, message: StoredMessage) -> None:
        self.stored.append(message)
        self._known.add(message.id)
        self.bodies.append(message.body)
        self._total.append(message.body)
        for result in results_of(message.body):
            self.open_calls.pop(result.call_id, None)
        for call in calls_of(message.body):
            self.open_calls[call.id] = call
            self.toolbox.saw(call.name)

    async def append(self, new: Sequence[NewMessage]) -> list[StoredMessage]:
        """Store messages and take them into view; also what others stored meanwhile."""
        counted = [replace(item, tokens=self.counter.message(item.body)) for item in new]
        stored = await self.setup.store.append(self.session.id, counted)
        for message in stored:
            if message.session == self.session.id and message.seq == len(self.stored):
                self.add(message)
            elif message.id not in self._known:
                await self.reload()
                break
        return stored

    async def reload(self) -> None:
        """Read the thread's tip again: another process wrote to it, or continued it, and then knows more."""
        old = self.session.id
        await self.move_to_tip()
        if self.session.id == old:
            await restore_tools(self)
            return
        records = await self.setup.store.compactions(self.session.thread)
        self.compactions = sum(record.reverted is None for record in records)
        await restore(self)
        self.engine.on_session_start(self.session.id, reason="compression", previous=old)

    async def move_to_tip(self) -> None:
        """Show the thread's tip; what was known of the last request means nothing in another session."""
        store = self.setup.store
        tip = await store.get_compression_tip(self.session.id)
        session, stored = await asyncio.gather(store.session(tip), store.messages(tip))
        if session.id != self.session.id:
            self.calibration.reset()
            self.marked, self.last_request = None, None
        self.show(session, stored)

    # How large it is

    @property
    def estimate(self) -> int:
        return self._total.tokens

    @property
    def tokens(self) -> int:
        """The next prompt: what the provider counted last, and the estimate of what came since."""
        return self.calibration.project(self.route.name, self.estimate)

    @property
    def reported(self) -> bool:
        """Whether `tokens` builds on what this model's provider counted."""
        return self.calibration.reported(self.route.name)

    @property
    def answering(self) -> str:
        """Which model is asked: the route's own, or one that stepped in for it."""
        return self.route.name if self.route.model is None else self.route.model.name

    @property
    def fixed(self) -> int:
        """System prompt and tools, by the same measure."""
        bare = self.counter.request((), system=self.system, tools=self.tools)
        return round(bare * self.calibration.factor(self.route.name))

    @property
    def hard_limit(self) -> int:
        """From here on a request has no room for its answer: it cannot go without a compaction."""
        output = min(self.setup.options.max_tokens or SPARE_OUTPUT, self.window // 8)
        return max(self.budget.threshold, self.window - output - self.window // 50)

    def _recount(self) -> None:
        self._total = self.counter.running(system=self.system, tools=self.tools)
        for body in self.bodies:
            self._total.append(body)

    # Who works on it

    def use(self, route: Route, *, learnt: int | None = None) -> None:
        """Another model: its window, its way of counting."""
        self.economy.changed = f"the model is {route.name} now"
        self.route = route
        self.counter = TokenCounter(route.name)
        self.summarizer = self.setup.summarizer(self._desk())
        self.learnt = learnt
        self.marked, self.last_request = None, None
        self.calibration.reset()
        self.fit(min(route.window, learnt or route.window))
        self._recount()

    def fit(self, window: int) -> None:
        """Another window."""
        self.window = window
        self.budget = self.setup.options.budget(window)
        self.engine.update_model(self._services())

    def take_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        self.economy.changed = "other tools are offered"
        self.toolbox.take(tools)
        self.offer(self.toolbox.schemas)

    def offer(self, tools: list[dict[str, Any]]) -> None:
        """What the model is shown of them."""
        self.tools = tools
        self._recount()

    def _desk(self) -> Desk:
        return Desk(
            self.route,
            self.counter,
            lambda: self.last_request,
            self.tell,
            self.lost.append,
            lambda: not self.economy.cold,
        )

    def _services(self) -> Services:
        lookup = StoreLookup(self.setup.store, self.session.tenant, self.session.thread, reach="all")
        archive = SessionArchive(self, lookup)
        return Services(
            self.summarizer, self.counter, self.budget, self.setup.clock, self.tell, lookup, archive
        )  # fmt: skip
