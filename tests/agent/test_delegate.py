"""Subagents: a conversation of their own, bounded, accounted for, ended with their parent."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from everthread import ModelError
from everthread.agent import MAX_SUBAGENT_ROUNDS, commands
from everthread.agent.call_runner import INTERRUPTED_CALL_TEXT
from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.tools.delegate import Delegate
from everthread.agent.turn_events import Delegated, ToolFinished
from everthread.core.messages import content_text, text_of
from everthread.core.types import ModelRequest
from everthread.testing import ScriptedModel, ScriptStep
from tests.agent.agent_setup import Agents, EndlessWork, FakeTool, text_tool, tool_results
from tests.chat_messages import call_reply


def is_sub(request: ModelRequest) -> bool:
    return "You are a subagent" in content_text(request.system)


async def open_delegating_agent(
    agents: Agents,
    main: list[ScriptStep],
    sub: Any,
    tools: list[Any],
    approve: Any = None,
) -> Any:
    """An agent that can delegate; one script for it, one function for its subagents."""
    lines = iter(main)
    model = ScriptedModel(lambda request: sub(request) if is_sub(request) else next(lines))

    async def allow(permission: Permission) -> bool:
        return True

    inner = Delegate(
        tools, approve or allow, system=lambda: "You are nobody.", listener=agents.watch
    )
    delegate = Delegate(
        [*tools, inner],
        approve or allow,
        system=lambda: "You are a subagent.",
        listener=agents.watch,
    )
    return await agents.open(
        model, tools=[*tools, delegate], approve=approve or allow, yes=False
    ), model


async def test_a_subagent_works_in_a_child_session_and_only_its_answer_comes_back(
    agents: Agents,
) -> None:
    def sub(request: ModelRequest) -> ScriptStep:
        if len(request.messages) == 1:
            return call_reply(("look", {"what": "cellar"}))
        return f"The cellar: {text_of(request.messages[-1])}."

    task = {"task": "Look into the cellar.", "context": "The light is broken."}
    look = text_tool("look", "three barrels")
    agent, model = await open_delegating_agent(
        agents, [call_reply(("delegate", task)), "Three barrels."], sub, [look]
    )
    answer = await agent.send("What is in the cellar?")
    assert answer.text == "Three barrels."
    assert tool_results(agent)[0].startswith("The cellar: three barrels.")
    assert len(agent.conversation.messages) == 4
    child = next(s for s in await agents.store.list_sessions(kind="subagent"))
    assert child.parent == agent.conversation.session.id
    assert child.end_reason == "answered"
    texts = [text_of(item.body) for item in await agents.store.load_history(child.id)]
    assert texts[0] == "Look into the cellar.\n\nContext:\nThe light is broken."
    offered = [
        tool["function"]["name"] for tool in next(r for r in model.requests if is_sub(r)).tools
    ]
    assert offered == ["look"], "a subagent cannot delegate"
    assert any(isinstance(event.event, ToolFinished) for event in agents.events_of(Delegated))
    assert {event.thread for event in agents.events_of(Delegated)} == {child.id}
    usage = await commands.run(agent, agents.store, "/usage")
    assert usage.data["sums"]["subagents"]["calls"] == 2
    assert usage.data["sums"]["all"]["calls"] == 4


async def test_several_subagents_work_at_the_same_time(agents: Agents) -> None:
    both = asyncio.Event()
    inside: list[str] = []

    async def wait(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        inside.append(context.conversation.id)
        if len(inside) == 2:
            both.set()
        await both.wait()
        return ToolReply("waited")

    def sub(request: ModelRequest) -> ScriptStep:
        return (
            call_reply(("wait", {}))
            if len(request.messages) == 1
            else f"done: {text_of(request.messages[0])}"
        )

    wanted = call_reply(("delegate", {"task": "one"}, "a"), ("delegate", {"task": "two"}, "b"))
    agent, _ = await open_delegating_agent(agents, [wanted, "Both."], sub, [FakeTool("wait", wait)])
    await agent.send("Do both.")
    assert len(set(inside)) == 2
    assert [text.split("\n")[0] for text in tool_results(agent)] == [
        "done: one",
        "done: two",
    ]


async def test_the_rounds_of_a_subagent_are_limited(agents: Agents) -> None:
    def sub(request: ModelRequest) -> ScriptStep:
        last_text = text_of(request.messages[-1])
        return (
            "Half done."
            if "limit of" in last_text
            else call_reply(("look", {}, f"c{len(request.messages)}"))
        )

    look = text_tool("look")
    agent, _ = await open_delegating_agent(
        agents, [call_reply(("delegate", {"task": "endless"})), "ok"], sub, [look]
    )
    await agent.send("Go.")
    assert len(look.seen) == MAX_SUBAGENT_ROUNDS
    assert "Half done." in tool_results(agent)[0]
    assert "may be unfinished" in tool_results(agent)[0]


async def test_a_subagents_calls_need_approval(agents: Agents) -> None:
    questions: list[str] = []

    async def approve(permission: Permission) -> bool:
        questions.append(permission.target)
        return False

    def sub(request: ModelRequest) -> ScriptStep:
        return (
            call_reply(("shell", {"what": "rm"}))
            if len(request.messages) == 1
            else "It was refused."
        )

    shell = text_tool("shell", kind="command")
    agent, _ = await open_delegating_agent(
        agents,
        [call_reply(("delegate", {"task": "clean"})), "no"],
        sub,
        [shell],
        approve,
    )
    await agent.send("Clean.")
    assert questions == ["rm"]
    assert not shell.seen


async def test_a_subagent_is_stopped_with_its_parent(agents: Agents) -> None:
    slow = EndlessWork()
    agent, _ = await open_delegating_agent(
        agents,
        [call_reply(("delegate", {"task": "wait"}))],
        lambda _: call_reply(("slow", {})),
        [FakeTool("slow", slow)],
    )

    async def read() -> None:
        async with contextlib.aclosing(agent.turn("Go.")) as items:
            async for _ in items:
                pass

    reading = asyncio.create_task(read())
    await slow.started.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert slow.is_ended
    assert tool_results(agent) == [INTERRUPTED_CALL_TEXT]
    child = (await agents.store.list_sessions(kind="subagent"))[0]
    assert child.end_reason == "interrupted"
    last = (await agents.store.load_history(child.id))[-1].body
    assert last["content"] == INTERRUPTED_CALL_TEXT


async def test_a_failing_subagent_is_a_result(agents: Agents) -> None:
    main: list[ScriptStep] = [
        call_reply(("delegate", {"task": "try"}), ("delegate", {"job": "x"}, "b")),
        "It failed.",
    ]
    agent, _ = await open_delegating_agent(
        agents,
        main,
        lambda _: ModelError("no capacity", status=401),
        [text_tool("look")],
    )
    assert (await agent.send("Go.")).text == "It failed."
    assert tool_results(agent)[0] == "Failed: no capacity"
    assert "there is no argument job" in tool_results(agent)[1]
    assert (await agents.store.list_sessions(kind="subagent"))[0].end_reason == "failed"


async def test_only_the_main_agent_can_delegate(
    agents: Agents,
) -> None:
    lines: Any = iter([call_reply(("delegate", {"task": "Say hello."})), "It said hello."])
    model = ScriptedModel(lambda request: "hello" if is_sub(request) else next(lines))
    agent = await agents.open(model)
    await agent.send("Let somebody say hello.")
    names = [tool["function"]["name"] for tool in agent.tools]
    assert names[-1] == "delegate"
    sub = next(request for request in model.requests if is_sub(request))
    assert [tool["function"]["name"] for tool in sub.tools] == names[:-1]
