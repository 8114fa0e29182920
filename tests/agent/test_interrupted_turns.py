"""A turn that is stopped or fails leaves a valid history."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from everthread import ModelError, validate_messages
from everthread.agent.call_runner import INTERRUPTED_CALL_TEXT
from everthread.agent.tool_interface import ToolContext, ToolReply
from everthread.agent.turn_events import TurnEnded
from everthread.core.messages import text_of
from everthread.core.types import ModelReply, ModelRequest, StreamDelta
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents, EndlessWork, FakeTool, text_tool, tool_results
from tests.agent.agent_turns import has_valid_messages, make_route, read_turn, stop_at_first_word
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import make_text, numbered_text


async def test_stopping_while_tools_run_ends_them_and_says_so(
    agents: Agents,
) -> None:
    slow = EndlessWork()
    calls = call_reply(("quick", {}), ("slow", {}), text="Working.")
    model = ScriptedModel([calls, "Sorry. What instead?"])
    agent = await agents.open(
        model, tools=[text_tool("quick", "quick result"), FakeTool("slow", slow)]
    )
    reading = asyncio.create_task(read_turn(agent, "Go."))
    await slow.started.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert slow.is_ended
    assert tool_results(agent) == ["quick result", INTERRUPTED_CALL_TEXT]
    assert agents.events_of(TurnEnded)[0].reason == "interrupted"
    assert not agent.is_busy
    assert (await agent.send("Something else.")).text == "Sorry. What instead?"
    assert has_valid_messages(agent)
    assert INTERRUPTED_CALL_TEXT in str(await agents.store.load_history(agent.conversation.id))


class HangingModel(ScriptedModel):
    """Says a word, then waits for ever."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamDelta | ModelReply, None]:
        self.requests.append(request)
        yield StreamDelta("text", text="One, ")
        await asyncio.Event().wait()


async def test_stopping_in_mid_stream_keeps_the_partial_answer(
    agents: Agents,
) -> None:
    agent = await agents.open(HangingModel(), tools=[])
    await stop_at_first_word(agent)
    last = agent.conversation.messages[-1]
    assert last["role"] == "assistant"
    assert str(last["content"]).startswith("One, ")
    assert "interrupted" in str(last["content"])
    assert agents.events_of(TurnEnded)[0].reason == "interrupted"
    await agent.conversation.use_model(make_route(ScriptedModel(["Fine."])))
    assert (await agent.send("Stop.")).text == "Fine."
    assert has_valid_messages(agent)


async def test_a_complete_answer_is_stored_complete(agents: Agents) -> None:
    """The model has finished when its reader leaves: the paid answer is stored."""
    agent = await agents.open(ScriptedModel(["One two three.", "Fine."]), tools=[])
    await stop_at_first_word(agent)
    assert agent.conversation.messages[-1]["content"] == "One two three."
    assert len(await agents.store.usage.list_usage(agent.conversation.id)) == 1
    await agent.send("Stop.")
    assert has_valid_messages(agent)


async def test_a_model_that_fails_fails_the_turn_and_leaves_the_message(
    agents: Agents,
) -> None:
    agent = await agents.open(
        ScriptedModel([ModelError("out of service", status=401), "Back."]), tools=[]
    )
    with pytest.raises(ModelError, match="out of service"):
        await agent.send("Hello?")
    assert agents.events_of(TurnEnded)[0].reason == "failed"
    assert "out of service" in agents.events_of(TurnEnded)[0].error
    assert agent.conversation.messages[-1]["content"] == "Hello?"
    assert (await agent.send("Again?")).text == "Back."


@pytest.mark.parametrize("patience", [0, 0.001, 0.003, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05])
async def test_a_turn_stopped_anywhere_leaves_a_valid_history(
    agents: Agents, patience: float
) -> None:
    """Also while a message is stored, an answer recorded, a result kept, the history compacted."""

    async def work(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        await asyncio.sleep(0.002)
        return ToolReply(make_text(300, str(arguments["what"])))

    request_count = 0

    def script(request: ModelRequest) -> Any:
        nonlocal request_count
        request_count += 1
        last = str(request.messages[-1].get("content"))
        if last.startswith("Stop") or request_count % 4 == 0:
            return "Well."
        return call_reply(
            ("work", {"what": f"a{request_count}"}, f"a{request_count}"),
            ("work", {"what": f"b{request_count}"}, f"b{request_count}"),
        )

    config = "compression: {background: false, protect_last_n: 2}"
    agent = await agents.open(
        ScriptedModel(script, window=5_000),
        tools=[FakeTool("work", work)],
        config=config,
    )
    for turn in range(12):
        reading = asyncio.create_task(read_turn(agent, numbered_text(turn, 100, "turn")))
        await asyncio.sleep(patience)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        assert (await agent.send("Stop here.")).text == "Well."
        assert has_valid_messages(agent)
    again = await agents.open(
        ScriptedModel(["Still here."]), resume=agent.conversation.id, tools=[]
    )
    assert again.conversation.messages == agent.conversation.messages, (
        "the context equals the stored context"
    )
    history = [item.body for item in await agents.store.load_history(agent.conversation.id)]
    assert not validate_messages(history)
    assert sum(text_of(body) == "Stop here." for body in history) == 12
