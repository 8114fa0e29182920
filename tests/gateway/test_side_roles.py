"""Calls beside a conversation that hold its messages: in another role, or only its last part. Over real HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2

from everthread.core.messages import text_of
from everthread.core.types import Reply, Request
from everthread.store.store import Store
from tests.chat_messages import function_call, result_message
from tests.gateway.gateway_setup import CHAT, GatewaySetup, open_setup
from tests.store.messages import texts_of

RULES = "\n".join(
    f"- Rule {number}: keep the ledger of branch {number} in order."
    for number in range(20)
)
CODER = f"You are a coding agent.\n{RULES}"
NOTES = "\n".join(
    f"- Memory type {number}: what a person says about topic {number}."
    for number in range(20)
)
KEEPER = f"You extract what is worth remembering.\n{NOTES}\n- Rule 3: keep the ledger of branch 3 in order."
EXTRACT = "Update the memory files from the recent conversation."


def tool(name: str) -> dict[str, Any]:
    function = {"name": name, "parameters": {"type": "object", "properties": {}}}
    return {"type": "function", "function": function}


class Agent:
    """A client without a session id that asks for memories after each turn, as Qwen Code does."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.messages: list[Any] = []
        self._http = http
        self._url = url

    async def say(self, text: str, *, system: str = CODER) -> str:
        """Return the thread of the answer."""
        self.messages.append({"role": "user", "content": text})
        return await self.send(system=system)

    async def send(self, *, system: str = CODER, tools: Any = None) -> str:
        message, thread = await self.ask(
            self.messages, system, tools or [tool("read"), tool("write")]
        )
        self.messages.append(message)
        return thread

    async def remember(self, recent: int | None = None) -> str:
        """Ask for memories with the conversation, or with its last messages."""
        said = self.messages if recent is None else self.messages[-recent:]
        asked = [*said, {"role": "user", "content": EXTRACT}]
        message, thread = await self.ask(asked, KEEPER, [tool("write")])
        if message.get("tool_calls"):
            call = message["tool_calls"][0]["id"]
            result = result_message(call, "Written.")
            _, again = await self.ask(
                [*asked, message, result], KEEPER, [tool("write")]
            )
            assert again == thread
        return thread

    async def ask(
        self, messages: list[Any], system: str, tools: Any
    ) -> tuple[dict[str, Any], str]:
        opening = [{"role": "system", "content": system}]
        body = {"model": CHAT, "messages": [*opening, *messages], "tools": tools}
        answer = await self._http.post(f"{self._url}/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return (
            answer.json()["choices"][0]["message"],
            str(answer.headers["x-everthread-thread"]),
        )


def write_memory_once(request: Request) -> Any:
    """Answer; a request for memories first calls a tool."""
    last = request.messages[-1]
    if text_of(last) == EXTRACT:
        call = function_call("w1", "write")
        return Reply({"role": "assistant", "content": "", "tool_calls": [call]})
    return f"Noted: {text_of(last)[:40]}"


async def wait_for_rows(store: Store, thread: str, messages: int) -> list[Any]:
    """Return the list of threads once one of them has this many messages."""
    async with asyncio.timeout(30):
        while True:
            rows = await store.list_threads()
            if any(row.first.id == thread and row.messages == messages for row in rows):
                return rows
            await asyncio.sleep(0.02)


async def test_a_call_in_another_role_is_beside_the_conversation(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_setup(tmp_path, script=write_memory_once) as gateways:
        agent = Agent(http, await gateways.start("none", key=None))
        thread = await agent.say("Mend the parser.")
        beside = set()
        for turn in range(1, 5):
            beside.add(await agent.remember())
            assert await agent.say(f"Now part {turn}.") == thread
        beside.add(await agent.remember(recent=5))
        assert await agent.say("The end.") == thread
        [row] = await wait_for_rows(gateways.store, thread, messages=12)
        assert (len(beside), row.side_calls) == (5, 5)
        assert thread not in beside
        history = texts_of(await gateways.store.history(thread))
        assert EXTRACT not in history
        side = await gateways.store.session(sorted(beside)[0])
        assert (side.kind, side.parent) == ("side", thread)
        assert thread in await gateways.store.family(side.id)


async def test_another_process_tells_the_roles_apart_too(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_setup(tmp_path, script=write_memory_once) as gateways:
        agent = Agent(http, await gateways.start("none", key=None))
        thread = await agent.say("Mend the parser.")
        await wait_for_rows(gateways.store, thread, messages=2)
        other = Agent(http, await gateways.start("none", key=None))
        other.messages = list(agent.messages)
        assert await other.remember() != thread
        assert await agent.say("Go on.") == thread


async def test_a_changed_prompt_of_the_same_client_is_no_other_role(
    gateways: GatewaySetup, http: httpx2.AsyncClient
) -> None:
    agent = Agent(http, await gateways.start("none", key=None))
    thread = await agent.say("Mend the parser.")
    planner = CODER.replace("You are a coding agent.", "You plan. Write nothing.")
    assert await agent.say("Plan it.", system=planner) == thread
    agent.messages.append({"role": "user", "content": "With fewer tools."})
    assert await agent.send(tools=[tool("read")]) == thread
    assert await agent.say("Short prompt.", system="Answer in French.") == thread


async def test_a_role_in_which_the_user_goes_on_is_a_conversation(
    gateways: GatewaySetup, http: httpx2.AsyncClient
) -> None:
    agent = Agent(http, await gateways.start("none", key=None))
    thread = await agent.say("Mend the parser.")
    agent.messages.append({"role": "user", "content": "Who are you now?"})
    other = await agent.send(system=KEEPER, tools=[tool("write")])
    assert other != thread
    agent.messages.append({"role": "user", "content": "Go on like this."})
    assert await agent.send(system=KEEPER, tools=[tool("write")]) == other
    rows = await wait_for_rows(gateways.store, other, messages=4)
    assert {row.first.id for row in rows} == {thread, other}
    assert thread in await gateways.store.family(other)


async def test_a_client_that_drops_its_oldest_messages_keeps_its_thread(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_setup(tmp_path, script=write_memory_once) as gateways:
        agent = Agent(http, await gateways.start("none", key=None))
        threads = set()
        for turn in range(8):
            agent.messages = agent.messages[-6:]
            threads.add(await agent.say(f"Entry {turn}."))
        assert len(threads) == 1
        [row] = await wait_for_rows(gateways.store, threads.pop(), messages=16)
        said = texts_of(await gateways.store.history(row.first.id))
        assert said[::2] == [f"Entry {turn}." for turn in range(8)]
