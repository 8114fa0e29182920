"""A durable queue of turns. A thread runs one turn at a time; if its process ends, another one takes over."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

from everthread.conversation.cancellation import finish_despite_cancellation
from everthread.conversation.given_messages import MessageInput, as_messages
from everthread.core.secrets.redaction import redact
from everthread.core.utc_days import format_utc_day
from everthread.errors import (
    EverthreadError,
    LeaseLostError,
    StoreError,
    UnknownIdError,
)
from everthread.gateway.api import QueueOptions
from everthread.gateway.api.agent_pool import AgentPool, OpenAgent
from everthread.gateway.api.lost_turns import PROCESS_ENDED, repair_lost_turn
from everthread.gateway.api.message_runner import MessageRunner, TurnUsage
from everthread.gateway.api.schemas import CreateThread
from everthread.gateway.api.turn_failures import describe_failure
from everthread.gateway.api.turn_log import TurnEvent, TurnLog, TurnLogs
from everthread.gateway.error_answers import RequestRefused
from everthread.store.key_records import KeyUse
from everthread.store.records import Lease, Session, new_id
from everthread.store.store import Store
from everthread.store.turn_records import NewQueuedTurn, QueuedTurn, TurnState

_LOG = logging.getLogger("everthread.gateway")
StopReason = Literal["cancelled", "interrupted", "lost"]
MAX_STOP_SECONDS = 10.0
"""Seconds that interrupted turns have to store the interruption."""
RETRY_AFTER_SECONDS = 5.0
"""Seconds after which a client may retry when the queue is full."""


@dataclass(slots=True)
class RunningTurn:
    """A turn that runs in this process."""

    task: asyncio.Task[dict[str, Any]]
    stop_reason: StopReason | None = None
    """Why the turn was stopped; None if it was not."""

    def stop(self, reason: StopReason) -> None:
        if self.stop_reason is None:
            self.stop_reason = reason
            self.task.cancel()


class TurnQueue:
    """Answers the messages of each thread in order, together with the other processes on the same store."""

    def __init__(self, store: Store, open_agent: OpenAgent, options: QueueOptions) -> None:
        self.store = store
        self.options = options
        self.agents = AgentPool(store, open_agent, self.options)
        self._logs = TurnLogs()
        self._holder_id = new_id()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """The task that works on the open turns of a thread, by thread id. An event of `_wake_events` wakes it."""
        self._wake_events: dict[str, asyncio.Event] = {}
        self._running_turns: dict[str, RunningTurn] = {}
        self._leases: dict[str, Lease] = {}
        """Leases of the threads that this process answers; renewed regularly."""
        self._sweep_task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def start(self) -> None:
        """Start to answer messages whose process has ended."""
        self._sweep_task = asyncio.create_task(self._sweep())
        self.store.listen(self._wake_waiters)

    async def close(self, grace_seconds: float = 0.0) -> None:
        """Accept no more turns. Interrupt running turns that do not end within `grace_seconds`."""
        self._is_closing = True
        if self._sweep_task is not None:
            self._sweep_task.cancel()
            await asyncio.wait([self._sweep_task])
        for wake_event in self._wake_events.values():
            wake_event.set()
        for seconds in (grace_seconds, MAX_STOP_SECONDS):
            if tasks := list(self._tasks.values()):
                await asyncio.wait(tasks, timeout=seconds)
            for run in self._running_turns.values():
                run.stop("interrupted")
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._logs.close()
        await self.agents.close()

    async def load_thread(self, tenant: str, thread_id: str) -> Session:
        """Return the first session of a thread, given the id of any of its sessions.

        Raise `RequestRefused` if the thread does not exist or belongs to another tenant.
        """
        try:
            session = await self.store.load_session(thread_id)
            if session.tenant == tenant:
                if session.id != session.thread:
                    session = await self.store.load_session(session.thread)
                return session
        except UnknownIdError:
            pass
        raise RequestRefused(404, "not_found", "There is no such thread.")

    async def create(self, tenant: str, new_thread: CreateThread, *, has_tools: bool) -> Session:
        """Create a thread, whose agent has commands and files if `has_tools` is set."""
        if self._is_closing:
            raise _make_shutdown_error()
        return await self.agents.create_thread(tenant, new_thread, has_tools=has_tools)

    async def submit(  # noqa: PLR0913 - the options by their names
        self,
        tenant: str,
        thread_id: str,
        message: MessageInput,
        *,
        idempotency_key: str | None = None,
        may_use_tools: bool = False,
        payer_key_id: str | None = None,
    ) -> QueuedTurn:
        """Queue a message: text, content parts or a whole user message. It is stored when this returns.

        A repeated request with the same `idempotency_key` returns the same turn. With `may_use_tools` the sender may
        use commands and files. The turn's calls are charged to the API key `payer_key_id`. A slash command runs when
        its turn comes and is not sent to the model.
        """
        if self._is_closing:
            raise _make_shutdown_error()
        first_session = await self.load_thread(tenant, thread_id)
        (body,) = [dict(given_message) for given_message in as_messages(message)] or [{}]
        if body.get("role") != "user":
            raise RequestRefused(
                400, "invalid_message", "Only messages with the role `user` can be sent."
            )
        new_turn_id = new_id()
        new_turn = NewQueuedTurn(
            new_turn_id,
            first_session.id,
            tenant=tenant,
            message=body,
            key=idempotency_key or new_turn_id,
            options={"tools": may_use_tools, "payer": payer_key_id},
        )
        turn = await self.store.turns.queue_turn(new_turn, max_waiting=self.options.max_queued)
        if turn is None:
            text = f"{self.options.max_queued} messages of this thread wait for their answer already; try again later."
            raise RequestRefused(429, "queue_full", text, retry_after=RETRY_AFTER_SECONDS)
        if turn.id != new_turn_id and turn.message != body:
            raise RequestRefused(
                409, "key_reused", "Another message was sent with this Idempotency-Key."
            )
        self._follow_turn(turn)
        return turn

    async def load_turn(self, tenant: str, turn_id: str) -> QueuedTurn:
        """Return a turn. Raise `RequestRefused` 404 if it does not exist or belongs to another tenant."""
        try:
            return await self.store.turns.load_turn(turn_id, tenant=tenant)
        except UnknownIdError:
            raise RequestRefused(404, "not_found", "There is no such turn.") from None

    async def stream_events(
        self, turn: QueuedTurn, *, after_number: int = 0
    ) -> AsyncGenerator[TurnEvent, None]:
        """Yield the events of a turn after this number. The last one is its end.

        For a turn that runs in another process, yield only its end. A reader may stop at any time. The last event is
        missing if the queue is closed first.
        """
        turn_log = self._follow_turn(turn)
        async for event in turn_log.follow(after_number):
            yield event

    async def wait(self, turn: QueuedTurn, *, seconds: float | None = None) -> QueuedTurn:
        """Wait until the turn is over, the time is up, or the queue closes; return the turn."""
        turn_log = self._follow_turn(turn)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await turn_log.end_event.wait()
        return await self.store.turns.load_turn(turn.id, tenant=turn.tenant)

    async def cancel(self, tenant: str, turn_id: str) -> QueuedTurn:
        """Stop the turn, or remove it from the queue. A finished turn is not changed."""
        await self.load_turn(tenant, turn_id)
        turn = await self.store.turns.cancel_turn(turn_id, tenant=tenant)
        # Another process notices when it polls the store.
        if turn.is_open and (run := self._running_turns.get(turn.id)):
            run.stop("cancelled")
        self._follow_turn(turn)
        return turn

    def _follow_turn(self, turn: QueuedTurn) -> TurnLog:
        """Return the log of a turn. If the turn is open, wake the task that answers it."""
        turn_log = self._logs.get_or_create(turn)
        if not turn.is_open:
            turn_log.end(turn)
        elif self._is_closing:
            turn_log.close()
        else:
            self._wake(turn.thread)
        return turn_log

    def _wake(self, thread_id: str) -> None:
        """Wake the task of a thread because its queue may have changed, or start one."""
        if thread_id in self._tasks:
            self._wake_events[thread_id].set()
        elif not self._is_closing:
            self._wake_events[thread_id] = asyncio.Event()
            self._tasks[thread_id] = asyncio.create_task(self._work_on_thread(thread_id))

    def _wake_waiters(self, thread_id: str) -> None:
        """Wake the task of a thread whose queue another process has changed; all tasks if `thread` is empty."""
        for woken_thread_id in (thread_id,) if thread_id else tuple(self._wake_events):
            if wake_event := self._wake_events.get(woken_thread_id):
                wake_event.set()

    async def _sweep(self) -> None:
        """Regularly wake the threads whose messages wait although their process has ended."""
        while True:
            try:
                for thread_id in await self.store.turns.list_idle_queues():
                    self._wake(thread_id)
                await self.agents.close_unused()
            except EverthreadError as error:
                _LOG.warning("waiting messages could not be looked for: %s", redact(str(error)))
            await asyncio.sleep(self.options.sweep_seconds)

    async def _work_on_thread(self, thread_id: str) -> None:
        wake_event = self._wake_events[thread_id]
        try:
            while not self._is_closing:
                wake_event.clear()
                if await self._serve_thread(thread_id) and not wake_event.is_set():
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(wake_event.wait(), self.options.poll_seconds)
        finally:
            del self._tasks[thread_id], self._wake_events[thread_id]

    async def _serve_thread(self, thread_id: str) -> bool:
        """Answer the waiting turns if this process can get the lease. Return whether no turn is open any more."""
        try:
            if await self.store.turns.list_turns(thread_id, only_open=True, limit=1):
                await self._answer_queue(thread_id)
            open_turn_ids = {
                turn.id
                for turn in await self.store.turns.list_turns(
                    thread_id, only_open=True, limit=self.options.max_queued + 1
                )
            }
            for log in self._logs.list_unfinished(thread_id):
                if log.turn_id not in open_turn_ids:
                    turn = await self.store.turns.load_turn(log.turn_id, tenant=log.tenant)
                    if not turn.is_open:
                        log.end(turn)
        except UnknownIdError:  # the thread was deleted
            for log in self._logs.list_unfinished(thread_id):
                log.close()
            return True
        except StoreError as error:
            _LOG.warning("the queue of %s waits: %s", thread_id, redact(str(error)))
            return False
        except Exception:  # noqa: BLE001 - logged; the next sweep tries again
            _LOG.exception("the queue of %s could not be worked off", thread_id)
            return True
        return not open_turn_ids

    async def _answer_queue(self, thread_id: str) -> None:
        if len(self._running_turns) >= self.options.max_running:
            return
        lease = await self.store.leases.acquire_lease(
            thread_id, self._holder_id, self.options.lease_seconds
        )
        if lease is None:
            return
        self._leases[thread_id] = lease
        try:
            while not self._is_closing:
                begin_result = await self.store.turns.begin_turn(self._leases[thread_id])
                for lost_turn in begin_result.lost_turns:
                    await self._end_turn(
                        lost_turn,
                        *await repair_lost_turn(self.store, lost_turn, self._leases[thread_id]),
                    )
                if begin_result.turn is not None:
                    await self._run_turn(begin_result.turn)
                elif not begin_result.lost_turns:
                    break
        finally:
            await finish_despite_cancellation(self._release_lease(self._leases.pop(thread_id)))

    async def _release_lease(self, lease: Lease) -> None:
        self.agents.release(lease)
        try:
            await self.store.leases.release_lease(lease)
        except EverthreadError as error:
            _LOG.warning(
                "the lease of %s is left to run out: %s",
                lease.thread,
                redact(str(error)),
            )

    async def _run_turn(self, turn: QueuedTurn) -> None:
        log = self._logs.get_or_create(turn)
        log.append(
            "turn_started",
            {"event": "turn_started", "turn": turn.id, "thread": turn.thread},
        )
        turn_usage = TurnUsage()
        run = self._running_turns[turn.id] = RunningTurn(
            asyncio.create_task(self._answer_turn(turn, log, turn_usage))
        )
        watch_task = asyncio.create_task(self._watch_turn(turn, run))
        try:
            await asyncio.wait([run.task])
        finally:
            run.stop("interrupted")  # without effect on a turn that is over
            watch_task.cancel()
            await asyncio.wait([run.task, watch_task])
            del self._running_turns[turn.id]
        state, result = self._find_outcome(turn, run)
        if state != "answered":
            await self.agents.close_agent(turn.thread)
        await self._charge_turn(turn, turn_usage)
        if run.stop_reason == "lost":
            raise LeaseLostError(f"the thread {turn.thread} was taken over by another process")
        await self._end_turn(turn, state, result)

    async def _answer_turn(
        self, turn: QueuedTurn, log: TurnLog, turn_usage: TurnUsage
    ) -> dict[str, Any]:
        slot = await self.agents.take_slot(turn, self._leases[turn.thread])
        return await MessageRunner(self.agents, slot, log, turn_usage).answer(turn)

    async def _charge_turn(self, turn: QueuedTurn, turn_usage: TurnUsage) -> None:
        """Charge a turn, including delegated work, to the API key that pays for it."""
        payer_key_id = turn.options.get("payer")
        if isinstance(payer_key_id, str) and turn_usage.call_count:
            use = KeyUse(0, turn_usage.usage.total_tokens, turn_usage.dollars)
            try:
                await self.store.keys.add_use(format_utc_day(time.time()), {payer_key_id: use})
            except StoreError as error:
                _LOG.warning(
                    "the usage of turn %s could not be charged to its key: %s",
                    turn.id,
                    redact(str(error)),
                )

    def _find_outcome(self, turn: QueuedTurn, run: RunningTurn) -> tuple[TurnState, dict[str, Any]]:
        if run.task.cancelled():
            if run.stop_reason == "cancelled":
                return "cancelled", {
                    "code": "cancelled",
                    "message": "The message was cancelled.",
                }
            return "interrupted", {"code": "interrupted", "message": PROCESS_ENDED}
        error = run.task.exception()
        if error is None:
            return "answered", run.task.result()
        if not isinstance(error, EverthreadError):
            _LOG.error("turn %s of %s failed", turn.id, turn.thread, exc_info=error)
        if isinstance(error, LeaseLostError):
            run.stop_reason = "lost"
        return "failed", describe_failure(error)

    async def _end_turn(self, turn: QueuedTurn, state: TurnState, result: dict[str, Any]) -> None:
        ended_turn = await self.store.turns.end_turn(
            turn.id, state, result, lease=self._leases[turn.thread]
        )
        self._logs.get_or_create(ended_turn).end(ended_turn)

    async def _watch_turn(self, turn: QueuedTurn, run: RunningTurn) -> None:
        """Renew the lease, and stop the turn if it was cancelled in another process."""
        options = self.options
        loop_time = asyncio.get_running_loop().time
        renewed_at = loop_time()
        while True:
            await asyncio.sleep(min(options.poll_seconds, options.lease_seconds / 4))
            try:
                if loop_time() - renewed_at >= options.lease_seconds / 4:
                    lease = await self.store.leases.renew_lease(
                        self._leases[turn.thread], options.lease_seconds
                    )
                    self._leases[turn.thread] = lease
                    renewed_at = loop_time()
                if (await self.store.turns.load_turn(turn.id, tenant=turn.tenant)).cancel_requested:
                    run.stop("cancelled")
            except (LeaseLostError, UnknownIdError):
                run.stop("lost")
                return
            except StoreError as error:
                _LOG.warning(
                    "the lease of %s could not be renewed: %s",
                    turn.thread,
                    redact(str(error)),
                )


def _make_shutdown_error() -> RequestRefused:
    return RequestRefused(
        503,
        "shutting_down",
        "The gateway is shutting down; send it again.",
        retry_after=1,
    )
