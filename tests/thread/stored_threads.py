"""Store threads, and look them up."""

from __future__ import annotations

from typing import Any

from everthread.store.records import NewMessage, NewSession, StoredMessage
from everthread.store.store import Store
from everthread.thread.lookup.store_lookup import StoreLookup
from tests.chat_messages import user_message


async def append(store: Store, thread: str, *bodies: Any) -> list[StoredMessage]:
    """Store messages at the end of a thread."""
    return await store.append(thread, [NewMessage(body) for body in bodies])


async def store_user_texts(store: Store, *texts: str) -> str:
    """Store a thread with these messages of the user; return its id."""
    session = await store.create_session(NewSession())
    await append(store, session.id, *map(user_message, texts))
    return session.thread


def look_up(store: Store, thread: str | None, **options: Any) -> StoreLookup:
    return StoreLookup(store, "default", thread, **options)
