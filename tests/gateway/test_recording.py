"""Messages on their way into the store are known at once; those that fail are stored with the next request."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import text_of
from everthread.core.types import Api
from everthread.errors import StoreError
from everthread.factory.stores import open_store
from everthread.gateway.contracts import THREAD_HEADER
from everthread.gateway.managed.managed_turn import ManagedTurn
from everthread.gateway.managed.manager import ProxyManager
from everthread.store.rewrite_records import ThreadLink
from everthread.store.store import Store
from everthread.thread.caller.sent_history import Outcome
from everthread.thread.events import RecordFailed
from tests.gateway.manager_setup import (
    HistoryClient,
    ManagerSetup,
    answer_request,
    ask,
    text_reply,
    thread_of,
)


class FailingStore:
    """A store that is slow to store messages, and fails at the given calls."""

    def __init__(self, store: Any, fails: set[int], seconds: float = 0.01) -> None:
        self._store = store
        self._seconds = seconds
        self._fails = fails
        self._count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def extend_thread(self, *given: Any) -> list[ThreadLink | None]:
        self._count += 1
        failing = self._count in self._fails
        await asyncio.sleep(self._seconds)
        if failing:
            raise StoreError("the disk is full")
        links: list[ThreadLink | None] = await self._store.extend_thread(*given)
        return links


class RecordingStore:
    """A store that notes which roles it is given at once."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.written: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    async def extend_thread(
        self, thread: str, points: Any, *given: Any
    ) -> list[ThreadLink | None]:
        self.written.append(
            [message.body["role"] for point in points for message in point.messages]
        )
        links: list[ThreadLink | None] = await self.store.extend_thread(
            thread, points, *given
        )
        return links


@asynccontextmanager
async def gateway_alone(
    folder: Path,
) -> AsyncIterator[tuple[RecordingStore, ProxyManager, HistoryClient]]:
    """A gateway that has its store for itself, and a client whose first question is answered."""
    store = open_store(folder / "store.db")
    watched = RecordingStore(store)
    place = ManagerSetup(cast("Store", watched))
    manager = place.manager(alone=True)
    client = HistoryClient("anthropic")
    await ask(manager, client, "Where do we go?", "Left or right.")
    assert watched.written == [["user"], ["assistant"]], (
        "a new thread is stored before the client learns its name"
    )
    watched.written.clear()
    try:
        yield watched, manager, client
    finally:
        await manager.close()
        await store.close()


async def test_a_gateway_alone_stores_a_request_with_its_answer(tmp_path: Path) -> None:
    async with gateway_alone(tmp_path) as (store, manager, client):
        client.add_user_message("Left.")
        turn = await manager.prepare(client.incoming())
        told = await turn.response_headers()
        assert store.written == [], (
            "the client is told its thread before anything is stored"
        )
        reply = text_reply("Done.")
        await turn.record(Outcome(200, reply, CanonicalUsage(input_tokens=7)))
        assert store.written == [["user", "assistant"]]
        stored = [
            text_of(message.body)
            for message in await store.history(told[THREAD_HEADER])
        ]
        assert stored == ["Where do we go?", "Left or right.", "Left.", "Done."]
        assert [
            one.usage.input_tokens for one in await store.usage(told[THREAD_HEADER])
        ][-1] == 7


async def test_a_request_that_is_stored_is_freed_without_a_search_for_garbage(
    tmp_path: Path,
) -> None:
    async with gateway_alone(tmp_path) as (_, manager, client):
        client.add_user_message("Left.")
        gc.collect()
        gc.disable()
        try:
            await answer_request(manager, client, "Done.")
            await asyncio.sleep(0)
            new = gc.get_objects(generation=0)  # nothing was collected since
            assert not [found for found in new if isinstance(found, ManagedTurn)]
        finally:
            gc.enable()


async def test_a_gateway_alone_stores_a_request_that_is_not_answered_soon(
    tmp_path: Path,
) -> None:
    async with gateway_alone(tmp_path) as (store, manager, client):
        client.add_user_message("Left.")
        turn = await manager.prepare(client.incoming())
        async with asyncio.timeout(60):
            while not store.written:  # noqa: ASYNC110 - set in the background
                await asyncio.sleep(0.01)
        assert store.written == [["user"]]
        await turn.record(Outcome(500))
        assert len(await store.history(turn.thread)) == 3


async def test_a_branch_does_not_wait_for_the_answer_of_the_request_it_leaves(
    tmp_path: Path,
) -> None:
    async with gateway_alone(tmp_path) as (store, manager, client):
        other = deepcopy(client)
        client.add_user_message("Left.")
        other.add_user_message("Left.")
        first = await manager.prepare(client.incoming())
        other.add_assistant_message("In another window.")
        other.add_user_message("And on.")
        second = await manager.prepare(other.incoming())
        await manager.threads.store(cast("ManagedTurn", second).call)
        assert store.written == [["user"], ["assistant", "user"]]
        await first.record(Outcome(500))
        await second.record(Outcome(500))


async def test_what_a_gateway_alone_could_not_store_is_stored_with_the_next_request(
    tmp_path: Path,
) -> None:
    async with gateway_alone(tmp_path) as (store, manager, client):
        whole = store.store
        store.store = FailingStore(whole, {1})
        await ask(manager, client, "Left.", "Done.")
        store.store = whole
        sent = await ask(manager, client, "Further.", "There.")
        stored = [
            text_of(message.body)
            for message in await store.history(sent.headers[THREAD_HEADER])
        ]
        assert stored == [
            "Where do we go?",
            "Left or right.",
            "Left.",
            "Done.",
            "Further.",
            "There.",
        ]


@pytest.mark.parametrize("fails", [set(), {1}, {2}, {4, 5}], ids=str)
async def test_a_client_quicker_than_the_store_stays_in_its_thread(
    fails: set[int], setup: ManagerSetup
) -> None:
    whole = setup.store
    # Everything else is the store's own.
    setup.store = cast("Store", FailingStore(whole, fails))
    manager = setup.manager()
    client = HistoryClient("anthropic")
    telling = []
    threads = set()
    for turn in range(6):
        client.add_user_message(f"Question {turn}")
        incoming = client.incoming()
        asked = await manager.prepare(incoming)
        threads.add(thread_of(asked))
        reply = text_reply(f"Answer {turn}")
        client.add_reply(reply)
        telling.append(asyncio.create_task(asked.record(Outcome(200, reply))))
        await asyncio.sleep(0)  # the client has its answer, and continues at once
    await asyncio.gather(*telling)
    setup.store = whole
    rows = await whole.list_threads(tenant="t")
    stored = [
        [text_of(message.body) for message in await whole.history(row.first.id)]
        for row in rows
    ]
    assert [
        f"{kind} {turn}" for turn in range(6) for kind in ("Question", "Answer")
    ] in stored
    assert bool(setup.of(RecordFailed)) == bool(fails)
    if not fails:
        assert len(rows) == len(threads) == 1


@pytest.mark.parametrize("api", ["anthropic", "openai_chat", "openai_responses"])
async def test_three_processes_and_late_writes_make_no_branch(
    api: Api, setup: ManagerSetup
) -> None:
    """Each turn meets another process, while what the one before stores is on its way; some are asked twice."""

    whole = setup.store
    managers = []
    for number in range(3):
        setup.store = cast(
            "Store", FailingStore(whole, set(), seconds=0.03 * (number + 1))
        )
        managers.append(setup.manager())
    setup.store = whole
    client = HistoryClient(api)
    telling = []
    for turn in range(12):
        client.add_user_message(f"Question {turn}")
        reply = text_reply(f"Answer {turn}")
        # A client that lost its answer asks again.
        for manager in managers[turn % 3 : turn % 3 + 1 + turn % 2]:
            asked = await manager.prepare(client.incoming())
            telling.append(asyncio.create_task(asked.record(Outcome(200, reply))))
            await asyncio.sleep(0)
        client.add_reply(reply)
        if not turn:  # an unstored point is unknown to other processes
            await asyncio.gather(*telling)
    await asyncio.gather(*telling)
    rows = await whole.list_threads(tenant="t")
    stored = [
        [text_of(message.body) for message in await whole.history(row.first.id)]
        for row in rows
    ]
    assert stored == [
        [f"{kind} {turn}" for turn in range(12) for kind in ("Question", "Answer")]
    ]


async def test_nobody_is_told_a_thread_that_is_another_s(setup: ManagerSetup) -> None:
    """Two processes know the same last point, and a client continues it in both: one of them is a branch."""

    managers = [setup.manager(), setup.manager()]
    client = HistoryClient("anthropic")
    client.add_user_message("Where do we go?")
    reply = text_reply("Left or right.")
    for manager in managers:
        await (await manager.prepare(client.incoming())).record(Outcome(200, reply))
    client.add_reply(reply)
    ways = {"Left.": deepcopy(client), "Right.": deepcopy(client)}
    asked = []
    for manager, (word, way) in zip(managers, ways.items(), strict=True):
        way.add_user_message(word)
        asked.append(await manager.prepare(way.incoming()))
    assert len({thread_of(turn) for turn in asked}) == 1, (
        "both expect to go on in the same thread"
    )
    told = [await turn.response_headers() for turn in asked]
    for turn, word, said in zip(asked, ways, told, strict=True):
        stored = [
            text_of(one.body) for one in await setup.store.history(said[THREAD_HEADER])
        ]
        assert stored == ["Where do we go?", "Left or right.", word]
        await turn.record(Outcome(500))


async def test_what_could_not_be_stored_is_told_no_thread(setup: ManagerSetup) -> None:
    whole = setup.store
    setup.store = cast("Store", FailingStore(whole, {1}))
    manager = setup.manager()
    client = HistoryClient("openai_chat")
    client.add_user_message("Is anybody there?")
    incoming = client.incoming()
    turn = await manager.prepare(incoming)
    told = await turn.response_headers()
    assert THREAD_HEADER not in told
    assert told["x-everthread-compactions"] == "0"
    await turn.record(Outcome(500))
    setup.store = whole


class CountingStore:
    """A store that counts how often a history is looked for in it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.searches = 0

    def __getattr__(self, name: str) -> Any:
        self.searches += name in ("find_link", "find_links_by_skeleton")
        return getattr(self._store, name)


async def test_a_request_that_comes_again_is_known_without_a_look_into_the_store(
    setup: ManagerSetup,
) -> None:
    whole = setup.store
    counted = CountingStore(setup.store)
    setup.store = cast("Store", counted)
    manager = setup.manager()
    client = HistoryClient("anthropic")
    client.add_user_message("Once more, please.")
    reply = text_reply("Gladly.")
    first = await manager.prepare(client.incoming())
    await first.record(Outcome(200, reply))
    before = counted.searches
    again = await manager.prepare(client.incoming())
    await again.record(Outcome(200, reply))
    assert counted.searches == before
    assert thread_of(again) == thread_of(first)
    setup.store = whole
    [row] = await whole.list_threads(tenant="t")
    said = [text_of(message.body) for message in await whole.history(row.first.id)]
    assert said == ["Once more, please.", "Gladly."]
