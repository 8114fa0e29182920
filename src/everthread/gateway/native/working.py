"""Who answers: for each thread with open turns one task, which works when this process has the thread's lease."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from everthread.conversation.responses import finish
from everthread.core.redaction import redact
from everthread.errors import EverthreadError, LeaseLostError, StoreError, UnknownIdError
from everthread.gateway.native.agents import AgentPool
from everthread.gateway.native.answering import Answering, Spent
from everthread.gateway.native.logs import TurnLog, TurnLogs
from everthread.gateway.native.lost import ENDED, settle
from everthread.gateway.native.options import DeskOptions
from everthread.gateway.native.outcomes import failure
from everthread.gateway.quotas import utc_day
from everthread.store.models import KeyUse, Lease, QueuedTurn, TurnState, new_id
from everthread.store.store import Store

_LOG = logging.getLogger("everthread.gateway")
Why = Literal["cancelled", "interrupted", "lost"]
LAST_SECONDS = 10.0
"""For turns that were interrupted at the end to write that down."""


@dataclass(slots=True)
class Held:
    """A thread's lease, renewed as time goes by."""

    lease: Lease


@dataclass(slots=True)
class Run:
    """A turn at work here."""

    work: asyncio.Task[dict[str, Any]]
    spent: Spent
    why: Why | None = None
    """Why it was stopped."""

    def stop(self, why: Why) -> None:
        if self.why is None:
            self.why = why
            self.work.cancel()


class Workers:
    """Of this process."""

    def __init__(
        self,
        store: Store,
        pool: AgentPool,
        logs: TurnLogs,
        options: DeskOptions,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._wall = wall
        self._store, self._pool, self._logs, self._options = store, pool, logs, options
        self._holder = new_id()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._bells: dict[str, asyncio.Event] = {}
        self._runs: dict[str, Run] = {}
        self._closing = False

    def wake(self, thread: str) -> None:
        """There is, or may be, something to do."""
        if self._closing:
            return
        if thread in self._tasks:
            self._bells[thread].set()
            return
        self._bells[thread] = asyncio.Event()
        self._tasks[thread] = asyncio.create_task(self._work(thread))

    def cancel(self, turn: QueuedTurn) -> None:
        """Stop a turn that runs here; in another process it is found out by its own look at the store."""
        if run := self._runs.get(turn.id):
            run.stop("cancelled")

    async def close(self, patience: float) -> None:
        """Begin nothing more; turns under way have this long to end, then they are interrupted."""
        self._closing = True
        for bell in self._bells.values():
            bell.set()
        for seconds in (patience, LAST_SECONDS):
            if tasks := list(self._tasks.values()):
                await asyncio.wait(tasks, timeout=seconds)
            for run in self._runs.values():
                run.stop("interrupted")
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    # One thread

    async def _work(self, thread: str) -> None:
        bell = self._bells[thread]
        try:
            while not self._closing:
                bell.clear()
                if await self._looked_after(thread) and not bell.is_set():
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(bell.wait(), self._options.poll_seconds)
        finally:
            del self._tasks[thread], self._bells[thread]

    async def _looked_after(self, thread: str) -> bool:
        """Answer what waits, if we may; True when nothing is open any more."""
        try:
            if await self._store.turns(thread, only_open=True, limit=1):
                await self._answer_queue(thread)
            still = {turn.id for turn in await self._store.turns(thread, only_open=True, limit=self._options.queue + 1)}
            for log in self._logs.unfinished(thread):
                if log.turn_id not in still:
                    turn = await self._store.turn(log.turn_id, tenant=log.tenant)
                    if not turn.open:
                        log.end(turn)
        except UnknownIdError:  # the thread was deleted
            for log in self._logs.unfinished(thread):
                log.close()
            return True
        except StoreError as error:
            _LOG.warning("the queue of %s waits: %s", thread, redact(str(error)))
            return False
        except Exception:  # noqa: BLE001 - logged; whoever sweeps comes back to it, and not at once
            _LOG.exception("the queue of %s could not be worked off", thread)
            return True
        return not still

    async def _answer_queue(self, thread: str) -> None:
        if len(self._runs) >= self._options.running:
            return
        lease = await self._store.acquire(thread, self._holder, self._options.lease_seconds)
        if lease is None:
            return
        held = Held(lease)
        try:
            while not self._closing:
                begun = await self._store.begin_turn(held.lease)
                for lost in begun.lost:
                    await self._end(lost, held, *await settle(self._store, lost, held.lease))
                if begun.turn is not None:
                    await self._run(begun.turn, held)
                elif not begun.lost:
                    break
        finally:
            await finish(self._let_go(held))

    async def _let_go(self, held: Held) -> None:
        self._pool.release(held.lease)
        try:
            await self._store.release(held.lease)
        except EverthreadError as error:
            _LOG.warning("the lease of %s is left to run out: %s", held.lease.thread, redact(str(error)))

    # One turn

    async def _run(self, turn: QueuedTurn, held: Held) -> None:
        log = self._logs.of(turn)
        log.tell("turn_started", {"event": "turn_started", "turn": turn.id, "thread": turn.thread})
        spent = Spent()
        run = self._runs[turn.id] = Run(asyncio.create_task(self._attempt(turn, held, log, spent)), spent)
        watch = asyncio.create_task(self._watch(turn, held, run))
        try:
            await asyncio.wait([run.work])
        finally:
            run.stop("interrupted")  # a turn that is over is not changed by it
            watch.cancel()
            await asyncio.wait([run.work, watch])
            del self._runs[turn.id]
        state, result = self._outcome(turn, run)
        if state != "answered":
            await self._pool.drop(turn.thread)
        await self._charge(turn, run.spent)
        if run.why == "lost":
            raise LeaseLostError(f"the thread {turn.thread} was taken over by another process")
        await self._end(turn, held, state, result)

    async def _attempt(self, turn: QueuedTurn, held: Held, log: TurnLog, spent: Spent) -> dict[str, Any]:
        seat = await self._pool.take(turn, held.lease)
        return await Answering(self._pool, seat, log, spent).answer(turn)

    async def _charge(self, turn: QueuedTurn, spent: Spent) -> None:
        """To the account of the key it was sent with, which counts for every process. Delegated work is in it."""
        payer = turn.options.get("payer")
        if isinstance(payer, str) and spent.calls:
            use = KeyUse(0, spent.used.total_tokens, spent.dollars)
            try:
                await self._store.count_use(utc_day(self._wall()), {payer: use})
            except StoreError as error:
                _LOG.warning("what turn %s used is not in the account of its key: %s", turn.id, redact(str(error)))

    def _outcome(self, turn: QueuedTurn, run: Run) -> tuple[TurnState, dict[str, Any]]:
        if run.work.cancelled():
            if run.why == "cancelled":
                return "cancelled", {"code": "cancelled", "message": "It was cancelled."}
            return "interrupted", {"code": "interrupted", "message": ENDED}
        error = run.work.exception()
        if error is None:
            return "answered", run.work.result()
        if not isinstance(error, EverthreadError):
            _LOG.error("turn %s of %s failed", turn.id, turn.thread, exc_info=error)
        if isinstance(error, LeaseLostError):
            run.why = "lost"
        return "failed", failure(error)

    async def _end(self, turn: QueuedTurn, held: Held, state: TurnState, result: dict[str, Any]) -> None:
        ended = await self._store.end_turn(turn.id, state, result, lease=held.lease)
        self._logs.of(ended).end(ended)

    async def _watch(self, turn: QueuedTurn, held: Held, run: Run) -> None:
        """Keep the lease, and see whether somebody elsewhere asked to stop the turn."""
        options, now = self._options, asyncio.get_running_loop().time
        renewed = now()
        while True:
            await asyncio.sleep(min(options.poll_seconds, options.lease_seconds / 4))
            try:
                if now() - renewed >= options.lease_seconds / 4:
                    held.lease = await self._store.renew(held.lease, options.lease_seconds)
                    renewed = now()
                if (await self._store.turn(turn.id, tenant=turn.tenant)).cancel:
                    run.stop("cancelled")
            except (LeaseLostError, UnknownIdError):
                run.stop("lost")
                return
            except StoreError as error:
                _LOG.warning("the lease of %s could not be renewed: %s", turn.thread, redact(str(error)))
