"""Store a recorded conversation as a thread."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from everthread.core.tokens import TokenCounter
from everthread.core.turns import user_text
from everthread.lab.importers.log import (
    Log,
    LoggedMessage,
    LogStream,
)
from everthread.store.records import DEFAULT_TENANT, NewMessage, NewSession
from everthread.store.usage_records import NewUsage

if TYPE_CHECKING:
    from everthread.store.store import Store


MAX_TITLE_CHARS = 80


def make_thread_id(log: Log) -> str:
    """Return the id of an imported thread, always the same for the same conversation."""
    name = log.session_id or log.source
    return hashlib.sha256(f"{log.kind}\0{name}".encode()).hexdigest()[:32]


async def import_log(store: Store, log: Log) -> tuple[str, int]:
    """Store a conversation as a thread; return its id and the number of new messages."""
    return await import_stream(store, LogStream(log, log.entries))


async def import_stream(
    store: Store, stream: LogStream, *, tenant: str | None = None
) -> tuple[str, int]:
    """Store and index a conversation as it is read; return its thread's id and the number of new messages."""
    log = stream.log
    thread_id = make_thread_id(log)
    batches = _split_batches(stream.entries)
    first_batch = next(batches, [])
    times = [entry.timestamp for entry in first_batch if entry.timestamp is not None]
    new_session = NewSession(
        id=thread_id,
        platform=log.kind,
        title=log.title or _make_title(first_batch),
        model=log.model,
        system=log.system,
        started=min(times, default=None),
        client=log.kind,
        client_session=log.session_id,
        tenant=tenant or DEFAULT_TENANT,
    )
    await store.create_session(new_session)
    message_count_before = (await store.load_session(thread_id)).message_count
    timestamp: float | None = None
    numbers = itertools.count()
    for batch in itertools.chain([first_batch], batches):
        messages: list[NewMessage] = []
        usage: list[NewUsage] = []
        # A new counter for each batch, because a counter keeps the messages that it has counted.
        counter = TokenCounter(log.model or None)
        for entry in batch:
            timestamp = entry.timestamp or timestamp
            event_id = f"{thread_id}:{next(numbers)}"
            tokens = counter.message(entry.message)
            messages.append(
                NewMessage(entry.message, event=event_id, tokens=tokens, created=timestamp)
            )
            if entry.usage is not None:
                new_usage = NewUsage(thread_id, entry.model or log.model, entry.usage)
                cost = None if entry.cost is None else Decimal(str(entry.cost))
                usage.append(replace(new_usage, cost=cost, event=event_id, created=timestamp))
        await store.append(thread_id, messages)
        await asyncio.gather(*map(store.usage.record_usage, usage))
        await store.index_appended()
    return thread_id, (await store.load_session(thread_id)).message_count - message_count_before


IMPORT_BATCH_MESSAGES = 400
"""Messages that are stored and indexed together; fewer would cost more commits and merges of the index."""


def _split_batches(entries: Iterable[LoggedMessage]) -> Iterator[list[LoggedMessage]]:
    remaining = iter(entries)
    while batch := list(itertools.islice(remaining, IMPORT_BATCH_MESSAGES)):
        yield batch


def _make_title(entries: Iterable[LoggedMessage]) -> str:
    first_words = next(
        (words for entry in entries if (words := user_text(entry.message).strip())),
        "",
    )
    line = " ".join(first_words.split())
    return line if len(line) <= MAX_TITLE_CHARS else f"{line[: MAX_TITLE_CHARS - 1]}…"
