"""What happens in a turn, kept for who listens, and sent as server-sent events."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive

from everthread.gateway.api.requests import Sender
from everthread.gateway.api.schemas import turn_view
from everthread.gateway.requests import until_gone
from everthread.store.models import QueuedTurn

END = "turn"
"""The last event of a turn: how it ended."""
GAP = "gap"


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """Something that happened in a turn. `turn` is set in the last one: the turn as it ended."""

    number: int
    name: str
    data: Mapping[str, Any]
    """JSON values."""
    turn: QueuedTurn | None = None


class TurnLog:
    """The events of one turn, the newest so many. Any number of readers, each at its own pace."""

    def __init__(self, turn: QueuedTurn, most: int) -> None:
        self.turn_id, self.thread, self.tenant = turn.id, turn.thread, turn.tenant
        self.over = asyncio.Event()
        self._events: deque[TurnEvent] = deque(maxlen=most)
        self._count = 0
        self._changed = asyncio.Event()

    def tell(self, name: str, data: Mapping[str, Any], turn: QueuedTurn | None = None) -> None:
        if self.over.is_set():
            return
        self._count += 1
        self._events.append(TurnEvent(self._count, name, data, turn))
        self._ring()

    def end(self, turn: QueuedTurn) -> None:
        """The turn is over."""
        self.tell(END, {"event": END, "turn": turn.id, "state": turn.state}, turn)
        self.close()

    def close(self) -> None:
        """Nothing more is told here, whether the turn is over or not."""
        self.over.set()
        self._ring()

    async def read(self, after: int = 0) -> AsyncIterator[TurnEvent]:
        """What came after the event of this number, and what comes. The end is told also to who has it already."""
        ended = False
        while not ended:
            changed = self._changed
            for event in self._since(after):
                after, ended = event.number, event.turn is not None
                yield event
            if self.over.is_set() and after >= self._count:
                break
            await changed.wait()
        if not ended and self._events and self._events[-1].turn is not None:
            yield self._events[-1]

    def _since(self, after: int) -> Iterator[TurnEvent]:
        first = self._count - len(self._events) + 1
        if after + 1 < first:
            yield TurnEvent(first - 1, GAP, {"event": GAP, "missed": first - 1 - after})
        yield from list(itertools.islice(self._events, max(0, after + 1 - first), None))

    def _ring(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class TurnLogs:
    """The logs of the turns somebody here asked for; of those that are over, the last few."""

    def __init__(self, kept: int, most: int) -> None:
        self._kept, self._most = kept, most
        self._logs: OrderedDict[str, TurnLog] = OrderedDict()

    def of(self, turn: QueuedTurn) -> TurnLog:
        log = self._logs.get(turn.id)
        if log is None:
            log = self._logs[turn.id] = TurnLog(turn, self._most)
            self._forget()
        return log

    def unfinished(self, thread: str) -> list[TurnLog]:
        return [log for log in self._logs.values() if log.thread == thread and not log.over.is_set()]

    def close(self) -> None:
        for log in self._logs.values():
            log.close()

    def _forget(self) -> None:
        over = [key for key, log in self._logs.items() if log.over.is_set()]
        for key in over[: max(0, len(over) - self._kept)]:
            del self._logs[key]


HEARTBEAT = b": still here\n\n"
HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


def frame(event: TurnEvent) -> bytes:
    data = event.data if event.turn is None else turn_view(event.turn).model_dump(mode="json")
    return f"id: {event.number}\nevent: {event.name}\ndata: {json.dumps(data)}\n\n".encode()


async def stream(
    sender: Sender, receive: Receive, turn: QueuedTurn, events: AsyncIterator[TurnEvent], heartbeat: float
) -> None:
    """Until the turn is over, the client is gone, or the gateway closes."""

    async def following() -> TurnEvent | None:
        return await anext(events, None)

    await sender.start(200, HEADERS | {"x-everthread-turn": turn.id})
    gone = asyncio.create_task(until_gone(receive, None))
    waiting = asyncio.create_task(following())
    try:
        while True:
            done, _ = await asyncio.wait({gone, waiting}, timeout=heartbeat, return_when=asyncio.FIRST_COMPLETED)
            if gone in done:
                return
            if waiting not in done:
                await sender.body(HEARTBEAT, more=True)
                continue
            event = waiting.result()
            if event is None:
                break
            await sender.body(frame(event), more=True)
            waiting = asyncio.create_task(following())
        await sender.body(b"", more=False)
    finally:
        for task in (gone, waiting):
            task.cancel()
        await asyncio.gather(gone, waiting, return_exceptions=True)
