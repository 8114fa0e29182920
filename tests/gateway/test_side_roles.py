"""Calls beside a conversation that hold its messages: in another role, or only its last part. Over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.core.types import ModelRequest
from everthread.store.store import Store
from tests.chat_messages import calls_reply, function_call, result_message
from tests.gateway.gateway_setup import ChatClient, Gateways, open_gateways
from tests.store.messages import texts_of

RULES = "\n".join(
    f"- Rule {number}: keep the ledger of branch {number} in order." for number in range(20)
)
CODER = f"You are a coding agent.\n{RULES}"
NOTES = "\n".join(
    f"- Memory type {number}: what a person says about topic {number}." for number in range(20)
)
KEEPER = f"You extract what is worth remembering.\n{NOTES}\n- Rule 3: keep the ledger of branch 3 in order."
EXTRACT = "Update the memory files from the recent conversation."


def tool(name: str) -> dict[str, Any]:
    function = {
        "name": name,
        "parameters": {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


class CodingClient(ChatClient):
    """A client without a session id that asks for memories after each turn, as Qwen Code does."""

    async def remember(self, recent: int = 0) -> str:
        """Ask for memories with the conversation, or with its last messages; return the thread of that."""
        keeper = ChatClient(self.http, self.url, tools=[tool("write")], system=KEEPER)
        keeper.messages = self.messages[-recent:]
        thread = await keeper.say(EXTRACT)
        if calls := keeper.messages[-1].get("tool_calls"):
            keeper.messages.append(result_message(calls[0]["id"], "Written."))
            await keeper.send(keeper.messages)
            assert keeper.answer_headers["x-everthread-thread"] == thread
        return thread


@pytest.fixture
async def gateways(tmp_path: Path) -> AsyncIterator[Gateways]:
    async with open_gateways(tmp_path, script=write_memory_once) as opened:
        yield opened


async def open_client(gateways: Gateways, http: httpx2.AsyncClient) -> CodingClient:
    """Return a client of a new gateway."""
    url = await gateways.start("none", key=None)
    return CodingClient(
        http,
        url,
        tools=[tool("read"), tool("write")],
        system=CODER,
    )


def write_memory_once(request: ModelRequest) -> Any:
    """Answer; a request for memories first calls a tool."""
    last = request.messages[-1]
    if text_of(last) == EXTRACT:
        return calls_reply(function_call("w1", "write"))
    return f"Noted: {text_of(last)[:40]}"


async def wait_for_rows(store: Store, thread: str, messages: int) -> list[Any]:
    """Return the list of threads once one of them has this many messages."""
    async with asyncio.timeout(30):
        while True:
            rows = await store.list_threads()
            if any(row.first.id == thread and row.message_count == messages for row in rows):
                return rows
            await asyncio.sleep(0.02)


async def test_a_call_in_another_role_gets_a_side_thread(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    client = await open_client(gateways, http)
    thread = await client.say("Mend the parser.")
    side_threads = set()
    for turn in range(1, 5):
        side_threads.add(await client.remember())
        assert await client.say(f"Now part {turn}.") == thread
    side_threads.add(await client.remember(recent=5))
    assert await client.say("The end.") == thread
    [row] = await wait_for_rows(gateways.store, thread, messages=12)
    assert len(side_threads) == row.side_call_count
    assert row.side_call_count == 5
    assert thread not in side_threads
    history = await gateways.store.load_history(thread)
    assert EXTRACT not in texts_of(history)
    side = await gateways.store.load_session(side_threads.pop())
    assert side.kind == "side"
    assert side.parent == thread
    assert thread in await gateways.store.list_family(side.id)


async def test_another_process_tells_the_roles_apart_too(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    client = await open_client(gateways, http)
    thread = await client.say("Mend the parser.")
    await wait_for_rows(gateways.store, thread, messages=2)
    other = await open_client(gateways, http)
    other.messages = list(client.messages)
    assert await other.remember() != thread
    assert await client.say("Go on.") == thread


async def test_a_changed_prompt_of_the_same_client_keeps_the_thread(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    client = await open_client(gateways, http)
    thread = await client.say("Mend the parser.")
    client.system = CODER.replace("You are a coding agent.", "You plan. Write nothing.")
    assert await client.say("Plan it.") == thread
    client.system = CODER
    client.tools = [tool("read")]
    assert await client.say("With fewer tools.") == thread
    client.system = "Answer in French."
    assert await client.say("Short prompt.") == thread


async def test_a_role_that_the_user_continues_is_a_conversation(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    client = await open_client(gateways, http)
    thread = await client.say("Mend the parser.")
    client.system = KEEPER
    client.tools = [tool("write")]
    other = await client.say("Who are you now?")
    assert other != thread
    assert await client.say("Go on like this.") == other
    rows = await wait_for_rows(gateways.store, other, messages=4)
    ids = {row.first.id for row in rows}
    assert ids == {thread, other}
    assert thread in await gateways.store.list_family(other)


async def test_a_client_that_drops_its_oldest_messages_keeps_its_thread(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    client = await open_client(gateways, http)
    entries = [f"Entry {number}." for number in range(8)]
    threads = set()
    for entry in entries:
        client.messages = client.messages[-6:]
        threads.add(await client.say(entry))
    [thread] = threads
    await wait_for_rows(gateways.store, thread, messages=16)
    history = await gateways.store.load_history(thread)
    assert texts_of(history)[::2] == entries
