"""Messages for the store's tests, and their texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from everthread.core.types import Node
from everthread.store.records import (
    Continuation,
    Lease,
    NewCompaction,
    NewMessage,
    NewSession,
    StoredMessage,
)
from everthread.store.store import Store


def new_user_message(text: str, **more: Any) -> NewMessage:
    return NewMessage({"role": "user", "content": text}, **more)


def tool_result(tool: str, text: str, call_id: str = "call", **more: Any) -> NewMessage:
    body: Any = {
        "role": "tool",
        "tool_call_id": call_id,
        "name": tool,
        "content": text,
    }
    return NewMessage(body, **more)


def user_messages(*texts: str) -> list[NewMessage]:
    return [new_user_message(text) for text in texts]


def numbered_texts(first: int, last: int, word: str = "m") -> list[str]:
    """`m1` to `m9`, for 1 and 9."""
    return [f"{word}{number}" for number in range(first, last + 1)]


def numbered_messages(first: int, last: int, word: str = "m") -> list[NewMessage]:
    return user_messages(*numbered_texts(first, last, word))


def summary_message(text: str = "summary") -> NewMessage:
    return new_user_message(text, kind="summary")


def texts_of(messages: Iterable[StoredMessage]) -> list[str]:
    return [str(message.body.get("content")) for message in messages]


async def new_thread(store: Store, *messages: NewMessage | str, **more: Any) -> str:
    """Create a thread and return its id; a text is a message of the user."""
    thread = (await store.create_session(NewSession(**more))).id
    new = [
        new_user_message(message) if isinstance(message, str) else message for message in messages
    ]
    await store.append(thread, new)
    return thread


async def numbered_thread(store: Store, count: int, **more: Any) -> str:
    """Create a thread of the messages `m1`, `m2` …, and return its id."""
    return await new_thread(store, *numbered_texts(1, count), **more)


async def append_texts(store: Store, thread: str, *texts: str, **more: Any) -> list[StoredMessage]:
    return await store.append(thread, user_messages(*texts), **more)


async def read_context(store: Store, session_id: str) -> str:
    """Return the texts of a thread's current context, separated by commas."""
    tip = await store.get_compression_tip(session_id)
    return ", ".join(texts_of(await store.list_messages(tip)))


async def read_history(store: Store, session_id: str) -> str:
    """Return the texts of a thread's whole history, separated by commas."""
    return ", ".join(texts_of(await store.load_history(session_id)))


async def commit_compaction(
    store: Store,
    session_id: str,
    *,
    head: int = 1,
    tail: int = 2,
    words: str = "summary",
    late: Sequence[NewMessage] = (),
    **options: Any,
) -> Continuation:
    """Compact as an engine does: keep the first and the last messages, and summarise the others.

    `late`: messages that are appended while the engine compacts.
    """
    messages = await store.list_messages(session_id)
    tail_start = max(head, len(messages) - tail)
    head_ids = [message.id for message in messages[:head]]
    tail_ids = [message.id for message in messages[tail_start:]]
    covered = [message.id for message in messages[head:tail_start]]
    await store.append(session_id, late)
    return await store.continue_session(
        session_id,
        [*head_ids, summary_message(words), *tail_ids],
        seen_count=len(messages),
        compaction=NewCompaction(
            covered=covered,
            tokens_before=100,
            tokens_after=40,
        ),
        **options,
    )


async def compact_session(store: Store, session_id: str, **options: Any) -> str:
    """Compact like `commit_compaction`, and return the id of the session that continues."""
    return (await commit_compaction(store, session_id, **options)).session.id


async def acquire_lease(
    store: Store, thread: str, holder: str = "a", seconds: float = 60.0
) -> Lease:
    lease = await store.leases.acquire_lease(thread, holder, seconds)
    assert lease is not None
    return lease


def make_node(name: str, thread: str, **changes: Any) -> Node:
    """Return a node of the graph of summaries: a leaf of two messages."""
    values: dict[str, Any] = {
        "level": 0,
        "body": "body \0\ud800",
        "tokens": 5,
        "covered_tokens": 50,
        "author": "llm",
        "first_message": 1,
        "last_message": 2,
        "first_turn": 0,
        "last_turn": 3,
        "since": 1.5,
        "until": 2.5,
        "sources": ("1", "2"),
    }
    return Node(name, thread, **values | changes)


async def store_nodes(store: Store, thread: str, *nodes: Node) -> str:
    """Continue the thread with its messages unchanged, and store nodes; return the session that continues."""
    tip = await store.get_compression_tip(thread)
    ids = [message.id for message in await store.list_messages(tip)]
    continuation = await store.continue_session(
        tip,
        ids,
        seen_count=len(ids),
        nodes=nodes,
    )
    return continuation.session.id
