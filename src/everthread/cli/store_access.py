"""Open the store for a command, and find threads and their titles in it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from everthread.config import load_config
from everthread.core.text import excerpt
from everthread.errors import InputError, NoStoreError

if TYPE_CHECKING:
    from everthread.store.records import Session, ThreadRow
    from everthread.store.store import Store


T = TypeVar("T")


def find_store_address(url: str | None) -> str:
    """Return the address of the store: the given one, or the configured one."""
    from everthread import factory

    return url or factory.store_url(load_config())


def with_store(
    url: str | None,
    use_store: Callable[[Store], Awaitable[T]],
    *,
    create: bool = False,
    empty_if_missing: bool = False,
) -> T:
    """Run `use_store` on the store at `url` or on the configured one, and return its result.

    `create` makes the store if it does not exist. With `empty_if_missing`, if no store is configured and none exists
    yet, use an empty temporary one instead of raising an error.
    """
    from everthread import factory

    try:
        store = factory.open_store(find_store_address(url), create=create)
    except NoStoreError:
        if not empty_if_missing or url or load_config().store.url:
            raise
        with tempfile.TemporaryDirectory(prefix="everthread-") as folder:
            return _run_and_close(factory.open_store(Path(folder) / factory.STORE_FILE), use_store)
    return _run_and_close(store, use_store)


def with_session(
    url: str | None,
    session_id: str,
    use_session: Callable[[Store, Session], Awaitable[T]],
    *,
    tenant: str | None,
) -> T:
    """Run `use_session` on the store and the session whose id is or begins with `session_id`."""

    async def find_and_use(store: Store) -> T:
        return await use_session(store, await store.resolve(session_id, tenant=tenant))

    return with_store(url, find_and_use)


def _run_and_close(store: Store, use_store: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await use_store(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except UnicodeEncodeError as error:
        raise InputError(f"the argument is not valid text: {error.object!r}") from error


async def list_recent_threads(store: Store, count: int) -> list[ThreadRow]:
    """Return threads with messages, the last used first, without subagents' threads."""
    rows = await store.list_threads(limit=4 * count)
    return [row for row in rows if row.first.kind != "subagent" and row.message_count][:count]


async def find_latest_thread(store: Store) -> str:
    """Return the id of the thread that was used last."""
    rows = await list_recent_threads(store, 1)
    if not rows:
        raise InputError("there is no thread to continue yet; leave --continue and --resume out")
    return rows[0].first.id


async def load_short_title(store: Store, session: Session) -> str:
    """Return a session's title, or the first words of the user, in one line."""
    from everthread.thread.lookup.thread_title import load_title

    return excerpt(await load_title(store, session), 100)
