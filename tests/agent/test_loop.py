"""The tool loop: rounds of calls until the model answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from everthread.agent.tool_interface import ToolContext, ToolReply
from everthread.agent.turn_events import ToolFinished, ToolStarted, TurnEnded
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.core.types import StreamDelta
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents, FakeTool, text_tool, tool_results
from tests.agent.agent_turns import has_valid_messages
from tests.chat_messages import call_reply


async def test_a_turn_streams_runs_tools_and_ends_with_its_answer(
    agents: Agents,
) -> None:
    model = ScriptedModel(
        [call_reply(("look", {"what": "door"}), text="Let me look."), "It is open."]
    )
    look = text_tool("look", "the door is open")
    agent = await agents.open(model, tools=[look])
    items = [item async for item in agent.turn("Is the door open?")]
    assert isinstance(items[-1], ModelAnswer)
    assert items[-1].text == "It is open."
    assert sum(isinstance(item, ModelAnswer) for item in items) == 1
    kinds = [
        type(item) for item in items if isinstance(item, ToolStarted | ToolFinished | TurnEnded)
    ]
    assert kinds == [ToolStarted, ToolFinished, TurnEnded]
    streamed_text = "".join(item.text for item in items if isinstance(item, StreamDelta))
    assert "Let me look." in streamed_text
    assert "It is open." in streamed_text
    assert look.seen == [{"what": "door"}]
    assert [m["role"] for m in agent.conversation.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    ended = agents.events_of(TurnEnded)[0]
    assert (ended.reason, ended.rounds, ended.calls) == ("answered", 1, 1)
    assert all(isinstance(event.as_dict()["event"], str) for event in agents.watch.events)


async def test_at_its_round_limit_a_turn_must_answer(agents: Agents) -> None:
    script: list[Any] = [call_reply(("look", {}, f"c{n}")) for n in range(3)]
    model = ScriptedModel([*script, "Half of it is done.", "Going on."])
    agent = await agents.open(model, tools=[text_tool("look")], config="agent: {max_rounds: 3}")
    answer = await agent.send("Do a lot.")
    assert answer.text == "Half of it is done."
    assert agents.events_of(TurnEnded)[0].reason == "max_rounds"
    assert "limit of 3 rounds" in str(model.requests[3].messages[-1]["content"])
    stored = [
        str(item.body.get("content"))
        for item in await agents.store.load_history(agent.conversation.id)
    ]
    assert not any("limit of 3 rounds" in text for text in stored), "the note is not stored"
    await agent.send("Go on.")
    assert has_valid_messages(agent)


async def test_a_model_that_calls_beyond_the_limit_gets_no_further_round(
    agents: Agents,
) -> None:
    look = text_tool("look")
    script: list[Any] = [call_reply(("look", {}, f"c{n}")) for n in range(2)]
    agent = await agents.open(ScriptedModel(script), tools=[look], config="agent: {max_rounds: 1}")
    await agent.send("Do a lot.")
    assert len(look.seen) == 1
    assert "limit of 1 rounds" in tool_results(agent)[-1]
    assert has_valid_messages(agent)


async def test_turns_wait_for_each_other(agents: Agents) -> None:
    script: list[Any] = [
        call_reply(("look", {}, "a")),
        "one",
        call_reply(("look", {}, "b")),
        "two",
    ]
    agent = await agents.open(ScriptedModel(script), tools=[text_tool("look")])
    answers = await asyncio.gather(agent.send("First."), agent.send("Second."))
    assert [answer.text for answer in answers] == ["one", "two"]
    roles = [message["role"] for message in agent.conversation.messages]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2


async def test_after_a_switch_events_and_tools_belong_to_the_new_conversation(
    agents: Agents,
) -> None:
    seen: list[str] = []

    async def look(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        seen.append(context.conversation.id)
        return ToolReply("ok")

    script: list[Any] = [
        call_reply(("look", {}, "a")),
        "one",
        call_reply(("look", {}, "b")),
        "two",
    ]
    agent = await agents.open(ScriptedModel(script), tools=[FakeTool("look", look)])
    await agent.send("First.")
    first = agent.conversation.id
    other = await agent.conversation.open_another(new=NewSession())
    await agent.switch(other.id)
    await agent.send("Second.")
    assert seen == [first, other.id]
    assert agents.events_of(TurnEnded)[-1].session == other.id
    assert len(await agents.store.load_history(first)) == 4
