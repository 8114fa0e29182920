"""A client's session groups its titles, counts and subagents under the conversation. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.core.types import ModelRequest
from everthread.gateway.identify import find_body_session, find_scope, read_client
from everthread.store.rewrite_records import ThreadLink
from everthread.store.store import Store
from everthread.thread.caller.caller_request import ClientSession, Outcome
from tests.chat_messages import calls_reply, function_call, user_message
from tests.cli.conftest import everthread, home
from tests.gateway.gateway_setup import CHAT_MODEL, CLAUDE_MODEL, Gateways, open_gateways
from tests.gateway.manager_setup import HistoryClient, Managers, prepare_request
from tests.gateway.store_wrappers import StoreWrapper

__all__ = ["everthread", "home"]

BASH: Any = {
    "name": "Bash",
    "description": "Run",
    "input_schema": {"type": "object", "properties": {}},
}
UUID = "4f9a1f9e-3c5b-4a60-9a5e-0d6c1a2b3c4d"
USER_ID = f"user_{'a' * 64}_account__session_{UUID}"


def script(request: ModelRequest) -> Any:
    """Delegate a task; answer everything else."""
    question = text_of(request.messages[-1])
    if "Mend" in question:
        return calls_reply(function_call("toolu_1", "Bash"), text="Somebody looks.")
    return "Done."


async def claude_code(
    http: httpx2.AsyncClient, url: str, *messages: Any, **more: Any
) -> httpx2.Response:
    """A request as Claude Code makes it."""
    body = {
        "model": CLAUDE_MODEL,
        "max_tokens": 500,
        "messages": list(messages),
        "metadata": {"user_id": USER_ID},
        **more,
    }
    answer = await http.post(
        f"{url}/v1/messages",
        json=body,
        headers={"user-agent": "claude-cli/2.1.0 (external, cli)", "x-api-key": "k"},
    )
    assert answer.status_code == 200, answer.text
    return answer


async def send_calls_of_claude_code(http: httpx2.AsyncClient, url: str) -> str:
    """Send a title, a conversation with a subagent of two calls, and a count; return the conversation's thread."""
    title = user_message("Write a title for: Mend the parser")
    await claude_code(
        http,
        url,
        title,
        system="You name conversations.",
    )
    reminder = "<system-reminder>Be nice.</system-reminder>"
    question = user_message(f"{reminder}Mend the parser, please")
    first = await claude_code(http, url, question, tools=[BASH])
    subagent: Any = {"tools": [BASH], "system": "You search."}
    search = user_message("Look for the parser's tests")
    search_response = await claude_code(http, url, search, **subagent)
    fixtures = user_message("And its fixtures")
    await claude_code(
        http,
        url,
        search,
        answer_of(search_response),
        fixtures,
        **subagent,
    )
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "4 tests",
    }
    results = {"role": "user", "content": [result]}
    last = await claude_code(
        http,
        url,
        question,
        answer_of(first),
        results,
        tools=[BASH],
    )
    count = user_message("How many tokens?")
    await claude_code(http, url, count, system="You count.")
    thread = first.headers["x-everthread-thread"]
    assert last.headers["x-everthread-thread"] == thread
    return thread


def answer_of(response: httpx2.Response) -> dict[str, Any]:
    return {"role": "assistant", "content": response.json()["content"]}


async def test_lists_side_calls_under_their_conversation(
    tmp_path: Path, everthread: Any, http: httpx2.AsyncClient
) -> None:
    async with open_gateways(tmp_path, script=script) as gateways:
        url = await gateways.start("none", key=None)
        thread = await send_calls_of_claude_code(http, url)
        listed = (await http.get(f"{url}/api/threads")).json()["items"]
        assert [(item["id"], item["side_calls"], item["client"]) for item in listed] == [
            (thread, 3, "claude-cli")
        ]
        assert listed[0]["title"] == "Mend the parser, please"
        assert listed[0]["tokens"] > 0
        detail = (await http.get(f"{url}/api/threads/{thread}")).json()
        assert len(detail["side_calls"]) == 3
        side = (await http.get(f"{url}/api/threads/{detail['side_calls'][0]}")).json()
        assert side["kind"] == "side"
        assert side["parent"] == thread
        rows = await gateways.store.list_threads()
    stored = ("--store", str(gateways.file))
    output = everthread("sessions", "list", *stored).stdout
    assert "side calls" in output, output
    assert re.search(r"\b3\b", output), output
    [row] = everthread.json("sessions", "list", *stored)["sessions"]
    assert row["side_calls"] == 3
    assert row["client_session"] == UUID
    assert row["tokens"] == rows[0].token_count
    tree = everthread("sessions", "tree", thread, *stored).stdout
    assert "Look for the parser" in tree


async def test_titles_a_thread_with_the_users_words_after_a_client_compaction(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    beginnings = (
        "This session is being continued from a previous conversation that ran out of context. ## Context: a parser",
        "Another language model started to solve this problem and produced a summary of its thinking. ## Context",
        "The conversation history before this point was compacted into the following summary:\n<summary>## Context",
        "<state_snapshot>## Context</state_snapshot>",
    )
    url = await gateways.start("none", key=None)
    for words in beginnings:
        body = {
            "model": CHAT_MODEL,
            "messages": [user_message(words), user_message("Now the printer")],
        }
        await http.post(f"{url}/v1/chat/completions", json=body)
    headed = {"model": CHAT_MODEL, "messages": [user_message("## Task\nMend the scanner")]}
    await http.post(f"{url}/v1/chat/completions", json=headed)
    items = (await http.get(f"{url}/api/threads")).json()["items"]
    assert sorted(item["title"] for item in items) == [
        "Mend the scanner",
        *["Now the printer"] * 4,
    ]


async def test_titles_a_thread_without_a_beginning_with_its_instructions(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    """Qwen Code asks a subagent what to remember, and shows it the end of the conversation."""
    url = await gateways.start("none", key=None)
    middle = [{"role": "assistant", "content": f"Round {number}."} for number in range(9)]
    instructions = {"role": "system", "content": "You keep the memory.\nBe brief."}
    body = {
        "model": CHAT_MODEL,
        "messages": [
            instructions,
            *middle,
            user_message("What is to be kept?"),
        ],
    }
    await http.post(f"{url}/v1/chat/completions", json=body)
    (item,) = (await http.get(f"{url}/api/threads")).json()["items"]
    assert item["title"].startswith("You keep the memory.")


@pytest.mark.parametrize(
    ("fields", "session"),
    [
        ({"metadata": {"user_id": USER_ID}}, UUID),
        (
            {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": UUID})}},
            UUID,
        ),
        ({"metadata": {"user_id": "somebody"}}, ""),
        ({"metadata": {"user_id": "{broken"}}, ""),
        (
            {
                "metadata": {"sessionId": "q1", "promptId": "q1########1"},
            },
            "q1",
        ),
        ({"metadata": "text", "prompt_cache_key": "k1"}, "k1"),
        ({"session_id": "router"}, "router"),
        ({"prompt_cache_key": 7}, ""),
        ({}, ""),
    ],
)
def test_reads_the_session_from_the_body(fields: dict[str, Any], session: str) -> None:
    assert find_body_session(fields) == session


def test_prefers_the_session_in_the_headers() -> None:
    headers = {
        "user-agent": "opencode/1.2",
        "x-session-id": "child",
        "x-parent-session-id": "parent",
    }
    client = read_client(headers, {"prompt_cache_key": "other"})
    assert client == ClientSession(
        "opencode",
        "child",
        "parent",
        is_subagent=True,
    )
    assert find_scope(headers, {"prompt_cache_key": "other"}) == "x-session-id:child"
    assert find_scope({}, {"prompt_cache_key": "other"}) == "body:other"
    assert find_scope({}) == ""


def test_a_copilot_cache_key_is_not_a_session() -> None:
    headers = {"user-agent": "OpenAI/JS 5.20.1", "x-initiator": "agent"}
    fields = {"prompt_cache_key": "a15e188e5e21eb5d9703d9a85f826eed"}
    assert find_scope(headers, fields) == ""
    assert read_client(headers, fields).session == ""
    assert find_scope({"agent-session-id": "20261118_1"}) == "agent-session-id:20261118_1"


class AnswerHoldingStore(StoreWrapper):
    """A store that holds answers until `go` is set."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.go = asyncio.Event()

    async def extend_thread(self, thread: str, points: Any, *given: Any) -> list[ThreadLink | None]:
        if points[0].messages[0].body["role"] == "assistant":
            await self.go.wait()
        links: list[ThreadLink | None] = await self.wrapped_store.client_histories.extend_thread(
            thread, points, *given
        )
        return links


async def test_a_subagent_waits_until_its_parents_answer_is_stored(
    managers: Managers,
) -> None:
    session = {"x-claude-code-session-id": UUID}
    tool = {
        "type": "function",
        "function": {"name": "Bash"},
    }

    held = AnswerHoldingStore(managers.store)
    manager = managers.open(store=held)
    client, helper = (HistoryClient("anthropic", tools=[tool], headers=session) for _ in range(2))
    client.add_user_message("Mend the parser")
    parent = await prepare_request(manager, client.incoming())
    thread = (await parent.make_response_headers())["x-everthread-thread"]
    reply = script(ModelRequest(CLAUDE_MODEL, [{"role": "user", "content": "Mend the parser"}]))
    answered = asyncio.create_task(parent.record(Outcome(200, replace(reply, stop="tool_calls"))))
    await asyncio.sleep(0)
    helper.add_user_message("Look for the parser's tests")
    child = await prepare_request(manager, helper.incoming())
    naming = asyncio.create_task(child.make_response_headers())
    result = await asyncio.wait({naming}, timeout=0.1)
    assert not result[0]
    held.go.set()
    stored = await managers.store.load_session((await naming)["x-everthread-thread"])
    await answered
    assert stored.kind == "side"
    assert stored.parent == thread
