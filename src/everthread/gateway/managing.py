"""Decides what goes upstream for a client that sends its whole history each time.

    manager = ProxyManager(ManagerSetup(store, engine, engine_key, summarizer, window))
    sent = await manager.prepare(incoming)          # the very bytes, or the beginning rewritten
    again = await manager.refused(incoming, sent, 400, error)     # after an error of the provider
    await manager.answered(incoming, sent, outcome)

Rewrites are kept in the store and found again by the history itself, so a manager may die at any moment and another
one, in another process, sends the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from everthread.core.ladder import Strength
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.engines.base import ContextEngine, Services
from everthread.errors import EverthreadError
from everthread.gateway.accounting import Accounts
from everthread.gateway.base import Incoming, Outcome, Outgoing
from everthread.gateway.covering import decoded, encoded, frame_of
from everthread.gateway.events import Branched, RecordFailed
from everthread.gateway.identity import Pieces, history, leading_system, piece_of, scope_of
from everthread.gateway.recovery import Recovery
from everthread.gateway.rewrites import Rewrites, Task
from everthread.gateway.sending import THREAD, outgoing, untouched
from everthread.gateway.setup import ManagerSetup
from everthread.gateway.sizing import Sizes
from everthread.gateway.slicing import slice_body
from everthread.gateway.tracing import Place, Threads
from everthread.gateway.turns import Memories, Turn, Turns
from everthread.gateway.windows import Windows
from everthread.session.background import GRACE
from everthread.session.events import CompactionFailed
from everthread.session.live import SPARE_OUTPUT
from everthread.session.setup import Desk, Route
from everthread.stores.proxied import Rewrite

GROWTH = 1.10
"""After a compaction that could make nothing smaller, the next one waits for this growth."""
_STATE = "gateway"


class ProxyManager:
    """`gateway.base.Manager`."""

    def __init__(self, setup: ManagerSetup) -> None:
        self.setup = setup
        self.windows = Windows(setup)
        self.accounts = Accounts(setup)
        self._threads = Threads(setup.store)
        self._rewrites = Rewrites(setup.store, setup.listener, self.accounts.auxiliary)
        self._pieces = Pieces()
        self._sizes = Sizes()
        self._turns = Turns()
        self._memories = Memories()
        self._jobs: dict[tuple[str, str], asyncio.Task[Rewrite | None]] = {}

    # The three moments of a request

    async def prepare(self, incoming: Incoming) -> Outgoing:
        if incoming.mode == "off":
            return Outgoing(incoming.raw)
        turn = await self._read(incoming)
        self._turns.add(turn)
        turn.record = asyncio.get_running_loop().create_task(self._record(turn))
        if turn.rewritable and self.setup.options.enabled:
            await self._fit(turn)
        if turn.rewritable:
            return self.send(turn)
        turn.estimate = turn.fixed + turn.size
        return untouched(turn)

    async def refused(
        self,
        incoming: Incoming,
        sent: Outgoing,  # noqa: ARG002 - the turn knows
        status: int,
        body: bytes,
    ) -> Outgoing | None:
        turn = self._turns.get(incoming)
        if turn is None or not turn.rewritable:
            return None
        return await Recovery(self, turn).meet(status, body)

    async def answered(
        self,
        incoming: Incoming,
        sent: Outgoing,  # noqa: ARG002 - the turn knows
        outcome: Outcome,
    ) -> None:
        turn = self._turns.pop(incoming)
        if turn is None:
            return
        place = await turn.record if turn.record else turn.place
        answered = 200 <= outcome.status < 300
        if answered and outcome.usage is not None and not outcome.estimated:
            prompt = outcome.usage.prompt_tokens
            turn.memory.calibration.observe(turn.model, prompt, turn.estimate)
            await self.windows.disprove(turn, prompt)
        writes: list[Awaitable[None]] = [
            self.setup.store.put_state(place.thread, _STATE, turn.memory.calibration.dump())
        ]
        if answered or outcome.usage is not None:
            writes.append(self.accounts.main(turn, place, outcome))
        if answered and outcome.reply is not None and outcome.reply.stop is not None:
            writes.append(self._record_reply(turn, place, outcome.reply.message))
        try:
            await asyncio.gather(*writes)  # together they are one transaction
        except EverthreadError as error:
            self.setup.listener(RecordFailed(place.thread, str(error)))
        if answered and turn.rewritable:
            self._prepare_ahead(turn, outcome)

    async def close(self) -> None:
        """Give up what is prepared in the background."""
        jobs = [job for job in self._jobs.values() if not job.done()]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    # Reading

    async def _read(self, incoming: Incoming) -> Turn:
        """Whose it is and how large; of a known history only what is new costs more than a glance."""
        api = incoming.api
        sliced = slice_body(incoming.body, api)
        first = leading_system([element.value for element in sliced.elements])
        elements = sliced.elements[first:]
        past = history(self._pieces.read(api, element.value, sliced.of(element)) for element in elements)
        frame = frame_of(api, sliced, sliced.elements[:first])
        sizes = self._sizes.pieces(api, frame.model, past.pieces, [element.value for element in elements])
        around = ("instructions", "system", "tools")
        texts = [sliced.text[slice(*sliced.spans[name])] for name in around if name in sliced.spans]
        lead = tuple(map(sliced.of, sliced.elements[:first]))
        fixed = self._sizes.frame(frame, hash((*texts, *lead)))
        place = await self._threads.place(incoming.tenant, scope_of(incoming.headers), past)
        memory = await self._memory(place)
        turn = Turn(incoming, sliced, first, past, frame, sizes, fixed, place, memory)
        turn.window = await self.windows.of(turn)
        return turn

    async def _memory(self, place: Place) -> Any:
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
        return turn.fixed + head + sum(turn.sizes[used.length :])

    def send(self, turn: Turn) -> Outgoing:
        """What goes upstream as things stand."""
        turn.estimate = self.estimate(turn, turn.used)
        before, after = self.tokens(turn, None), self.tokens(turn, turn.used)
        ttl = self.setup.options.cache_ttl if self.setup.cache_markers else None
        return outgoing(turn, before, after, ttl=ttl)

    async def _fit(self, turn: Turn) -> None:
        """Use the rewrite there is; make one where it is time. Waits only where the request cannot go without."""
        options = self.setup.options
        budget = turn.budget(options)
        if turn.sliced.single or self.tokens(turn, None) < budget.background_start:
            return
        await self.look_up(turn)
        tokens = self.tokens(turn, turn.used)
        if tokens < budget.threshold:
            return
        if turn.ready is not None:
            turn.used, turn.ready = turn.ready, None
            tokens = self.tokens(turn, turn.used)
        for _ in range(2):  # what is under way may be of an earlier request, and cover too little
            if tokens < budget.threshold or not self._can_win(turn, tokens):
                return
            job = self._job(turn, background=options.background)
            must = tokens >= max(budget.threshold, turn.window - self._room(turn) - turn.window // 50)
            await asyncio.wait({job}, timeout=None if must or not options.background else GRACE)
            if not job.done():
                return
            await self.look_up(turn, forced=True)
            tokens = self.tokens(turn, turn.used)

    def _can_win(self, turn: Turn, tokens: int) -> bool:
        fixed = turn.fixed * turn.memory.calibration.factor(turn.model)
        return tokens >= turn.memory.futile and fixed < turn.budget(self.setup.options).threshold

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
        return f"{turn.incoming.api} {self.setup.engine_key}"

    # Making rewrites

    def _job(self, turn: Turn, *, background: bool, ripe: int = 0) -> asyncio.Task[Rewrite | None]:
        """The compaction of a thread that is under way; a new one where there is none."""
        key = (turn.incoming.tenant, turn.place.thread)
        job = self._jobs.get(key)
        if job is None or job.done():
            job = asyncio.get_running_loop().create_task(self._made(turn, background=background, ripe=ripe))
            self._jobs[key] = job
            job.add_done_callback(lambda done: self._jobs.pop(key, None) if self._jobs.get(key) is done else None)
        return job

    async def _made(self, turn: Turn, *, background: bool, ripe: int) -> Rewrite | None:
        """A rewrite of the usual strength. A failure is told; the request goes on with what there is."""
        tokens = self.tokens(turn, turn.used)
        made: Rewrite | None = None
        try:
            made = await self._made_meanwhile(turn)
            if made is None:
                made = await self.compact(turn, Strength.NORMAL, tokens, ripe=ripe, background=background)
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

    async def compact(
        self, turn: Turn, strength: Strength, tokens: int, *, ripe: int = 0, background: bool = False
    ) -> Rewrite | None:
        """A rewrite that covers more than what is used now."""
        place = await turn.record if turn.record else turn.place
        task = Task(
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
            strength=strength,
            ripe=ripe,
            background=background,
        )
        return await self._rewrites.make(self._engine(turn, task), task)

    def _engine(self, turn: Turn, task: Task) -> ContextEngine:
        counter = TokenCounter(turn.model)
        incoming = turn.incoming
        route = Route(turn.model, incoming.api, turn.window, base_url=incoming.upstream)
        lost = self.accounts.lost(task.thread)
        desk = Desk(route, counter, lambda: None, self._told(task.thread), lost)
        summarizer = self.setup.summarizer(desk)
        return self.setup.engine(Services(summarizer, counter, task.budget, self.setup.clock, desk.events))

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

    # Storing

    async def _record(self, turn: Turn) -> Place:
        """The request's new messages into its thread. What cannot be stored is told; the request goes on."""
        try:
            turn.place = await self._stored(turn, turn.place)
        except EverthreadError as error:
            self.setup.listener(RecordFailed(turn.place.thread, str(error)))
        turn.told[THREAD] = turn.place.thread
        return turn.place

    async def _stored(self, turn: Turn, place: Place) -> Place:
        while True:
            new = [element.value for element in turn.elements[place.matched :]]
            messages = decoded(turn.incoming.api, new, turn.model)
            stored = await self._threads.store(
                place, turn.history, messages, system=turn.frame.system, model=turn.model
            )
            if stored is not None:
                if place.branch_of is not None:
                    self.setup.listener(Branched(stored.thread, place.branch_of[0], place.matched))
                return stored
            self._threads.forget(place)  # another process went on from there first
            place = await self._threads.place(place.tenant, place.scope, turn.history, remembered=False)

    async def _record_reply(self, turn: Turn, place: Place, message: Message) -> None:
        """The answer into the thread. A second answer to the same request is stored when the client goes on with it."""
        api = turn.incoming.api
        values = encoded(api, [message], turn.model)
        pieces = [piece_of(api, value) for value in values if value.get("role") != "user"]
        if pieces and place.matched == len(turn.history):
            await self._threads.store(place, turn.history.extended(pieces), [message])

    async def settle(self) -> None:
        """Wait for what is prepared in the background."""
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)
