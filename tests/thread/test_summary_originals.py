"""Read the originals of a summary in parts; each part reads only its own messages."""

from __future__ import annotations

import re
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.search.search_results import (
    format_passage,
)
from everthread.core.summary_marks import mark_summary, summary_text
from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import StoredMessage
from everthread.store.store import Store
from everthread.testing import ScriptedModel
from everthread.thread.lookup.lookup_cache import LookupCache
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.options import RecallOptions
from tests.chat_messages import user_message
from tests.conversation.conversation_setup import Conversations, make_text
from tests.thread.stored_threads import append, look_up, store_user_texts

MESSAGES = 1_000
FIRST = 400
LAST = 460
PART_CHARS = 2_000


class CountingStore:
    """A store that counts the messages it returns."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load_history(self, *arguments: Any, **options: Any) -> list[StoredMessage]:
        messages: list[StoredMessage] = await self._store.load_history(*arguments, **options)
        self.count += len(messages)
        return messages

    async def load_message(self, *arguments: Any, **options: Any) -> StoredMessage:
        self.count += 1
        messages: StoredMessage = await self._store.load_message(*arguments, **options)
        return messages


async def test_reads_only_the_messages_of_the_requested_part(store: Store) -> None:
    rows = [f"Row {number}: {'x ' * 100}" for number in range(MESSAGES)]
    thread = await store_user_texts(store, *rows)
    ids = [message.id for message in await store.load_history(thread)]
    covered = ids[FIRST:LAST]
    node = Node(
        id="n0123456789ab",
        thread=thread,
        level=0,
        body="Rows.",
        tokens=5,
        covered_tokens=5_000,
        author="journal",
        first_message=covered[0],
        last_message=covered[-1],
        first_turn=FIRST,
        last_turn=LAST,
        since=1.0,
        until=2.0,
        sources=tuple(map(str, covered)),
    )
    await store.continue_session(
        thread,
        ids,
        seen_count=len(ids),
        nodes=[node],
    )
    counting_store: Any = CountingStore(store)
    cache = LookupCache()
    read_counts = []
    text = ""
    part = None
    while part is None or part.end < part.size:
        counting_store.count = 0
        # A server makes a lookup for every call.
        lookup = look_up(counting_store, thread, cache=cache)
        part = await lookup.expand(node.id, offset=len(text), limit=PART_CHARS)
        read_counts.append(counting_store.count)
        text += part.text
        await append(store, thread, user_message("And more."))
    shown_rows = [number for number in range(MESSAGES) if f"Row {number}:" in text]
    assert shown_rows == list(range(FIRST, LAST))
    assert f"[message:{covered[0]}] user, turn {FIRST + 1}, " in text
    assert read_counts[0] <= MESSAGES + 2 * (LAST - FIRST), "turns are counted once"
    assert max(read_counts[1:]) <= PART_CHARS // 200 + 2, "then only what is shown"
    assert (await look_up(store, thread).expand(node.id, limit=50_000)).text == text


async def expand_in_parts(lookup: StoreLookup, summary_id: str) -> str:
    """Return all originals of a summary, read part by part as a model does."""
    text = ""
    while True:
        part = await lookup.expand(summary_id, offset=len(text), limit=50_000)
        text += part.text
        if part.end == part.size:
            return text
        continuation = f"go on with offset {part.end}]"
        assert continuation in format_passage(part, tool="recall")


async def test_a_summary_expands_to_all_messages_it_covers(
    conversations: Conversations,
) -> None:
    """Also the second summary, which covers the first one and shortened messages."""
    conversation = await conversations.open(
        ScriptedModel(lambda _: "Noted.", window=8_000),
        background=False,
        recall=RecallOptions(enabled=False),
    )
    messages = [f"Page {n}: {make_text(700, f'page {n}')} end-{n}" for n in range(14)]
    for message in messages:
        await conversation.send(message)
    records = await conversations.store.list_compactions(conversation.id)
    assert len(records) >= 2
    [summary] = [item for item in conversation.stored if item.kind == "summary"]
    assert summary_text(mark_summary(summary.body))
    lookup = look_up(conversations.store, conversation.id)
    originals = await expand_in_parts(lookup, f"compaction:{records[-1].id}")
    assert await expand_in_parts(lookup, f"message:{summary.id}") == originals
    visible_text = "\n".join(map(text_of, conversation.messages))
    for message in messages[1:]:
        assert message in originals or message in visible_text
    assert re.search(r"\[message:\d+\] user, turn 2, \d{4}-", originals)
    with pytest.raises(UnknownIdError):
        await lookup.expand("compaction:999")
    with pytest.raises(InputError):
        await look_up(conversations.store, None).expand("compaction:1")
