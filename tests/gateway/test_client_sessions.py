"""Threads of one client session: continued after the client's own compaction, branched, re-worded. Over real HTTP."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.core.types import ModelReply, ModelRequest
from everthread.store.store import Store
from tests.chat_messages import function_call
from tests.cli.conftest import everthread, home
from tests.gateway.gateway_setup import (
    FILLER,
    ClaudeClient,
    Gateways,
    open_gateways,
)
from tests.gateway.store_wrappers import SlowStore

__all__ = ["everthread", "home"]
READ: Any = {
    "name": "Read",
    "description": "Read a file",
    "input_schema": {"type": "object", "properties": {}},
}
SUMMARY = (
    "1. Primary Request: the user asked to move the ledger of the harbour office into the new archive and to keep "
    "every receipt beside its entry. 2. Files: src/ledger/archive.py holds the importer, receipts.py pairs each "
    "receipt with its entry. 3. Pending: write the report for the auditors of the northern branch before Friday."
)
SECRET_PLACE = "The archive key lies under the blue amphora."
NUMBERS = itertools.count()


def open_session(http: httpx2.AsyncClient, url: str, name: str = "s-1") -> ClaudeClient:
    """A client that names its session, as Claude Code does."""
    return ClaudeClient(
        http,
        url,
        tools=[READ],
        headers={"x-claude-code-session-id": name},
    )


def answer_or_recall(request: ModelRequest) -> Any:
    """Summarise on request; look the key's place up if asked for it and `recall` is offered."""
    question = text_of(request.messages[-1]) if request.messages[-1]["role"] == "user" else ""
    if "detailed summary" in question:
        return SUMMARY
    tools = [tool["function"]["name"] for tool in request.tools or ()]
    if "Where is the key" in question and "recall" in tools:
        call = function_call(f"c{next(NUMBERS)}", "recall", '{"query": "archive key"}')
        return ModelReply(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [call],
            }
        )
    results = [text_of(message) for message in request.messages if message["role"] == "tool"]
    return f"Found: {results[-1]}" if results else "Noted."


@pytest.mark.parametrize("seconds", [0, 0.3])
async def test_recall_finds_messages_from_before_the_clients_compaction(
    tmp_path: Path, seconds: float, http: httpx2.AsyncClient
) -> None:
    async with open_gateways(tmp_path, script=answer_or_recall) as gateways:
        gateways.store = cast("Store", SlowStore(gateways.store, seconds))
        url = await gateways.start("none", key=None)
        session = open_session(http, url)
        before = await session.say(SECRET_PLACE)
        await session.say("Read the importer. " + FILLER * 5)
        await session.say("Your task is to create a detailed summary of the conversation so far.")
        session.messages = []
        opening = (
            "This session is being continued from a previous conversation that ran out of context."
        )
        after = await session.say(f"{opening}\nSummary:\n{SUMMARY}\n\nGo on with the report.")
        assert after != before
        stored = await gateways.store.load_session(after)
        assert stored.kind == "branch"
        assert stored.parent == before
        assert await session.say("Where is the key?") == after
        assert "blue amphora" in str(session.messages[-1]["content"])
        history = [text_of(message.body) for message in await gateways.store.load_history(after)]
        assert history[0] == SECRET_PLACE
        other = await gateways.start("none", key=None)
        later_session = open_session(http, other)
        later_session.messages = session.messages
        assert await later_session.say("Where is the key, once more?") == after, (
            "another process knows it too"
        )
        tools = [
            tool["function"]["name"]
            for tool in gateways.provider.log[-1].request.tools or ()  # type: ignore[union-attr]
        ]
        assert "recall" in tools


async def test_continues_after_a_compaction_of_the_gateway_and_of_the_client(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_gateways(tmp_path, window=12_000, script=answer_or_recall) as gateways:
        settings = "compression: {background: false, economics: false}\n"
        url = await gateways.start("none", key=None, settings=settings)
        session = open_session(http, url)
        before = await session.say(f"{SECRET_PLACE} {FILLER * 100}")
        while not await gateways.store.list_compactions(before):
            assert await session.say("Read on. " + FILLER * 100) == before
        await session.say("Your task is to create a detailed summary of the conversation so far.")
        session.messages = []
        after = await session.say(
            "This session is being continued from a previous conversation that ran out of context.\n"
            f"Summary:\n{SUMMARY}\n\nGo on with the report."
        )
        stored = await gateways.store.load_session(after)
        assert stored.parent is not None
        assert before in await gateways.store.list_family(after)
        assert await session.say("Where is the key?") == after
        assert "blue amphora" in str(session.messages[-1]["content"])


async def test_another_conversation_of_the_session_is_not_its_continuation(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    url = await gateways.start("none", key=None)
    session = open_session(http, url)
    await session.say("Move the ledger into the archive. " + FILLER * 5)
    session.messages = []
    thread = await session.say(
        "Write a poem about the sea in four lines, with a lighthouse, two gulls, some fog in the morning and a "
        "boat that comes home late, and let the last line rhyme with the first one, if that is no effort."
    )
    stored_session = await gateways.store.load_session(thread)
    assert stored_session.parent is None


def tool_use(number: int, path: str) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": f"toolu_{number}",
        "name": "Read",
        "input": {"file_path": path},
    }


def tool_result(number: int, text: str) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": f"toolu_{number}",
        "content": text,
    }


async def test_a_client_that_drops_one_of_two_parallel_calls_recalls_its_result(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_gateways(tmp_path, window=12_000, script=answer_or_recall) as gateways:
        settings = "compression: {background: false, economics: false}\n"
        url = await gateways.start("none", key=None, settings=settings)
        session = open_session(http, url)
        calls = [tool_use(1, "a.txt"), tool_use(2, "b.txt")]
        results = [
            tool_result(1, f"Nothing. {FILLER * 30}"),
            tool_result(2, SECRET_PLACE),
        ]
        opening = {"role": "user", "content": "Read both files. " + FILLER * 60}
        session.messages = [
            opening,
            {"role": "assistant", "content": calls},
            {"role": "user", "content": results},
        ]
        before = await session.send()
        await session.say("Thanks.")
        await gateways.wait_for_texts(before, 7)
        session.messages = [
            opening,
            {"role": "assistant", "content": calls[:1]},
            {"role": "user", "content": results[:1]},
            {"role": "assistant", "content": "One is read."},
        ]
        branch = await session.say("Go on. " + FILLER * 100)
        assert branch != before
        assert before in await gateways.store.list_family(branch)
        for _ in range(8):
            assert await session.say("Go on. " + FILLER * 100) == branch
        await session.say("Where is the key?")
        assert "blue amphora" in str(session.messages[-1]["content"])


async def test_state_and_search_reach_all_threads_of_a_session(
    everthread: Any, gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    url = await gateways.start("none", key=None)
    session = open_session(http, url)
    thread = await session.say("Mend the parser.")
    helper = open_session(http, url)
    edit = {
        "type": "tool_use",
        "id": "toolu_7",
        "name": "Edit",
        "input": {
            "file_path": "/src/parser.py",
            "old_string": "a",
            "new_string": "b",
        },
    }
    helper.messages = [
        {"role": "user", "content": "You mend the lexer beside the conversation."},
        {"role": "assistant", "content": [edit]},
        {"role": "user", "content": [tool_result(7, "The file was updated.")]},
    ]
    other = await helper.send()
    await gateways.wait_for_texts(other, 4)
    assert other != thread
    state = (await http.get(f"{url}/api/threads/{thread}/state")).json()
    paths = [file["path"] for file in state["files"]]
    assert "/src/parser.py" in paths
    response = await http.get(f"{url}/api/threads/{thread}/search", params={"q": "lexer"})
    threads = [hit["thread"] for hit in response.json()["items"]]
    assert threads == [other]
    stranger = await open_session(http, url, "s-2").say("Mend something else.")
    apart = (await http.get(f"{url}/api/threads/{stranger}/state")).json()
    assert apart["files"] == []
    stored = ("--store", str(gateways.file))
    assert "parser.py" in everthread("sessions", "state", thread, *stored).stdout
    output = everthread(
        "sessions",
        "search",
        "lexer",
        "--thread",
        thread,
        *stored,
    )
    assert "lexer" in output.stdout
