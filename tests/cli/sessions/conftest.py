"""Fill the store: with a thread to which everything has happened, or with single sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from tests.cli.sessions.stored_thread import StoredThread, store_thread


@pytest.fixture
def thread(fill: Any) -> StoredThread:
    stored_thread: StoredThread = fill(store_thread)
    return stored_thread


@pytest.fixture
def store_session(fill: Any) -> Any:
    """Store a session with these messages; return their ids."""

    def store_session(session: NewSession, *messages: NewMessage) -> list[int]:
        async def work(store: Store) -> list[int]:
            await store.create_session(session)
            return [message.id for message in await store.append(session.id, messages)]

        ids: list[int] = fill(work)
        return ids

    return store_session


@pytest.fixture
def store_sessions(fill: Any) -> Any:
    """Store sessions without messages."""

    def store_sessions(*sessions: NewSession, url: Path | None = None) -> None:
        async def work(store: Store) -> None:
            for session in sessions:
                await store.create_session(session)

        fill(work, url)

    return store_sessions
