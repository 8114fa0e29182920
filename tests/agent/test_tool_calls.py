"""Tool calls: several at a time, whatever a tool does, each call gets a result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from everthread import (
    Agent,
    ContextCompressor,
    InputError,
    register_context_engine,
    validate_messages,
)
from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.turn_events import ToolFinished, ToolStarted
from everthread.testing import ScriptedModel
from everthread.thread.events import OutputStored
from tests.agent.agent_setup import Agents, FakeTool, text_tool, tool_results
from tests.agent.agent_turns import deny, has_valid_messages, make_route
from tests.chat_messages import call_reply


async def test_calls_run_at_the_same_time_and_answer_in_their_order(
    agents: Agents,
) -> None:
    waiting: list[str] = []
    all_here = asyncio.Event()

    async def meet(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        """Answers only once three of its kind run, the last called first."""
        waiting.append(str(arguments["what"]))
        if len(waiting) == 3:
            all_here.set()
        await all_here.wait()
        await asyncio.sleep(0.02 * (3 - int(arguments["what"])))
        return ToolReply(f"met {arguments['what']}")

    calls = [("meet", {"what": str(number)}, f"c{number}") for number in range(3)]
    agent = await agents.run_calls(*calls, tools=[FakeTool("meet", meet)])
    assert tool_results(agent) == ["met 0", "met 1", "met 2"]
    assert [event.call_id for event in agents.events_of(ToolFinished)] == [
        "c2",
        "c1",
        "c0",
    ]


async def test_no_more_tools_run_at_once_than_allowed(agents: Agents) -> None:
    running = 0
    most = 0

    async def work(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return ToolReply("ok")

    agent = await agents.run_calls(
        *[("work", {}, f"c{n}") for n in range(9)],
        tools=[FakeTool("work", work)],
        config="agent: {parallel: 2}",
    )
    assert most == 2
    assert len(tool_results(agent)) == 9


def raising_tool(name: str, error: BaseException) -> FakeTool:
    async def work(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        raise error

    return FakeTool(name, work)


async def test_a_failing_tool_is_a_result_and_the_loop_continues(
    agents: Agents,
) -> None:
    tools = [
        raising_tool("boom", ZeroDivisionError("by nought")),
        raising_tool("leave", SystemExit(3)),
        raising_tool("senseless", InputError("line 9 is not there; the file has 3 lines")),
    ]
    agent = await agents.run_calls(("boom", {}), ("leave", {}), ("senseless", {}), tools=tools)
    boom, leave, senseless = tool_results(agent)
    assert boom == "Failed: boom raised ZeroDivisionError: by nought"
    assert "SystemExit: 3" in leave
    assert senseless == "Failed: line 9 is not there; the file has 3 lines"
    failed = [event.failed for event in agents.events_of(ToolFinished)]
    assert failed == [True, True, True]
    assert has_valid_messages(agent)


async def test_a_call_that_cannot_be_run_is_a_result(agents: Agents) -> None:
    agent = await agents.run_calls(
        ("bom", {}),
        ("boom", '{"what": "unfin', "cut"),
        ("boom", "[1]", "list"),
        tools=[text_tool("boom")],
    )
    unknown, cut, listed = tool_results(agent)
    assert "there is no tool 'bom'" in unknown
    assert "boom" in unknown, "the tools are named"
    assert "no valid JSON" in cut
    assert "not an object" in listed
    failed = [event.failed for event in agents.events_of(ToolFinished)]
    assert failed == [True, True, True]
    assert has_valid_messages(agent)


async def test_unusual_texts_become_results_that_a_protocol_can_carry(
    agents: Agents,
) -> None:
    tools = [text_tool("odd", "half \ud83d a character"), text_tool("quiet", "  \n")]
    agent = await agents.run_calls(("odd", {}), ("quiet", {}), ("quiet", "", "bare"), tools=tools)
    odd, quiet, bare = tool_results(agent)
    assert odd.encode("utf-8")
    assert quiet == "(no output)"
    assert bare == "(no output)"
    failed = [event.failed for event in agents.events_of(ToolFinished)]
    assert failed == [False, False, False]
    assert has_valid_messages(agent)


async def test_a_tool_may_return_text_and_other_values_are_errors(
    agents: Agents,
) -> None:
    def tool_answering(name: str, value: Any) -> FakeTool:
        async def work(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
            return value  # type: ignore[no-any-return]  # as anybody may write it

        return FakeTool(name, work)

    tools = [
        tool_answering("plain", "a text"),
        tool_answering("none", None),
        tool_answering("raw", ToolReply(b"x")),  # type: ignore[arg-type]  # on purpose
    ]
    agent = await agents.run_calls(*((tool.name, {}) for tool in tools), tools=tools)
    assert tool_results(agent)[0] == "a text"
    assert "answered with NoneType" in tool_results(agent)[1]
    assert "instead of text" in tool_results(agent)[2]


async def test_a_tool_that_hangs_is_ended(agents: Agents) -> None:
    ended: list[str] = []

    async def hang(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
        raise AssertionError

    async def own_timeout(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        raise TimeoutError("the server did not answer")

    first = await agents.open(ScriptedModel([]), tools=[])
    tools = [FakeTool("hang", hang), FakeTool("own_timeout", own_timeout)]
    talking = await first.conversation.open_another()
    model = ScriptedModel([call_reply(("hang", {}), ("own_timeout", {})), "It hangs."])
    await talking.use_model(make_route(model))
    agent = Agent(
        talking,
        tools,
        context=first.context,
        approve=deny,
        tool_seconds=0.05,
    )
    assert (await agent.send("Go.")).text == "It hangs."
    assert "did not finish within" in tool_results(agent)[0]
    assert "TimeoutError: the server did not answer" in tool_results(agent)[1]
    assert ended == ["cleaned up"]


async def test_approvals_are_asked_one_by_one_and_a_refusal_is_a_result(
    agents: Agents,
) -> None:
    asking = 0
    questions: list[str] = []

    async def approve(permission: Permission) -> bool:
        nonlocal asking
        asking += 1
        assert asking == 1, "one question at a time"
        await asyncio.sleep(0.005)
        asking -= 1
        questions.append(permission.target)
        return permission.target == "ls"

    shell = text_tool("shell", "listed", kind="command")
    calls = [
        ("shell", {"what": target}, f"c{n}") for n, target in enumerate(["ls", "rm -r /", "mkfs"])
    ]
    agent = await agents.run_calls(*calls, tools=[shell], approve=approve, yes=False)
    assert questions == ["ls", "rm -r /", "mkfs"]
    assert [seen["what"] for seen in shell.seen] == ["ls"]
    assert tool_results(agent)[0] == "listed"
    assert tool_results(agent)[1].startswith("Refused: ")
    assert [event.refused for event in agents.events_of(ToolFinished)] == [
        False,
        True,
        True,
    ]
    assert len(agents.events_of(ToolStarted)) == 1, "a refused call does not start"


async def test_without_a_user_calls_that_need_approval_are_refused(
    agents: Agents,
) -> None:
    shell = text_tool("shell", kind="command")
    agent = await agents.run_calls(("shell", {"what": "ls"}), tools=[shell], yes=False)
    assert not shell.seen
    assert "nobody is there to approve" in tool_results(agent)[0]


async def test_writes_of_one_round_happen_in_their_order(agents: Agents) -> None:
    written: list[str] = []

    async def write(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        await asyncio.sleep(0.01 if arguments["what"] == "first" else 0)
        written.append(str(arguments["what"]))
        return ToolReply("written")

    calls = [("write", {"what": target}, target) for target in ("first", "second", "third")]
    await agents.run_calls(*calls, tools=[FakeTool("write", write, "write")])
    assert written == ["first", "second", "third"]


async def test_a_huge_result_is_stored_and_cited(agents: Agents) -> None:
    big = text_tool("big", "row of figures\n" * 200_000)
    agent = await agents.run_calls(("big", {}), tools=[big])
    assert len(agents.events_of(OutputStored)) == 1
    assert tool_results(agent)[0].startswith("<persisted-output>")
    assert len(tool_results(agent)[0]) < 5_000


async def test_stores_each_result_despite_hostile_or_repeated_ids(agents: Agents) -> None:
    look = text_tool("look")
    agent = await agents.run_calls(
        ("look", {"what": "a"}, "../../etc/passwd"),
        ("look", {"what": "b"}, "same"),
        ("look", {}, "same"),
        tools=[look],
    )
    answered = [
        message["tool_call_id"]
        for message in agent.conversation.messages
        if message["role"] == "tool"
    ]
    assert len(answered) == len(set(answered)) >= 2, "one result for each id"
    assert not validate_messages(agent.conversation.messages)


async def test_two_tools_of_one_name_are_refused(agents: Agents) -> None:
    with pytest.raises(InputError, match="two tools are called look"):
        await agents.open(ScriptedModel(), tools=[text_tool("look"), text_tool("look")])


class EngineWithTool(ContextCompressor):
    """An engine with a tool of its own."""

    name = "noting"

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [text_tool("engine_notes").schema]

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name} knows {arguments['what']}"


register_context_engine("noting", lambda services, _: EngineWithTool(services))


async def test_the_engines_own_tools_are_offered_and_answered_by_it(
    agents: Agents,
) -> None:
    agent = await agents.run_calls(
        ("engine_notes", {"what": "everything"}),
        ("engine_notes", {}, "b"),
        ("look", {}),
        tools=[text_tool("look")],
        config="context: {engine: noting}",
    )
    assert [tool["function"]["name"] for tool in agent.tools] == [
        "look",
        "engine_notes",
    ]
    assert tool_results(agent)[0] == "engine_notes knows everything"
    assert "KeyError" in tool_results(agent)[1]
    assert tool_results(agent)[2] == "done"
