"""Fill the store: with a thread to which everything has happened, or with single sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from tests.cli.conftest import RunOnStore
from tests.cli.sessions.stored_thread import StoredThread, store_thread

StoreSession = Callable[..., list[int]]
StoreSessions = Callable[..., None]


@pytest.fixture
def thread(run_on_store: RunOnStore) -> StoredThread:
    return run_on_store(store_thread)


@pytest.fixture
def store_session(run_on_store: RunOnStore) -> StoreSession:
    """Store a session with these messages; return their ids."""

    def store_session(session: NewSession, *messages: NewMessage) -> list[int]:
        async def work(store: Store) -> list[int]:
            await store.create_session(session)
            return [message.id for message in await store.append(session.id, messages)]

        return run_on_store(work)

    return store_session


@pytest.fixture
def store_sessions(run_on_store: RunOnStore) -> StoreSessions:
    """Store sessions without messages."""

    def store_sessions(*sessions: NewSession, url: Path | None = None) -> None:
        async def work(store: Store) -> None:
            for session in sessions:
                await store.create_session(session)

        run_on_store(work, url)

    return store_sessions
