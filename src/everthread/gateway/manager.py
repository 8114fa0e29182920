"""Decides what goes upstream for a client that sends its whole history each time.

    manager = ProxyManager(ManagerSetup(store, engine, engine_key, summarizer, window))
    turn = await manager.prepare(incoming)          # turn.sent: the very bytes, or the beginning rewritten
    again = await turn.recover(400, error)          # after an error of the provider
    await turn.record(outcome)

Rewrites are kept in the store and found again by the history itself, so a manager may die at any moment and another
one, in another process, sends the same bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.conversation.compaction import COLD, FADING, GRACE
from everthread.conversation.events import CompactionFailed, Event, Listener, Notice
from everthread.conversation.options import Route, SessionOptions, SummarizerContext
from everthread.conversation.state import SPARE_OUTPUT
from everthread.core.economics import EARLIEST
from everthread.core.exchange import Api
from everthread.core.ladder import Strength
from everthread.core.summary import Summarizer
from everthread.core.tokens import TokenCounter
from everthread.core.usage import CanonicalUsage
from everthread.errors import EverthreadError
from everthread.gateway.accounting import Accounts
from everthread.gateway.base import THREAD, Incoming, Outcome, Outgoing, ProxyTurn, UnmanagedTurn
from everthread.gateway.economy import decide, is_free, ttl_of
from everthread.gateway.events import RecordFailed
from everthread.gateway.reading import Reader
from everthread.gateway.recovery import Recovery
from everthread.gateway.responding import Responses
from everthread.gateway.rewrite import SLIM, RewriteStore, RewriteTask, key_part, note_of
from everthread.gateway.sizing import Sizes
from everthread.gateway.thrashing import fading_text, paused_text
from everthread.gateway.threads import PendingAnswer, ThreadIndex, ThreadMatch, ThreadRecorder, scope_of
from everthread.gateway.turn import ThreadMemories, Turn, build_outgoing, send_untouched
from everthread.gateway.windows import Windows
from everthread.gateway.worker import LoopSummarizer, report_in_loop
from everthread.store.models import Rewrite
from everthread.store.store import Store


def _ignore_event(event: Event) -> None:
    """For whoever does not listen."""


@dataclass(frozen=True, slots=True)
class ManagerSetup:
    """Everything a manager needs from outside."""

    store: Store
    engine: Callable[[Services], ContextEngine]
    engine_key: str
    """Names the engine with its options: a rewrite is only for those who would have made the same."""
    summarizer: Callable[[SummarizerContext], Summarizer]
    window: Callable[[Api, str, str], Awaitable[int]]
    """Of a model at an address: `window(api, model, upstream)`; asked once for each."""
    options: SessionOptions = field(default_factory=SessionOptions)
    cache_markers: bool = True
    """Set marks for Claude clients that set none."""
    emulate_state: bool = False
    """Resolve `previous_response_id` here, for upstreams that keep no state."""
    listener: Listener = _ignore_event
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow."""
    wall: Callable[[], float] = time.time


GROWTH = 1.10
"""After a compaction that could make nothing smaller, the next one waits for this growth."""
_STATE = "gateway"
_CLOSE_SECONDS = 5.0
"""Seconds for summaries that are being written when the gateway ends."""
_CANCEL_SECONDS = 1.0
"""Seconds for those that are given up to say what they asked for."""


class ProxyManager:
    """`gateway.base.Manager`."""

    def __init__(self, setup: ManagerSetup) -> None:
        self.setup = setup
        self.windows = Windows(setup)
        self.accounts = Accounts(setup)
        self._threads = ThreadIndex(setup.store)
        self._recorder = ThreadRecorder(self._threads, setup.listener)
        self._rewrites = RewriteStore(setup.store, setup.listener, self.accounts.auxiliary)
        self._sizes = Sizes()
        self._reader = Reader(self._sizes)
        self._responses = Responses(setup.store)
        self._memories = ThreadMemories()
        self._jobs: dict[tuple[str, str], asyncio.Task[Rewrite | None]] = {}

    # The moments of a request

    async def prepare(self, incoming: Incoming) -> ProxyTurn:
        if incoming.mode == "off":
            return UnmanagedTurn(incoming)
        whole = await self._responses.expanded(incoming) if self._emulates(incoming) else None
        turn = await self._read(whole or incoming)
        if not len(turn.history):
            return UnmanagedTurn(incoming)  # nothing was said: there is no thread it could belong to
        turn.expanded = whole is not None
        self._recorder.begin(turn)
        if turn.rewritable and self.setup.options.enabled:
            await self._fit(turn)
        if turn.rewritable:
            turn.sent = self.send(turn)
        else:
            turn.estimate = turn.fixed + turn.size
            turn.sent = send_untouched(turn)
        return turn

    async def recover(self, turn: Turn, status: int, body: bytes) -> Outgoing | None:
        """What to send instead of a request that was refused; None where the client gets the error."""
        return await Recovery(self, turn).meet(status, body)

    async def response_headers(self, turn: Turn) -> Mapping[str, str]:
        """The thread is told once that is certain."""
        if turn.storing is None and turn.place.explicit:
            return turn.sent.headers  # an answer that is quicker than the store does not wait for it
        place = await self._recorder.request(turn)
        others = {name: value for name, value in turn.sent.headers.items() if name != THREAD}
        return {THREAD: place.thread, **others} if turn.kept else others

    async def record(self, turn: Turn, outcome: Outcome) -> None:
        """Store what was said and used, and prepare the next rewrite where it will soon be due."""
        said = self._recorder.said(turn, outcome)
        try:
            await self._keep(turn, outcome, said)
        finally:
            if said is not None:
                self._recorder.give_up(said)
        if 200 <= outcome.status < 300 and turn.rewritable:
            self._prepare_ahead(turn, outcome)

    async def _keep(self, turn: Turn, outcome: Outcome, said: PendingAnswer | None) -> None:
        """What was said and what it used into the store, and what it teaches."""
        place = await self._recorder.request(turn)
        answered = 200 <= outcome.status < 300
        if answered and outcome.usage is not None and not outcome.estimated:
            prompt = outcome.usage.prompt_tokens
            turn.memory.calibration.observe(turn.model, prompt, turn.estimate)
            self._time(turn, outcome.usage)
            await self.windows.disprove(turn, prompt)
            self._judge(turn, prompt)
        writes: list[Awaitable[Any]] = [
            self.setup.store.put_state(place.thread, _STATE, turn.memory.dump()),
            self.accounts.auxiliary(place.thread, (), turn.incoming.account),
        ]
        if answered or outcome.usage is not None:
            writes.append(self.accounts.main(turn, place, outcome))
        if said is not None:
            writes.append(self._recorder.answer(said, place, turn))
        reply = outcome.reply
        if answered and reply and reply.id and self._emulates(turn.incoming):
            writes.append(self._responses.keep(place, reply, turn))
        try:
            await asyncio.gather(*writes)  # together they are one transaction
        except EverthreadError as error:
            self.setup.listener(RecordFailed(place.thread, str(error)))

    def _time(self, turn: Turn, usage: CanonicalUsage) -> None:
        """Take the call into the thread's rhythm; after a rewrite its prompt is compared with none."""
        memory, wall = turn.memory, self.setup.wall()
        before = memory.rhythm.rewritten() if usage.prompt_tokens < memory.rhythm.prompt else memory.rhythm
        memory.rhythm = before.after(usage, wall, ttl=ttl_of(self.setup))

    def _emulates(self, incoming: Incoming) -> bool:
        return self.setup.emulate_state and incoming.mode == "managed" and incoming.api == "openai_responses"

    async def close(self) -> None:
        """What is prepared in the background is paid for, and may end; what takes longer is given up, and counted."""
        jobs = [job for job in self._jobs.values() if not job.done()]
        if jobs:
            await asyncio.wait(jobs, timeout=_CLOSE_SECONDS)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await self._rewrites.close(_CANCEL_SECONDS)
        await self.accounts.settle()

    # Reading

    async def _read(self, incoming: Incoming) -> Turn:
        """Whose it is and how large; of a known history only what is new costs more than a glance."""
        read = self._reader.read(incoming.api, incoming.body)
        place = await self._threads.place(incoming.tenant, scope_of(incoming.headers), read.history)
        memory = await self._memory(place)
        turn = Turn(
            self, incoming, read.sliced, read.first, read.history, read.frame, read.sizes, read.fixed, place, memory
        )
        turn.window = await self.windows.of(turn)
        return turn

    async def _memory(self, place: ThreadMatch) -> Any:
        known = self._memories.get(place.thread)
        if known is not None:
            return known
        source = place.branch_of[0] if place.branch_of else place.thread
        state = await self.setup.store.get_state(source, _STATE) if place.matched else None
        return self._memories.begin(place.thread, state)

    # Fitting

    def tokens(self, turn: Turn, used: Rewrite | None) -> int:
        """The prompt as the provider counts it, with this rewrite or none."""
        return turn.memory.calibration.project(turn.model, self.estimate(turn, used))

    def estimate(self, turn: Turn, used: Rewrite | None) -> int:
        if used is None:
            return turn.fixed + turn.size
        values = turn.replaced_values(used)
        head = self._sizes.values(turn.incoming.api, turn.model, used.replacement, values)
        note = note_of(used.state)
        if note:
            said = [{"role": "user", "content": note}]
            head += self._sizes.values(turn.incoming.api, turn.model, ("note", note), said)
        return turn.fixed + head + sum(turn.sizes[used.length :])

    def send(self, turn: Turn) -> Outgoing:
        """What goes upstream as things stand."""
        turn.estimate = self.estimate(turn, turn.used)
        before, after = self.tokens(turn, None), self.tokens(turn, turn.used)
        ttl = self.setup.options.cache_ttl if self.setup.cache_markers else None
        sent = build_outgoing(turn, before, after, ttl=ttl)
        return replace(sent, rewritten=True) if turn.expanded else sent

    async def _fit(self, turn: Turn) -> None:
        """Use the rewrite there is; make one where it is time. Waits only where the request cannot go without."""
        options = self.setup.options
        budget = turn.budget(options)
        earliest = EARLIEST * budget.threshold if options.economics else budget.background_start
        small = self.tokens(turn, None) < earliest
        if turn.sliced.single or (small and not turn.memory.slim):
            return
        await self.look_up(turn)
        tokens = self.tokens(turn, turn.used)
        early = self._weighed(turn, tokens)
        if tokens < budget.threshold and not early:
            return
        if tokens >= budget.threshold and turn.decision.startswith("later"):
            return
        turn.relieved = tokens
        if turn.ready is not None:
            turn.used, turn.ready = turn.ready, None
            tokens = self.tokens(turn, turn.used)
        for _ in range(2):  # what is under way may be of an earlier request, and cover too little
            if (tokens < budget.threshold and not early) or not self._can_win(turn, tokens):
                return
            job = self._job(turn, background=options.background, reason=COLD if early else "in-loop")
            early, must = False, tokens >= self._full(turn)
            await asyncio.wait({job}, timeout=None if must or not options.background else GRACE)
            if not job.done():
                return
            await self.look_up(turn, forced=True)
            tokens = self.tokens(turn, turn.used)

    def _weighed(self, turn: Turn, tokens: int) -> bool:
        """Put the decision on the turn; whether it is to compact below the threshold, at a cold cache."""
        budget = turn.budget(self.setup.options)
        if tokens < EARLIEST * budget.threshold:
            return False
        writer = self.setup.summarizer(self._desk(turn, turn.place.thread))
        decision = decide(self.setup, turn, tokens, self._full(turn), writer)
        early = decision is not None and decision.action == "now" and tokens < budget.threshold and is_free(writer)
        if decision is not None and (early or tokens >= budget.threshold):
            turn.decision = str(decision)
        return early

    def _full(self, turn: Turn) -> int:
        """From here on a request has no room for its answer."""
        room = turn.window - self._room(turn) - turn.window // 50
        return max(turn.budget(self.setup.options).threshold, room)

    def _can_win(self, turn: Turn, tokens: int) -> bool:
        fixed = turn.fixed * turn.memory.calibration.factor(turn.model)
        if tokens < turn.memory.futile or fixed >= turn.budget(self.setup.options).threshold:
            return False
        return not turn.memory.pause.holds(tokens, self.setup.wall())

    def _judge(self, turn: Turn, prompt: int) -> None:
        """What a rewrite that is new brought: two in a row that hardly help pause the next ones."""
        used, pause = turn.used, turn.memory.pause
        if used is None or used.strength == SLIM:
            return
        if turn.compactions:
            pause.exempt(used.depth)
        elif pause.judge(
            used.depth, turn.relieved or turn.budget(self.setup.options).threshold, prompt, self.setup.wall()
        ):
            self.setup.listener(Notice(turn.place.thread, paused_text(prompt)))

    def _room(self, turn: Turn) -> int:
        return min(turn.asked_output or SPARE_OUTPUT, turn.window // 8)

    async def look_up(self, turn: Turn, *, forced: bool = False) -> None:
        """The longest rewrite of the history; `forced`: also one that is not ripe."""
        key = self.engine_key(turn)
        found = await self._rewrites.find(turn.incoming.tenant, key, turn.history, turn.size)
        turn.used, turn.ready = found.used, found.ready
        if forced and turn.ready is not None:
            turn.used, turn.ready = turn.ready, None

    def engine_key(self, turn: Turn) -> str:
        return f"{turn.incoming.api} {self.setup.engine_key}{key_part(turn.frame.tools)}"

    # Making rewrites

    def _job(
        self, turn: Turn, *, background: bool, ripe: int = 0, reason: str = "in-loop"
    ) -> asyncio.Task[Rewrite | None]:
        """The compaction of a thread that is under way; a new one where there is none."""
        key = (turn.incoming.tenant, turn.place.thread)
        job = self._jobs.get(key)
        if job is None or job.done():
            job = asyncio.get_running_loop().create_task(
                self._made(turn, background=background, ripe=ripe, reason=reason)
            )
            self._jobs[key] = job
            job.add_done_callback(lambda done: self._jobs.pop(key, None) if self._jobs.get(key) is done else None)
        return job

    async def _made(self, turn: Turn, *, background: bool, ripe: int, reason: str) -> Rewrite | None:
        """A rewrite of the usual strength. A failure is told; the request goes on with what there is."""
        tokens = self.tokens(turn, turn.used)
        made: Rewrite | None = None
        try:
            made = await self._made_meanwhile(turn)
            if made is None:
                made = await self.compact(
                    turn, Strength.NORMAL, tokens, ripe=ripe, background=background and reason != COLD, reason=reason
                )
        except EverthreadError as error:
            self.setup.listener(CompactionFailed(turn.place.thread, str(error)))
        turn.memory.futile = 0 if made is not None else round(tokens * GROWTH)
        return made

    async def _made_meanwhile(self, turn: Turn) -> Rewrite | None:
        """A rewrite of more than the request used, which somebody made since it was looked for."""
        key = self.engine_key(turn)
        found = await self._rewrites.find(turn.incoming.tenant, key, turn.history, turn.size)
        longest = found.ready or found.used
        return longest if longest and longest.length > (turn.used.length if turn.used else 0) else None

    async def compact(self, turn: Turn, strength: Strength, tokens: int, **how: Any) -> Rewrite | None:
        """A rewrite that covers more than what is used now; `how`: what else its `Task` says."""
        task = await self._task(turn, tokens, strength=strength, **how)
        made = await self._rewrites.make(self._engine(turn, task), task)
        if made is not None and made.depth >= FADING:
            self.setup.listener(Notice(task.thread, fading_text(made.depth)))
        return made

    async def slim(self, turn: Turn) -> Rewrite | None:
        """A rewrite of fewer bytes that covers what was too much; None where there is nothing to leave out."""
        made = await self._rewrites.slim(await self._task(turn, self.tokens(turn, turn.used), reason="payload"))
        turn.memory.slim = turn.memory.slim or made is not None
        return made

    async def _task(self, turn: Turn, tokens: int, **how: Any) -> RewriteTask:
        place = await self._recorder.request(turn)
        return RewriteTask(
            tenant=turn.incoming.tenant,
            thread=place.thread,
            engine_key=self.engine_key(turn),
            api=turn.incoming.api,
            frame=turn.frame,
            sent=turn.pairs(),
            history=turn.history,
            budget=turn.budget(self.setup.options),
            tokens=tokens,
            base=turn.used,
            account=turn.incoming.account,
            decision=turn.decision,
            **how,
        )

    def _engine(self, turn: Turn, task: RewriteTask) -> ContextEngine:
        counter = TokenCounter(turn.model)
        desk = self._desk(turn, task.thread)
        summarizer = LoopSummarizer(self.setup.summarizer(desk))
        events = report_in_loop(desk.events)
        return self.setup.engine(Services(summarizer, counter, task.budget, self.setup.clock, events))

    def _desk(self, turn: Turn, thread: str) -> SummarizerContext:
        route = Route(turn.model, turn.incoming.api, turn.window, base_url=turn.incoming.upstream)
        lost = self.accounts.lost(thread, turn.incoming.account)
        return SummarizerContext(route, TokenCounter(turn.model), lambda: None, self._told(thread), lost)

    def _told(self, thread: str) -> Any:
        return self.accounts.telling(thread)

    def _prepare_ahead(self, turn: Turn, outcome: Outcome) -> None:
        """From 80 % of the threshold on the next rewrite is made beside the conversation."""
        options = self.setup.options
        if not (options.enabled and options.background) or turn.ready is not None or turn.sliced.single:
            return
        budget = turn.budget(options)
        said = outcome.usage.output_tokens if outcome.usage else 0
        tokens = self.tokens(turn, turn.used) + said
        if tokens < budget.background_start or not self._can_win(turn, max(tokens, budget.threshold)):
            return
        factor = max(turn.memory.calibration.factor(turn.model), 0.1)
        ripe = turn.size + max(0, round((budget.threshold - tokens) / factor))
        self._job(turn, background=True, ripe=ripe)

    async def settle(self) -> None:
        """Wait for what is prepared in the background."""
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
