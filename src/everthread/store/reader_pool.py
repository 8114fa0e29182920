"""The reading threads of a store. Each has its own connection, and a snapshot for every query."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from everthread.errors import EverthreadError, StoreClosedError, StoreUnreachableError
from everthread.store.database import Connection, Database, Tx
from everthread.store.writer import MAX_CLOSE_SECONDS, RETRY_SECONDS, wait_before_retry

log = logging.getLogger(__name__)
T = TypeVar("T")

READER_THREADS = 4
UNRESPONSIVE_PAUSE_SECONDS = 2.0
"""Seconds for which reads fail at once after the database did not answer."""


@dataclass(slots=True)
class _ReadJob:
    """A read for a reading thread, with its progress."""

    run_work: Callable[[Tx], Any]
    has_database_answered: bool = False
    has_started: bool = False
    is_abandoned: bool = False
    """Whether no caller waits for it any more."""


class ReaderPool:
    """The reading threads of a store, which start when they are needed.

    A server that does not answer delays a caller by `max_silence_seconds` at most, and the next callers not at all.
    """

    def __init__(
        self,
        database: Database,
        *,
        retry_seconds: float = RETRY_SECONDS,
        max_silence_seconds: float | None = None,
    ) -> None:
        self._database = database
        self._retry_seconds = retry_seconds
        self._max_silence_seconds = max_silence_seconds if database.is_remote else None
        self._unresponsive_until = 0.0
        self._is_failing = False
        self._pool = ThreadPoolExecutor(READER_THREADS, thread_name_prefix="everthread-reader")
        self._thread_local = threading.local()
        self._open_connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.answered_at = 0.0
        """When the database last answered any reader, on the monotonic clock."""

    async def read(self, work: Callable[[Tx], T]) -> T:
        if self._closed:
            raise StoreClosedError("the store was closed; open it again to read")
        if self.is_unresponsive:
            raise self._make_unreachable_error()
        job = _ReadJob(work)
        reading = asyncio.get_running_loop().run_in_executor(
            self._pool, self._read_with_retries, job
        )
        try:
            await self._wait_for_server(job, reading)
            result: T = await reading
        except (asyncio.CancelledError, StoreUnreachableError):
            job.is_abandoned = True
            reading.add_done_callback(_log_abandoned_error)
            raise
        return result

    async def read_short(self, work: Callable[[Tx], T]) -> T:
        """Like `read`, for a short query. A SQLite file is read in the caller's thread, which is faster."""
        if self._closed or self._database.is_remote:
            return await self.read(work)
        try:
            result: T = self._read_once(_ReadJob(work))
        except EverthreadError:
            raise
        except Exception as error:  # noqa: BLE001 - a lasting error is raised by the retry
            log.info("a short read is retried: %s", error)
            self._drop_connection()
            return await self.read(work)
        return result

    async def _wait_for_server(self, job: _ReadJob, reading: asyncio.Future[Any]) -> None:
        """Wait until the read is done; raise an error if the server does not answer in time."""
        while self._max_silence_seconds is not None:
            start_time = time.monotonic()
            finished_reads, _ = await asyncio.wait({reading}, timeout=self._max_silence_seconds)
            if finished_reads:
                break
            is_waiting = not job.has_database_answered and (job.has_started or self._is_failing)
            # A database that answers other reads meanwhile is only slow.
            if is_waiting and self.answered_at < start_time:
                self._unresponsive_until = time.monotonic() + UNRESPONSIVE_PAUSE_SECONDS
                raise self._make_unreachable_error()

    @property
    def is_unresponsive(self) -> bool:
        """Whether the database did not answer a moment ago."""
        return time.monotonic() < self._unresponsive_until

    def _make_unreachable_error(self) -> StoreUnreachableError:
        return StoreUnreachableError(
            f"{self._database.location}: does not answer; try again in a few seconds"
        )

    def close(self) -> None:
        """Wait for running reads, then close all connections. Interrupt reads after `MAX_CLOSE_SECONDS`."""
        self._closed = True
        interrupt_timer = threading.Timer(MAX_CLOSE_SECONDS, self._database.interrupt)
        interrupt_timer.start()
        self._pool.shutdown(wait=True)
        interrupt_timer.cancel()
        for connection in self._open_connections:
            connection.close()
        self._open_connections.clear()

    def _read_with_retries(self, job: _ReadJob) -> Any:
        deadline = time.monotonic() + self._retry_seconds
        attempt = 0
        while True:
            try:
                return self._read_once(job)
            except EverthreadError:
                raise
            except Exception as error:
                self._drop_connection()
                attempt += 1
                job.has_database_answered = False
                self._is_failing = True
                if (
                    self._closed
                    or time.monotonic() > deadline
                    or not self._database.is_transient(error)
                ):
                    raise self._database.explain(error) from error
                wait_before_retry("a read", error, attempt)

    def _read_once(self, job: _ReadJob) -> Any:
        if job.is_abandoned:
            raise self._make_unreachable_error()
        job.has_started = True
        connection: Connection | None = getattr(self._thread_local, "connection", None)
        if connection is None:
            connection = self._thread_local.connection = self._database.connect_reader()
            with self._lock:
                self._open_connections.add(connection)
        connection.begin()
        job.has_database_answered = True
        self._is_failing = False
        self._unresponsive_until = 0.0
        self.answered_at = time.monotonic()
        try:
            return job.run_work(connection)
        finally:
            connection.rollback()
            self.answered_at = time.monotonic()

    def _drop_connection(self) -> None:
        """Close this thread's connection, so that the next read opens a new one."""
        connection: Connection | None = getattr(self._thread_local, "connection", None)
        if connection is not None:
            self._thread_local.connection = None
            with self._lock:
                self._open_connections.discard(connection)
            connection.close()


def _log_abandoned_error(reading: asyncio.Future[Any]) -> None:
    """Log the error of a read that no caller waits for."""
    if not reading.cancelled() and reading.exception() is not None:
        log.debug("an abandoned read failed: %s", reading.exception())
