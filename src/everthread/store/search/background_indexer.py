"""Keep the search index of a store up to date: in the background, and before each search."""

from __future__ import annotations

import asyncio
import functools
import logging
import time

from everthread.errors import EverthreadError, StoreClosedError
from everthread.store.database import Database
from everthread.store.reader_pool import ReaderPool
from everthread.store.search.index_queue import (
    BACKGROUND_BATCH_CHARS,
    MAX_BATCH_CHARS,
    IndexInOtherProcess,
    index_parts,
    prepare_index,
)
from everthread.store.writer import StoreWriter

log = logging.getLogger(__name__)

DELAY_SECONDS = 0.2
"""Seconds within which appended messages are indexed together, unless many wait."""
MAX_OTHER_PROCESS_SECONDS = 0.5
"""Seconds that one call of the index process takes at most."""
PAUSE_FACTOR = 3.0
"""The pause after each step of background indexing, as a multiple of the step's duration."""


class BackgroundIndexer:
    """Indexes the texts of one store."""

    def __init__(self, database: Database, *, readers: ReaderPool, writer: StoreWriter) -> None:
        self._database = database
        self._readers = readers
        self._writer = writer
        self._task: asyncio.Task[None] | None = None
        self._lock_of_loop: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._index_in_other_process: IndexInOtherProcess | None = None

    def use_process(self, index_in_other_process: IndexInOtherProcess) -> None:
        """From now on, index in the background with `index_in_other_process`; if that fails, in this process."""
        self._index_in_other_process = index_in_other_process

    def start(self) -> None:
        """Start to index in the background, unless that is running."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._index_later())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def index_all(self) -> None:
        """Index all waiting messages without pauses."""
        async with self._lock():
            while await self._index_some(MAX_BATCH_CHARS, wait=True) is not None:
                pass

    async def _index_later(self) -> None:
        """Index in small steps with pauses, so that other work in this process is hardly slowed."""
        await asyncio.sleep(DELAY_SECONDS)
        if await self._try_other_process():
            return
        try:
            while True:
                start_time = time.monotonic()
                async with self._lock():
                    indexed_chars = await self._index_some(BACKGROUND_BATCH_CHARS, wait=False)
                if indexed_chars is None:
                    return
                pause = PAUSE_FACTOR * (time.monotonic() - start_time)
                await asyncio.sleep(
                    pause if indexed_chars > BACKGROUND_BATCH_CHARS else max(pause, DELAY_SECONDS)
                )
        except StoreClosedError:
            log.debug("the store was closed; the next search indexes the remaining messages")
        except EverthreadError as error:
            log.warning("indexing is postponed: %s", error)

    async def _try_other_process(self) -> bool:
        """Let another process index all waiting messages; return whether it did."""
        if self._index_in_other_process is None:
            return False
        try:
            has_waiting = True
            while has_waiting:
                has_waiting = await self._index_in_other_process(
                    self._database, MAX_OTHER_PROCESS_SECONDS
                )
                await asyncio.sleep(DELAY_SECONDS if has_waiting else 0)
        except EverthreadError as error:
            log.warning("the index process failed, indexing in this process: %s", error)
            return False
        return True

    def _lock(self) -> asyncio.Lock:
        """Return the lock for indexing in this event loop: two tasks must not index the same entries."""
        loop = asyncio.get_running_loop()
        if self._lock_of_loop is None or self._lock_of_loop[0] is not loop:
            self._lock_of_loop = loop, asyncio.Lock()
        return self._lock_of_loop[1]

    async def _index_some(self, max_chars: int, *, wait: bool) -> int | None:
        """Index waiting texts of about `max_chars` characters; return their length, or None if no text waits.

        Terms are extracted in a reading thread, so that no write waits. The index reaches the disk with the next write;
        parts lost before that are indexed again.
        """
        batches = await self._readers.read(lambda tx: prepare_index(tx, max_chars))
        for parts in batches:
            await self._writer.write(
                functools.partial(index_parts, parts=parts, wait_for_locked=wait),
                can_sync_later=True,
            )
        if not batches:
            return None
        return sum(len(part.entry.text) for parts in batches for part in parts if part.is_last_part)
