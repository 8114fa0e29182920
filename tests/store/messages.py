"""Messages for the store's tests, and their texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from everthread.store.records import (
    Continuation,
    Lease,
    NewCompaction,
    NewMessage,
    NewSession,
    Session,
    StoredMessage,
)
from everthread.store.store import Store


def user_message(text: str, **more: Any) -> NewMessage:
    return NewMessage({"role": "user", "content": text}, **more)


def tool_result(tool: str, text: str, call_id: str = "call", **more: Any) -> NewMessage:
    body: Any = {"role": "tool", "tool_call_id": call_id, "name": tool, "content": text}
    return NewMessage(body, **more)


def user_messages(*texts: str) -> list[NewMessage]:
    return [user_message(text) for text in texts]


def numbered_texts(first: int, last: int, word: str = "m") -> list[str]:
    """`m1` to `m9`, for 1 and 9."""
    return [f"{word}{number}" for number in range(first, last + 1)]


def numbered_messages(first: int, last: int, word: str = "m") -> list[NewMessage]:
    return user_messages(*numbered_texts(first, last, word))


def summary_message(text: str = "summary") -> NewMessage:
    return user_message(text, kind="summary")


def texts_of(messages: Iterable[StoredMessage]) -> list[str]:
    return [str(message.body.get("content")) for message in messages]


async def new_thread(store: Store, *messages: NewMessage | str, **more: Any) -> Session:
    """Create a thread; a text is a message of the user."""
    session = await store.create_session(NewSession(**more))
    await store.append(
        session.id,
        [
            user_message(message) if isinstance(message, str) else message
            for message in messages
        ],
    )
    return await store.session(session.id)


async def numbered_thread(store: Store, count: int, **more: Any) -> Session:
    """Create a thread of the messages `m1`, `m2` …"""
    return await new_thread(store, *numbered_texts(1, count), **more)


async def append_texts(
    store: Store, session: Session, *texts: str, **more: Any
) -> list[StoredMessage]:
    return await store.append(session.id, user_messages(*texts), **more)


async def read_context(store: Store, session_id: str) -> str:
    """Return the texts of a thread's current context, separated by commas."""
    tip = await store.get_compression_tip(session_id)
    return ", ".join(texts_of(await store.messages(tip)))


async def read_history(store: Store, session_id: str) -> str:
    """Return the texts of a thread's whole history, separated by commas."""
    return ", ".join(texts_of(await store.history(session_id)))


async def compact_session(
    store: Store,
    session_id: str,
    *,
    head: int = 1,
    tail: int = 2,
    pending: Sequence[NewMessage] = (),
    words: str = "summary",
    lease: Lease | None = None,
    new: str | None = None,
) -> Continuation:
    """Compact as an engine does: keep the first and the last messages, and summarise the others."""
    messages = await store.messages(session_id)
    tail = min(tail, len(messages) - head)
    middle = messages[head : len(messages) - tail]
    kept: list[int | NewMessage] = [message.id for message in messages[:head]]
    kept += [
        summary_message(words),
        *(message.id for message in messages[len(messages) - tail :]),
    ]
    record = NewCompaction(
        covered=[message.id for message in middle], tokens_before=100, tokens_after=40
    )
    return await store.continue_session(
        session_id,
        kept,
        seen_count=len(messages),
        pending=pending,
        compaction=record,
        lease=lease,
        new=new,
    )
