"""A lossless thread of the native API: the model calls the engine's tools."""

from __future__ import annotations

import re
from typing import Any

from everthread.core.messages import results_of, text_of
from everthread.core.types import Request
from tests.agent.agent_setup import call_reply
from tests.compaction.lossless.lossless_setup import NODE
from tests.conversation.conversation_setup import make_text
from tests.gateway.api.api_setup import ApiSetup, WaitingModel, open_api

SETTINGS = "{context: {engine: lossless}, compression: {background: false, protect_last_n: 2}}"


def script(request: Request) -> Any:
    """Search as the message asks, or read the first node it shows."""
    spoken = (
        message
        for message in reversed(request.messages)
        if "<system-reminder>" not in text_of(message)
    )
    last = next(spoken)
    if last["role"] == "tool":
        return "Looked."
    last_text = text_of(last)
    if last_text.startswith("find "):
        return call_reply(
            ("lcm_grep", {"pattern": last_text.removeprefix("find "), "role": "user"})
        )
    if last_text == "read":
        context = "\n".join(map(text_of, request.messages))
        nodes = NODE.findall(context)
        return call_reply(("lcm_describe", {"id": nodes[0]}), ("lcm_expand", {"id": nodes[0]}))
    if last_text.startswith("read message:"):
        return call_reply(("lcm_expand", {"id": last_text.removeprefix("read ")}))
    return make_text(120, "answer")


async def run_tools(setup: ApiSetup, thread: str, text: str) -> list[str]:
    """Send a message to which the model answers with tool calls; return their results."""
    before = len(setup.model.requests)
    answer = await setup.read_answer_text(thread, text)
    assert answer == "Looked."
    messages = setup.model.requests[before + 1 :][-1].messages
    last_call = max(
        index for index, message in enumerate(messages) if message["role"] == "assistant"
    )
    return [result.text for message in messages[last_call:] for result in results_of(message)]


async def test_the_model_searches_and_reads_its_own_thread_only(store_url: str) -> None:
    model = WaitingModel(script, window=16_000)
    async with open_api(store_url, model, settings=SETTINGS) as setup:
        other = await setup.create_thread("bob")
        await setup.read_answer(other, "The vault opens with tulip_9_omega.", "bob")
        foreign_message = (await setup.store.history(other))[0].id
        thread = await setup.create_thread()
        for number in range(24):
            text = f"Box_{number:03d} stands on shelf-{number * 7919:06x}."
            await setup.read_answer(thread, f"{text} {make_text(400, 'hall')}")
        assert await setup.store.state.list_nodes(thread)
        for number in (2, 9):
            (answer,) = await run_tools(setup, thread, f"find box_{number:03d}")
            assert f"stands on shelf-{number * 7919:06x}" in answer
            assert f", turn {number + 1}, " in answer
        description, originals = await run_tools(setup, thread, "read")
        assert re.match(r"lcm_describe n[0-9a-f]{12}: turns \d+-\d+", description)
        assert "Box_001 stands on shelf-001eef" in originals
        (refused,) = await run_tools(setup, thread, f"read message:{foreign_message}")
        assert "do not try it again" in refused
        assert "vault" not in refused
