"""A process that lost a thread writes nothing more to it; who has it next says how its turn ended."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from everthread import open_store
from everthread.conversation.answer_recorder import INTERRUPTED_ANSWER_TEXT
from everthread.core.messages import Message, text_of
from everthread.gateway.api.lost_turns import UNKNOWN_OUTCOME, repair_lost_turn
from everthread.store.records import Lease, NewMessage, NewSession
from everthread.store.turn_records import NewQueuedTurn
from tests.agent.agent_setup import call_reply
from tests.gateway.api.api_setup import ApiSetup

USER: Message = {"role": "user", "content": "pay"}
CALL: Any = call_reply(("terminal", {"command": "pay 100"})).message
SAID: Message = {"role": "assistant", "content": "Paid."}


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


@pytest.mark.parametrize(
    ("there", "state", "added"),
    [
        ([], "interrupted", ["pay", INTERRUPTED_ANSWER_TEXT]),
        ([USER], "interrupted", [INTERRUPTED_ANSWER_TEXT]),
        ([USER, CALL], "interrupted", [UNKNOWN_OUTCOME, INTERRUPTED_ANSWER_TEXT]),
        ([USER, SAID], "answered", []),
    ],
)
async def test_what_a_vanished_process_left(
    there: list[Message], state: str, added: list[str], tmp_path: Path
) -> None:
    store = open_store(url_in(tmp_path))
    try:
        thread = (await store.create_session(NewSession())).id
        await store.append(
            thread, [NewMessage({"role": "user", "content": "hi"}), NewMessage(SAID)]
        )
        turn = await store.queue_turn(
            NewQueuedTurn("t1", thread, "default", dict(USER), "t1"), max_waiting=1
        )
        lease = await store.acquire(thread, "next", 60)
        assert turn is not None
        assert lease is not None
        kept = [
            NewMessage(body, event=f"t1.{place}") for place, body in enumerate(there)
        ]
        await store.append(thread, kept, lease=lease)
        await repair_lost_turn(store, turn, lease)
        # The one who settled it first vanished too.
        ended, result = await repair_lost_turn(store, turn, lease)
        assert ended == state
        assert result.get("text") == ("Paid." if state == "answered" else None)
        history = [text_of(item.body) for item in await store.history(thread)]
        assert history == ["hi", "Paid.", *map(text_of, there), *added]
    finally:
        await store.close()


async def test_a_process_that_was_stopped_too_long(
    tmp_path: Path, api: ApiSetup
) -> None:
    thread = await api.thread()
    api.model.hold("one")
    asked = asyncio.create_task(api.say(thread, "one"))
    await api.model.until("one")
    lease = stolen(url_in(tmp_path), thread)
    await asyncio.sleep(0.5)
    (turn,) = (await api.store.begin_turn(lease)).lost_turns
    assert (turn.state, await api.history(thread)) == ("running", ["one"]), (
        "the loser wrote something"
    )
    await api.store.release(lease)
    answer = await asked
    assert (answer.status_code, answer.json()["error"]["code"]) == (
        503,
        "interrupted",
    )
    assert await api.history(thread) == ["one", INTERRUPTED_ANSWER_TEXT]
    assert api.model.begun == ["one"]
    assert (await api.say(thread, "two")).json()["answer"]["text"] == "re: two"


def stolen(url: str, thread: str) -> Lease:
    """Take the lease while this thread, and with it the gateway, is blocked."""
    found: list[Lease] = []

    async def take() -> None:
        store = open_store(url)
        while not found:
            lease = await store.acquire(thread, "thief", 30)
            found.extend([lease] if lease else [])
            await asyncio.sleep(0.05)
        await store.close()

    thief = threading.Thread(target=lambda: asyncio.run(take()))
    thief.start()
    thief.join(timeout=120)
    return found[0]
