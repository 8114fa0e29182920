"""A compaction of a client's history is like any other: undone, branched from, previewed, asked for its state.

The gateway is a real one over loopback, on a real SQLite file. In the last test it is a process that is killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.factory import open_store
from everthread.lab.provider import Provider, ServedModel
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call, result_message
from tests.gateway.gateway_setup import CHAT_MODEL, ChatClient
from tests.gateway.manager_setup import numbered_text, statuses_of
from tests.gateway.proxied_conversation import ProxiedConversation, open_conversation
from tests.store.messages import texts_of

RUN = {
    "type": "function",
    "function": {
        "name": "run",
        "parameters": {"type": "object"},
    },
}
OPTIONS = ("--port", "0", "--json", "--upstream")


@dataclass
class CompactedClient:
    """A client whose history was compacted once, and its thread in the gateway's API."""

    conversation: ProxiedConversation
    http: httpx2.AsyncClient
    thread: str

    @property
    def store(self) -> Store:
        return self.conversation.gateways.store

    async def shown_texts(self) -> list[str]:
        """Return the texts that the context of the thread shows."""
        tip = await self.store.get_compression_tip(self.thread)
        return texts_of(await self.store.list_messages(tip))

    async def ask(self, text: str) -> None:
        """Ask, and wait until the answer is stored."""
        await self.conversation.ask(text)
        messages = self.conversation.client.messages
        await self.conversation.gateways.wait_for_texts(self.thread, len(messages))

    async def post(self, path: str, **body: Any) -> Any:
        answer = await self.http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture
async def client(tmp_path: Path, http: httpx2.AsyncClient) -> AsyncIterator[CompactedClient]:
    """Its history begins with a command that is compacted."""
    async with open_conversation(tmp_path, "openai_chat", streams=False) as conversation:
        command = function_call("call_1", "run", '{"command": "pytest -q tests"}')
        conversation.client.tools = [RUN]
        conversation.client.add_user_message("Run the tests.")
        conversation.client.messages += [
            calls_message(command),
            result_message("call_1", "3 failed, 10 passed\nexit code 1"),
        ]
        await conversation.send_until_compacted()
        await conversation.wait_until_recorded()
        [row] = await conversation.gateways.store.list_threads()
        http.base_url = httpx2.URL(f"{conversation.url}/api/threads/{row.first.id}")
        yield CompactedClient(conversation, http, row.first.id)


async def test_a_compaction_continues_the_thread_in_a_new_session(
    client: CompactedClient,
) -> None:
    store = client.store
    thread = client.thread
    tip = await store.load_session(await store.get_compression_tip(thread))
    assert tip.kind == "continuation"
    assert tip.parent == thread
    assert tip.thread == thread
    session = await store.load_session(thread)
    assert session.end_reason == "compression"
    context = await store.list_messages(tip.id)
    assert [message.kind for message in context].count("summary") == 1
    assert len(context) < len(await store.load_history(thread))
    await client.ask("And now?")
    shown_texts = await client.shown_texts()
    assert "And now?" in shown_texts


async def test_a_preview_changes_nothing(client: CompactedClient) -> None:
    for turn in range(4):
        await client.ask(numbered_text(turn, 1_500, "more"))
    before = await client.store.load_history(client.thread)
    preview = await client.post("/compress", preview=True)
    assert preview["data"]["covered"] > 0
    assert "Nothing was changed." in preview["text"]
    compactions = await client.store.list_compactions(client.thread)
    assert len(compactions) == 1
    history = await client.store.load_history(client.thread)
    assert history == before
    refused = await client.http.post("/compress", json={})
    assert refused.status_code == 409
    assert refused.json()["error"]["code"] == "kept_by_client"


async def test_a_branch_begins_with_the_compacted_context(
    client: CompactedClient,
) -> None:
    branch = (await client.post("/branch", title="Another way"))["id"]
    tip = await client.store.get_compression_tip(client.thread)
    context = await client.store.list_messages(branch)
    messages = await client.store.list_messages(tip)
    ids = [message.id for message in context]
    assert ids == [message.id for message in messages]
    await client.ask("And now?")
    assert client.conversation.response_headers["x-everthread-thread"] == client.thread
    messages = await client.store.list_messages(branch)
    assert messages == context, "its own thread continues"
    await client.post("/undo")
    messages = await client.store.list_messages(branch)
    assert messages == context


async def test_the_state_covers_the_whole_thread(client: CompactedClient) -> None:
    """A compacted command is still in the state, before and after an undo."""
    state = (await client.http.get("/state")).json()
    commands = [one["command"] for one in state["commands"]]
    assert commands == ["pytest -q tests"]
    await client.post("/undo")
    response = await client.http.get("/state")
    assert response.json()["commands"] == state["commands"]


@asynccontextmanager
async def run_gateway(folder: Path, provider: str) -> AsyncIterator[str]:
    """Run a gateway in a process of its own, which is killed at the end: nothing is closed."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text("compression: {background: false}\n", "utf-8")
    command = [
        sys.executable,
        "-m",
        "everthread",
        "serve",
        *OPTIONS,
    ]
    process = await asyncio.create_subprocess_exec(
        *command,
        f"lab={provider}",
        env={**os.environ, "EVERTHREAD_HOME": str(folder)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())["url"]
    finally:
        process.kill()
        await process.wait()


@pytest.mark.timeout(240)
async def test_a_killed_gateway_loses_neither_a_compaction_nor_its_undo(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    models = [ServedModel(CHAT_MODEL, 12_000, shows="max_model_len")]
    home = tmp_path / "home"
    client = ChatClient(
        http,
        "",
        tools=[RUN],
        system="Be brief.",
    )
    compactions = "0"
    thread = ""
    async with Provider(models, lambda _: "Noted.") as provider:
        async with run_gateway(home, provider.url) as client.url:
            for turn in range(40):
                thread = await client.say(numbered_text(turn, 600, "ledger"))
                compactions = client.answer_headers["x-everthread-compactions"]
                if compactions != "0":
                    break
        assert compactions == "1"
        compacted = provider.log[-1].body["messages"]
        async with run_gateway(home, provider.url) as client.url:
            client.token = "renewed"
            assert await client.say("And now?") == thread
            assert client.answer_headers["x-everthread-compactions"] == "1"
            sent = provider.log[-1].body["messages"]
            assert sent[: len(compacted)] == compacted, "the beginning is the same"
            undone = await http.post(f"{client.url}/api/threads/{thread}/undo", json={})
            assert undone.status_code == 200, undone.text
        async with run_gateway(home, provider.url) as client.url:
            assert await client.say("And then?") == thread
            assert client.answer_headers["x-everthread-compactions"] == "0"
            sent = provider.log[-1].body["messages"]
            assert len(sent) == len(client.messages), "with the system's, before the answer"
            await assert_store(home / "everthread.db", thread, client.messages)
        assert set(statuses_of(provider)) == {200}


async def assert_store(file: Path, thread: str, messages: list[Any]) -> None:
    """Check that the store gets all messages of a client in one thread, with an undone compaction."""
    store = open_store(file)
    try:
        while len(await store.load_history(thread)) < len(messages):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        history = await store.load_history(thread)
        assert texts_of(history) == list(map(text_of, messages))
        rows = await store.list_threads()
        ids = [row.first.id for row in rows]
        assert ids == [thread]
        [record] = await store.list_compactions(thread)
        assert record.reverted_at is not None
    finally:
        await store.close()
