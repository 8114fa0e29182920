"""Two managers on one store, their steps interleaved: neither doubles or reorders the other's messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from everthread.gateway.contracts import RequestHandler
from everthread.gateway.managed.manager import ProxyManager
from everthread.store.store import Store
from everthread.thread.caller.caller_request import Outcome
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    prepare_request,
    text_reply,
)
from tests.gateway.store_wrappers import HeldStore
from tests.store.conftest import close_sound, open_at
from tests.store.messages import texts_of

NAMED = {"x-everthread-session": "mine"}


class Conversation:
    """A client that hears its answers before they are stored."""

    def __init__(self, client: HistoryClient) -> None:
        self.client = client
        self.said: list[str] = []
        self._count = 0

    async def ask(self, manager: ProxyManager) -> RequestHandler:
        self._count += 1
        self.client.add_user_message(f"Question {self._count}")
        self.said.append(f"Question {self._count}")
        return await prepare_request(manager, self.client.incoming())

    def hear(self, turn: RequestHandler) -> asyncio.Task[None]:
        """Take the answer; the task stores it."""
        text = f"Answer {self._count}"
        self.said.append(text)
        reply = text_reply(text)
        self.client.add_reply(reply)
        return asyncio.create_task(turn.record(Outcome(200, reply)))


@asynccontextmanager
async def two_processes(
    url: str, *, alone: bool
) -> AsyncIterator[tuple[HeldStore, ProxyManager, ProxyManager, Store]]:
    """The first one's store can be held; `alone`: it assumes that no other process writes."""
    stores = [open_at(url), open_at(url)]
    held = HeldStore(stores[0])
    first = Managers(stores[0]).open(store=held, is_sole_writer=alone)
    second = Managers(stores[1]).open()
    try:
        yield held, first, second, stores[1]
    finally:
        for manager in (first, second):
            await manager.close()
        for store in stores:
            await close_sound(store)


async def stored_threads(store: Store) -> list[list[str]]:
    rows = await store.list_threads(tenant="t")
    return [texts_of(await store.load_history(row.first.id)) for row in rows]


async def wait_for_background_work() -> None:
    """Let the tasks go as far as they can without the store."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("headers", [{}, NAMED], ids=["found by its history", "named"])
@pytest.mark.parametrize("alone", [False, True], ids=["one of several", "believes to be alone"])
async def test_continues_after_an_answer_that_another_process_stored_first(
    url: str, headers: dict[str, str], *, alone: bool
) -> None:
    """The client is quicker than the store: its answer comes back through another process before it is stored."""
    async with two_processes(url, alone=alone) as (held, first, second, store):
        conversation = Conversation(HistoryClient("anthropic", headers=headers))
        for _ in range(2):
            await conversation.hear(await conversation.ask(first))
        turn = await conversation.ask(first)
        await turn.make_response_headers()
        storing = held.hold("extend_thread")
        late = conversation.hear(turn)
        await wait_for_background_work()
        await conversation.hear(await conversation.ask(second))
        reading = held.hold("find_link")
        waiting = asyncio.create_task(conversation.ask(first))
        await wait_for_background_work()
        storing.set()
        await late
        reading.set()
        await conversation.hear(await waiting)
        for manager in (second, first):
            await conversation.hear(await conversation.ask(manager))
        stored = await stored_threads(store)
        assert stored == [conversation.said]


@pytest.mark.parametrize(
    "headers", [{}, {"x-session-id": "s"}], ids=["without a session", "in a session"]
)
async def test_a_first_request_stored_late_begins_no_second_thread(
    url: str, headers: dict[str, str]
) -> None:
    """The answer was quicker than the store; another process has stored the whole conversation by then."""
    async with two_processes(url, alone=False) as (held, first, second, store):
        conversation = Conversation(HistoryClient("openai_chat", headers=headers))
        storing = held.hold("extend_thread")
        late = conversation.hear(await conversation.ask(first))
        await wait_for_background_work()
        await conversation.hear(await conversation.ask(second))
        storing.set()
        await late
        for manager in (first, second):
            await conversation.hear(await conversation.ask(manager))
        stored = await stored_threads(store)
        assert stored == [conversation.said]
