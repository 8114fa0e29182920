"""The events of turns, held in memory for the clients that follow them."""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everthread.store.turn_records import QueuedTurn

TURN_ENDED_EVENT = "turn"
"""Name of the last event of a turn, which contains the turn's final state."""
EVENTS_MISSED_EVENT = "gap"
"""Name of the event in place of events that are no longer kept."""
MAX_EVENTS = 4_096
"""Maximum events kept per turn."""
MAX_FINISHED_TURNS = 256
"""Maximum finished turns whose events can still be read."""


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """A numbered event of a turn, as clients receive it."""

    number: int
    name: str
    data: Mapping[str, Any]
    """JSON values."""
    turn: QueuedTurn | None = None
    """The turn in its final state; None in all events but the last."""


class TurnLog:
    """The newest `MAX_EVENTS` events of one turn, for any number of readers."""

    def __init__(self, turn: QueuedTurn) -> None:
        self.turn_id = turn.id
        self.thread_id = turn.thread
        self.tenant = turn.tenant
        self.end_event = asyncio.Event()
        self._events: deque[TurnEvent] = deque(maxlen=MAX_EVENTS)
        self._event_count = 0
        self._change_event = asyncio.Event()

    def append(self, name: str, data: Mapping[str, Any], turn: QueuedTurn | None = None) -> None:
        if self.end_event.is_set():
            return
        self._event_count += 1
        self._events.append(TurnEvent(self._event_count, name, data, turn))
        self._wake_readers()

    def end(self, turn: QueuedTurn) -> None:
        """Add the last event, with the turn in its final state."""
        self.append(
            TURN_ENDED_EVENT,
            {"event": TURN_ENDED_EVENT, "turn": turn.id, "state": turn.state},
            turn,
        )
        self.close()

    def close(self) -> None:
        """Close the log, whether the turn is over or not."""
        self.end_event.set()
        self._wake_readers()

    async def follow(self, after_number: int = 0) -> AsyncIterator[TurnEvent]:
        """Yield the events after this number, and then new ones until the turn ends.

        A reader that has already seen the last event gets it again, so that a client that reconnects learns how the
        turn ended.
        """
        has_ended = False
        while not has_ended:
            current_event = self._change_event
            for event in self._list_events_after(after_number):
                after_number = event.number
                has_ended = event.turn is not None
                yield event
            if self.end_event.is_set() and after_number >= self._event_count:
                break
            await current_event.wait()
        if not has_ended and self._events and self._events[-1].turn is not None:
            yield self._events[-1]

    def _list_events_after(self, after_number: int) -> Iterator[TurnEvent]:
        first_number = self._event_count - len(self._events) + 1
        if after_number + 1 < first_number:
            yield TurnEvent(
                first_number - 1,
                EVENTS_MISSED_EVENT,
                {
                    "event": EVENTS_MISSED_EVENT,
                    "missed": first_number - 1 - after_number,
                },
            )
        yield from list(
            itertools.islice(self._events, max(0, after_number + 1 - first_number), None)
        )

    def _wake_readers(self) -> None:
        self._change_event.set()
        self._change_event = asyncio.Event()


class TurnLogs:
    """The logs of open turns that clients of this process follow, and of the last finished turns."""

    def __init__(self) -> None:
        self._logs: OrderedDict[str, TurnLog] = OrderedDict()

    def get_or_create(self, turn: QueuedTurn) -> TurnLog:
        log = self._logs.get(turn.id)
        if log is None:
            log = self._logs[turn.id] = TurnLog(turn)
            finished_ids = [
                key for key, logged_turn in self._logs.items() if logged_turn.end_event.is_set()
            ]
            for key in finished_ids[: max(0, len(finished_ids) - MAX_FINISHED_TURNS)]:
                del self._logs[key]
        return log

    def list_unfinished(self, thread_id: str) -> list[TurnLog]:
        return [
            log
            for log in self._logs.values()
            if log.thread_id == thread_id and not log.end_event.is_set()
        ]

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
