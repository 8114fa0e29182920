"""Paged originals of a node: stable while messages arrive, and each page reads only its own messages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from everthread import open_store
from everthread.core.messages import text_of
from everthread.core.search.search_results import (
    format_passage,
)
from everthread.core.summary_marks import mark_summary, summary_text
from everthread.core.types import Node
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import NewMessage, NewSession, StoredMessage
from everthread.testing import ScriptedModel
from everthread.thread.lookup.lookup_cache import LookupCache
from everthread.thread.lookup.store_lookup import StoreLookup
from everthread.thread.options import RecallOptions
from tests.conversation.conversation_setup import make_text, open_setup

SAID = 1_000
FIRST = 400
LAST = 460
PART = 2_000


class CountingStore:
    """A store that counts the messages it returns."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def history(self, *given: Any, **more: Any) -> list[StoredMessage]:
        found: list[StoredMessage] = await self._store.history(*given, **more)
        self.given += len(found)
        return found

    async def message(self, *given: Any, **more: Any) -> StoredMessage:
        self.given += 1
        found: StoredMessage = await self._store.message(*given, **more)
        return found


async def test_a_part_costs_what_it_shows_and_stays_the_same(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    session = await store.create_session(NewSession())
    bodies: list[Any] = [
        {"role": "user", "content": f"Row {number}: {'x ' * 100}"}
        for number in range(SAID)
    ]
    ids = [
        stored.id
        for stored in await store.append(
            session.id, [NewMessage(body) for body in bodies]
        )
    ]
    covered = ids[FIRST:LAST]
    node = Node(
        "n0123456789ab",
        session.thread,
        0,
        "Rows.",
        5,
        5_000,
        "journal",
        covered[0],
        covered[-1],
        FIRST,
        LAST,
        1.0,
        2.0,
        tuple(map(str, covered)),
    )
    await store.put_nodes([node])
    counted: Any = CountingStore(store)
    cache = LookupCache()
    costs = []
    parts = []
    offset = 0
    while True:
        counted.given = (
            0  # each part by a lookup of its own, as a server makes one for every call
        )
        lookup = StoreLookup(counted, "default", session.thread, cache=cache)
        part = await lookup.expand(node.id, offset=offset, limit=PART)
        costs.append(counted.given)
        parts.append(part.text)
        offset = part.end
        if part.end == part.size:
            break
        await store.append(
            session.id, [NewMessage({"role": "user", "content": "And more."})]
        )
    whole = "".join(parts)
    assert [f"Row {number}:" in whole for number in range(FIRST - 1, LAST + 1)] == [
        False,
        *[True] * (LAST - FIRST),
        False,
    ]
    assert f"[message:{covered[0]}] user, turn {FIRST + 1}, " in whole
    assert costs[0] <= SAID + 2 * (LAST - FIRST), "turns are counted once"
    assert max(costs[1:]) <= PART // 200 + 2, "then only what is shown is read"
    alone = await StoreLookup(store, "default", session.thread).expand(
        node.id, limit=50_000
    )
    assert alone.text == whole
    await store.close()


async def test_a_summary_expands_to_every_word_it_stands_for(tmp_path: Path) -> None:
    """Also the second one, a short form of a summary and of shortened messages."""
    async with open_setup(tmp_path) as setup:
        conversation = await setup.open(
            ScriptedModel(lambda _: "Noted.", window=8_000),
            background=False,
            recall=RecallOptions(enabled=False),
        )
        said = [f"Page {n}: {make_text(700, f'page {n}')} end-{n}" for n in range(14)]
        for text in said:
            await conversation.send(text)
        records = await setup.store.compactions(conversation.id)
        assert len(records) >= 2
        lookup = StoreLookup(setup.store, "default", conversation.id)
        summary = next(
            item
            for item in await setup.store.messages(conversation.session.id)
            if item.kind == "summary"
        )
        assert summary_text(mark_summary(summary.body))
        texts = []
        for wanted in (f"compaction:{records[-1].id}", f"message:{summary.id}"):
            whole = ""
            offset = 0
            while True:
                part = await lookup.expand(wanted, offset=offset, limit=50_000)
                whole += part.text
                if part.end == part.size:
                    break
                assert f"go on with offset {part.end}]" in format_passage(
                    part, tool="recall"
                )
                offset = part.end
            texts.append(whole)
        assert texts[0] == texts[1]
        in_view = "\n".join(text_of(body) for body in conversation.messages)
        for text in said[1:]:
            assert text in texts[0] or text in in_view
        assert re.search(r"\[message:\d+\] user, turn 2, \d{4}-", texts[0])
        with pytest.raises(UnknownIdError):
            await lookup.expand("compaction:999")
        with pytest.raises(InputError):
            await StoreLookup(setup.store, "default", None).expand("compaction:1")
