"""Open a gateway's store, and watch whether it answers."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from everthread.config import Config
from everthread.errors import StoreError
from everthread.factory.stores import open_store, store_url
from everthread.gateway.monitoring.store_watch import StoreWatch
from everthread.store.search.index_queue import index_waiting
from everthread.store.store import Store
from everthread.thread.caller.caller_setup import is_never_sole_writer
from everthread.thread.engines.worker_processes import WorkerProcesses

STORE_WAIT_SECONDS = 0.7
"""Seconds that a request waits for an unresponsive database before it continues without the store."""
STORE_SHUTDOWN_SECONDS = 10.0
"""Seconds that a gateway waits at its end for a database that does not answer."""
STORE_CHECK_SECONDS = 1.0
"""Seconds after which a store that does not answer makes the gateway unready."""
INDEX_NICENESS = 10
"""A lower priority than that of compactions, because no caller waits for the index."""
_LOG = logging.getLogger("everthread.gateway")


async def open_gateway_store(
    config: Config,
    stack: AsyncExitStack,
    end_event: asyncio.Event,
    *,
    index_in_process: bool,
) -> Store:
    """Open the configured store, and close it with the stack even if it no longer answers.

    `index_in_process`: whether to index in a separate process.
    """
    indexers = WorkerProcesses(1, niceness=INDEX_NICENESS)
    stack.push_async_callback(indexers.close)
    store = await asyncio.to_thread(open_store, store_url(config), away_seconds=STORE_WAIT_SECONDS)
    stack.push_async_callback(store.close)
    if index_in_process:
        store.use_index_process(functools.partial(indexers.call, index_waiting))
    abandon_task = asyncio.create_task(_abandon_unresponsive_store(store, end_event))
    stack.callback(abandon_task.cancel)
    return store


async def _abandon_unresponsive_store(store: Store, end_event: asyncio.Event) -> None:
    """When the gateway ends, stop waiting for an unresponsive database, so that the gateway can stop."""
    await end_event.wait()
    while True:
        await asyncio.sleep(STORE_SHUTDOWN_SECONDS)
        with suppress(StoreError):
            await store.state.get_state("gateway", "watch")
        if store.is_unresponsive:
            _LOG.warning("the store does not answer; records that are not stored yet are lost")
            store.fail_all()


def claim_sole_use(store: Store, stack: AsyncExitStack, workers: int) -> Callable[[], bool]:
    """Claim to be the only gateway on the store; return a function that returns whether the claim still holds."""
    claim = store.database.claim_sole_use() if workers == 1 else None
    if claim is None:
        return is_never_sole_writer
    stack.callback(claim.close)
    return claim.check_is_alone


def make_store_watch(store: Store) -> StoreWatch | None:
    """Return the watch of a database server, or None for a file, which is always reachable."""
    if store.database.dialect.name != "postgresql":
        return None
    return StoreWatch(
        lambda: store.state.get_state("gateway", "watch"),
        get_last_answer_time=lambda: store.answered_at,
    )


async def find_store_problem(store: Store) -> str | None:
    """Return why the gateway is not ready, or None if it is."""
    try:
        async with asyncio.timeout(STORE_CHECK_SECONDS):
            # A full disk can still be read.
            await store.state.put_state("gateway", "readyz", time.time())
    except TimeoutError:
        return "the store does not answer"
    except StoreError as error:
        _LOG.warning("not ready: %s", error)
        return "the store takes nothing"
    return None
