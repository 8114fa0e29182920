"""Notify open pages when a thread has changed, so that they reload."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from everthread.errors import EverthreadError
from everthread.gateway.dashboard.login import Viewer
from everthread.store.store import Store

POLL_INTERVAL_SECONDS = 1.0
"""Seconds between two polls of the store while a page is open."""
HEARTBEAT_INTERVAL_SECONDS = 15.0
MAX_LIVE_PAGES = 100
"""Maximum open pages that get live updates."""
_LOG = logging.getLogger("everthread.gateway.dashboard")


class LiveUpdates:
    """The streams of change events to the open pages of one process."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._live_page_count = 0
        self._close_event = asyncio.Event()

    def make_stream(self, viewer: Viewer, thread_id: str | None) -> Response:
        """Return a stream with an event for each change of a thread, or of any thread if `thread_id` is None."""
        if self._live_page_count >= MAX_LIVE_PAGES:
            return PlainTextResponse("too many pages watch\n", 503)
        return StreamingResponse(
            self._watch_changes(viewer, thread_id), media_type="text/event-stream"
        )

    def close(self) -> None:
        """End all streams."""
        self._close_event.set()

    async def _watch_changes(self, viewer: Viewer, thread_id: str | None) -> AsyncIterator[str]:
        self._live_page_count += 1
        try:
            last_change = await self._store.overview.load_change_marker(
                tenant=viewer.tenant, thread_id=thread_id
            )
            yield "retry: 2000\n\n"
            last_sent_at = time.monotonic()
            while not await self._wait_for_close():
                change = await self._store.overview.load_change_marker(
                    tenant=viewer.tenant, thread_id=thread_id
                )
                if change != last_change:
                    last_change = change
                    last_sent_at = time.monotonic()
                    yield "event: changed\ndata: yes\n\n"
                elif time.monotonic() - last_sent_at > HEARTBEAT_INTERVAL_SECONDS:
                    last_sent_at = time.monotonic()
                    yield ": here\n\n"
        except EverthreadError as error:
            _LOG.info("a page gets no more live updates: %s", error)
        finally:
            self._live_page_count -= 1

    async def _wait_for_close(self) -> bool:
        """Wait for the next poll, and return whether the streams were closed meanwhile."""
        try:
            async with asyncio.timeout(POLL_INTERVAL_SECONDS):
                await self._close_event.wait()
        except TimeoutError:
            return False
        return True
