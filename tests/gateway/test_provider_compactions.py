"""Compactions that a client asks its provider for: they pass whole, and the thread continues from them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.core.types import ModelRequest
from everthread.wire import anthropic
from tests.gateway.gateway_setup import CLAUDE_MODEL, FILLER, ClaudeClient, Gateways, open_gateways

BLOCK = {
    "type": "compaction",
    "content": "The user keeps a ledger. The key is under the blue amphora.",
    "signature": "c2lnbmVkLWJ5LXRoZS1wcm92aWRlcg==",
}
BETA = "compact-2026-09-04"
TOOL = {
    "name": "Read",
    "description": "Read a file",
    "input_schema": {"type": "object", "properties": {}},
}


def summarize_if_asked(request: ModelRequest) -> Any:
    if "compaction" in request.params:
        body = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": CLAUDE_MODEL,
            "content": [BLOCK],
            "stop_reason": "compaction",
            "usage": {"input_tokens": 10, "output_tokens": 20},
        }
        return anthropic.decode_reply(body)
    return f"Noted: {text_of(request.messages[-1])[:30]}"


async def wait_for_record(gateways: Gateways, thread: str) -> None:
    """Wait until the calls so far are recorded: that is done after the client has the answer."""
    while len(await gateways.store.usage.list_usage(thread)) < len(gateways.provider.log):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


SUMMARIZE = {"compaction": {"type": "summarize"}}


@pytest.mark.parametrize("way", ["at once", "in the background", "another process"])
async def test_forwards_a_requested_compaction_and_continues_the_thread_from_its_block(
    way: str, tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with open_gateways(tmp_path, window=16_000, script=summarize_if_asked) as gateways:
        settings = "compression: {background: false, economics: false}\n"
        url = await gateways.start("none", key=None, settings=settings)
        caller = ClaudeClient(
            http,
            url,
            tools=[TOOL],
            headers={"anthropic-beta": BETA},
        )
        thread = ""
        for turn in range(12):
            thread = await caller.say(f"Entry {turn}. {FILLER * 40}")
        assert len(gateways.provider.log[-1].body["messages"]) < len(caller.messages), (
            "a compaction of ours is in use"
        )
        count = len(caller.messages)
        await gateways.wait_for_texts(thread, count)
        response = await caller.post(**SUMMARIZE)
        sent = gateways.provider.log[-1].body
        assert sent["messages"] == caller.messages
        assert sent["compaction"] == SUMMARIZE["compaction"]
        assert sent["tools"] == [TOOL]
        assert response.headers["x-everthread-notice"] == "passed on unmanaged: compaction"
        assert response.headers["x-everthread-thread"] == thread
        later: list[Any] = []
        if way == "in the background":
            assert await caller.say("Meanwhile.") == thread
            later = caller.messages[count:]
        await wait_for_record(gateways, thread)
        if way == "another process":
            caller.url = await gateways.start("none", key=None, settings=settings)
        block = {"role": "assistant", "content": response.json()["content"]}
        caller.messages = [block, *later]
        assert await caller.say("Go on.") == thread
        assert gateways.provider.log[-1].body["messages"][0] == block
        assert await caller.say("And on.") == thread
        texts = await gateways.wait_for_texts(thread, count + len(later) + 4)
        assert texts[count + len(later) :: 2] == ["Go on.", "And on."]
        for _ in range(12):
            assert await caller.say(f"More. {FILLER * 40}") == thread
        last = gateways.provider.log[-1].body["messages"]
        assert last[0] == block, "a block of the provider is never covered"
        assert len(last) < len(caller.messages)
        rows = await gateways.store.list_threads()
        ids = [row.first.id for row in rows]
        assert ids == [thread]
