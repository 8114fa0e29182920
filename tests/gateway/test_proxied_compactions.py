"""A compaction of a client's history is one like any other: undone, branched from, previewed, asked for its state.

The gateway is a real one over loopback, on a real SQLite file. In the last tests it is a process that is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.factory import open_store
from everthread.lab.provider import Provider, ServedModel
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call, result_message
from tests.gateway.manager_setup import HistoryClient, numbered_text
from tests.gateway.test_recall import ProxiedConversation, open_conversation
from tests.store.messages import texts_of

MODEL = "gpt-4o"
WINDOW = 12_000
RUN = {
    "type": "function",
    "function": {"name": "run", "parameters": {"type": "object"}},
}


@asynccontextmanager
async def open_compacted_client(
    folder: Path,
) -> AsyncIterator[tuple[ProxiedConversation, Any, str]]:
    """A client whose history was compacted once, the API of its thread, and the thread."""
    async with (
        open_conversation(folder, "openai_chat", streams=False) as conversation,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        await conversation.fill()
        await conversation.wait_until_recorded()
        [row] = await conversation.gateways.store.list_threads()
        http.base_url = httpx2.URL(f"{conversation.url}/api/threads/{row.first.id}")
        yield conversation, http, row.first.id


async def test_a_compaction_continues_the_thread_in_a_new_session(
    tmp_path: Path,
) -> None:
    async with open_compacted_client(tmp_path) as (conversation, _, thread):
        store = conversation.gateways.store
        tip = await store.session(await store.get_compression_tip(thread))
        first = await store.session(thread)
        assert (tip.kind, tip.parent, tip.thread) == ("continuation", thread, thread)
        assert first.end_reason == "compression"
        shown = await store.messages(tip.id)
        assert [message.kind for message in shown].count("summary") == 1
        assert len(shown) < len(await store.history(thread))
        await conversation.ask("And now?")
        await conversation.wait_until_recorded()
        said = texts_of(await store.messages(tip.id))
        assert "And now?" in said, "what comes since is in the continuation"


async def test_a_preview_changes_nothing(
    tmp_path: Path,
) -> None:
    async with open_compacted_client(tmp_path) as (conversation, http, thread):
        for turn in range(4):
            await conversation.ask(numbered_text(turn, 1_500, "more"))
        await conversation.wait_until_recorded()
        before = await conversation.gateways.store.history(thread)
        answer = await http.post("/compress", json={"preview": True})
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"]["covered"] > 0
        assert "Nothing was changed." in answer.json()["text"]
        assert len(await conversation.gateways.store.compactions(thread)) == 1
        assert await conversation.gateways.store.history(thread) == before
        refused = await http.post("/compress", json={})
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "kept_by_client"


async def test_a_branch_begins_with_the_compacted_context(tmp_path: Path) -> None:
    async with open_compacted_client(tmp_path) as (conversation, http, thread):
        store = conversation.gateways.store
        made = await http.post("/branch", json={"title": "Another way"})
        assert made.status_code == 201, made.text
        branch = made.json()["id"]
        tip = await store.get_compression_tip(thread)
        assert [message.id for message in await store.messages(branch)] == [
            message.id for message in await store.messages(tip)
        ]
        await conversation.ask("And now?")
        await wait_for(store, thread, conversation.client.messages)
        said = texts_of(await store.messages(branch))
        assert "And now?" not in said, "the client's own thread goes its own way"
        assert conversation.told["x-everthread-thread"] == thread
        assert (await http.post("/undo", json={})).status_code == 200
        assert len(await store.messages(branch)) == len(said)


async def test_the_state_covers_the_whole_thread(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    """A command whose call and result were compacted is still in the state, before and after an undo."""
    async with open_conversation(
        tmp_path, "openai_chat", streams=False
    ) as conversation:
        conversation.client.tools = [RUN]
        conversation.client.add_user_message("Run the tests.")
        conversation.client.messages += [
            calls_message(
                function_call("call_1", "run", '{"command": "pytest -q tests"}')
            ),
            result_message("call_1", "3 failed, 10 passed\nexit code 1"),
        ]
        await conversation.fill()
        await conversation.wait_until_recorded()
        [row] = await conversation.gateways.store.list_threads()
        at = f"{conversation.url}/api/threads/{row.first.id}"
        state = (await http.get(f"{at}/state")).json()
        assert [one["command"] for one in state["commands"]] == ["pytest -q tests"]
        assert (await http.post(f"{at}/undo", json={})).status_code == 200
        assert (await http.get(f"{at}/state")).json()["commands"] == state["commands"]


# Killed processes


@asynccontextmanager
async def run_gateway(folder: Path, provider: str) -> AsyncIterator[tuple[str, Any]]:
    """A gateway in a process of its own, killed at the end: nothing is closed."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text("compression: {background: false}\n", "utf-8")
    words = ("serve", "--port", "0", "--upstream", f"lab={provider}", "--json")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "everthread",
        *words,
        env={**os.environ, "EVERTHREAD_HOME": str(home)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        yield json.loads(line)["url"], process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()


class Client:
    """A chat client that keeps its history, and reads the header of each answer."""

    def __init__(self) -> None:
        self.history = HistoryClient("openai_chat", tools=[RUN])
        self.headers: dict[str, str] = {}
        self.token = "first"

    async def ask(self, url: str, text: str) -> None:
        self.history.add_user_message(text)
        async with httpx2.AsyncClient(timeout=120) as http:
            answer = await http.post(
                f"{url}/v1/chat/completions",
                json=self.history.body(),
                headers={"authorization": f"Bearer {self.token}"},
            )
        assert answer.status_code == 200, answer.text
        self.headers = dict(answer.headers)
        self.history.messages.append(answer.json()["choices"][0]["message"])

    @property
    def compactions(self) -> str:
        return self.headers["x-everthread-compactions"]

    async def fill(self, url: str) -> None:
        """Until the first compaction."""
        for turn in range(40):
            await self.ask(url, numbered_text(turn, 600, "ledger"))
            if self.compactions != "0":
                return
        raise AssertionError("nothing was compacted")


async def stored_thread(store: Store) -> str:
    [row] = await store.list_threads()
    return row.first.id


@pytest.mark.timeout(240)
async def test_a_killed_gateway_loses_neither_a_compaction_nor_its_undo(
    tmp_path: Path,
) -> None:
    models = [ServedModel(MODEL, WINDOW, shows="max_model_len")]
    client = Client()
    async with Provider(models, lambda _: "Noted.") as provider:
        async with run_gateway(tmp_path, provider.url) as (url, _):
            await client.fill(url)
        compacted_prompt = provider.log[-1].body["messages"]
        async with run_gateway(tmp_path, provider.url) as (url, _):
            client.token = "renewed"
            await client.ask(url, "And now?")
            assert client.compactions == "1", "a renewed login changes nothing"
            assert provider.log[-1].body["messages"][: len(compacted_prompt)] == (
                compacted_prompt
            ), "another process sends the same beginning"
            store = open_store(tmp_path / "home" / "everthread.db")
            thread = await stored_thread(store)
            async with httpx2.AsyncClient(timeout=60) as http:
                undone = await http.post(f"{url}/api/threads/{thread}/undo", json={})
            assert undone.status_code == 200, undone.text
        try:
            async with run_gateway(tmp_path, provider.url) as (url, _):
                await client.ask(url, "And then?")
                assert client.compactions == "0"
                assert client.headers["x-everthread-thread"] == thread
                sent = provider.log[-1].body["messages"]
                system = sent[:1]
                assert len([*system, *client.history.messages[:-1]]) == len(sent)
                await wait_for(store, thread, client.history.messages)
            assert await stored_thread(store) == thread, "there is one thread"
            said = [
                text_of(message.body)
                for message in await store.history(thread)
                if message.body["role"] == "user"
            ]
            asked = [text_of(one) for one in client.history.messages]
            assert said == [text for text in asked if text != "Noted."]
            [record] = await store.compactions(thread)
            assert record.reverted is not None
            assert {record.status for record in provider.log} == {200}
        finally:
            await store.close()


async def wait_for(store: Store, thread: str, messages: list[Any]) -> None:
    """Wait until all messages of a client are stored."""
    while len(await store.history(thread)) < len(messages):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
