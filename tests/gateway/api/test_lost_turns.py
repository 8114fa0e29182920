"""A turn whose process has lost its thread or has ended: what is stored, and what the client sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from everthread import open_store
from everthread.conversation.answer_recorder import INTERRUPTED_ANSWER_TEXT
from everthread.core.messages import Message, text_of
from everthread.gateway.api.lost_turns import UNKNOWN_OUTCOME, repair_lost_turn
from everthread.store.records import Lease, NewMessage, NewSession
from everthread.store.store import Store
from everthread.store.turn_records import NewQueuedTurn, QueuedTurn
from tests.chat_messages import call_reply
from tests.gateway.api.api_setup import ApiGateway, error_of, open_api

QUESTION: Message = {"role": "user", "content": "pay"}
CALL: Any = call_reply(("terminal", {"command": "pay 100"})).message
ANSWER: Message = {"role": "assistant", "content": "Paid."}


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = open_store(store_url)
    yield opened
    await opened.close()


async def queue_turn(store: Store, thread: str, text: str, tenant: str) -> QueuedTurn:
    message: Message = {"role": "user", "content": text}
    queued = NewQueuedTurn(
        text * 4,
        thread,
        tenant=tenant,
        message=message,
        key=text,
    )
    turn = await store.turns.queue_turn(queued, max_waiting=9)
    assert turn is not None
    return turn


async def acquire(store: Store, thread: str, holder: str) -> Lease:
    lease = await store.leases.acquire_lease(thread, holder, 60)
    assert lease is not None
    return lease


@pytest.mark.parametrize(
    ("stored", "state", "added"),
    [
        ([], "interrupted", ["pay", INTERRUPTED_ANSWER_TEXT]),
        ([QUESTION], "interrupted", [INTERRUPTED_ANSWER_TEXT]),
        ([QUESTION, CALL], "interrupted", [UNKNOWN_OUTCOME, INTERRUPTED_ANSWER_TEXT]),
        ([QUESTION, ANSWER], "answered", []),
    ],
)
async def test_completes_the_history_that_an_ended_process_left(
    stored: list[Message], state: str, added: list[str], store: Store
) -> None:
    thread = (await store.create_session(NewSession())).id
    greeting: Message = {"role": "user", "content": "hi"}
    await store.append(thread, [NewMessage(greeting), NewMessage(ANSWER)])
    turn = await queue_turn(
        store,
        thread,
        text="pay",
        tenant="default",
    )
    lease = await acquire(store, thread, "next")
    messages = [NewMessage(body, event=f"{turn.id}.{number}") for number, body in enumerate(stored)]
    await store.append(thread, messages, lease=lease)
    await repair_lost_turn(store, turn, lease)
    # The process that repaired it first ended too.
    ended, result = await repair_lost_turn(store, turn, lease)
    assert ended == state
    assert result.get("text") == ("Paid." if state == "answered" else None)
    history = [text_of(item.body) for item in await store.load_history(thread)]
    assert history == ["hi", "Paid.", *map(text_of, stored), *added]


async def test_the_next_process_marks_a_lost_turn_and_answers_the_waiting_one(
    store_url: str, store: Store, api: ApiGateway
) -> None:
    """The first process is killed while a tool runs; its lease runs out."""
    async with open_api(store_url) as first:
        thread = await first.create_thread()
        await first.read_answer(thread, "hello")
    lease = await acquire(store, thread, "gone")
    lost = await queue_turn(
        store,
        thread,
        text="lost",
        tenant="acme",
    )
    waiting = await queue_turn(
        store,
        thread,
        text="next",
        tenant="acme",
    )
    await store.turns.begin_turn(lease)
    message: Any = dict(lost.message)
    await store.append(
        thread,
        [NewMessage(message, event=f"{lost.id}.0"), NewMessage(CALL)],
        lease=lease,
    )
    await store.leases.renew_lease(lease, 0.1)
    ended = await api.queue.wait(await api.queue.load_turn("acme", waiting.id), seconds=60)
    assert ended.state == "answered"
    turn = await api.get(f"/api/threads/{thread}/turns/{lost.id}")
    assert turn["state"] == turn["error"]["code"]
    assert turn["error"]["code"] == "interrupted"
    history = await api.history(thread)
    assert history[2] == "lost"
    assert history[4] == UNKNOWN_OUTCOME
    assert "interrupted" in history[5]
    assert history[6:] == ["next", "re: next"]
    begun_here = [text for text in api.model.started if text != "hello"]
    assert begun_here == ["next"], "either gateway may answer the first message"


async def test_a_process_that_lost_its_thread_writes_nothing_more(
    store_url: str, api: ApiGateway
) -> None:
    thread = await api.create_thread()
    api.model.block_answer_to("one")
    sending = await api.start_turn(thread, "one")
    lease = steal_lease(store_url, thread)
    await asyncio.sleep(0.5)
    (turn,) = (await api.store.turns.begin_turn(lease)).lost_turns
    assert turn.state == "running"
    history = await api.history(thread)
    assert history == ["one"]
    await api.store.leases.release_lease(lease)
    assert error_of(await sending) == (503, "interrupted")
    history = await api.history(thread)
    assert history == ["one", INTERRUPTED_ANSWER_TEXT]
    assert api.model.started == ["one"]
    answer = await api.read_answer_text(thread, "two")
    assert answer == "re: two"


def steal_lease(url: str, thread: str) -> Lease:
    """Take the lease in another thread while this one, and with it the gateway, is blocked."""
    leases: list[Lease] = []

    async def take() -> None:
        store = open_store(url)
        while not leases:
            lease = await store.leases.acquire_lease(thread, "thief", 30)
            leases.extend([lease] if lease else [])
            await asyncio.sleep(0.05)
        await store.close()

    thief = threading.Thread(target=lambda: asyncio.run(take()))
    thief.start()
    thief.join(timeout=120)
    return leases[0]
