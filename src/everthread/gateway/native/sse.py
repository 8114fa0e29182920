"""Server-Sent Events: what happens in a turn, as it happens. A client that leaves stops nothing but its own stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from starlette.types import Receive

from everthread.gateway.incoming import until_gone
from everthread.gateway.native.logs import TurnEvent
from everthread.gateway.native.replies import Sender
from everthread.gateway.native.views import turn_view
from everthread.store.models import QueuedTurn

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
