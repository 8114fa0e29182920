"""The tool loop: whatever tools do, the turn continues and the history stays valid."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import pytest

from everthread import (
    Agent,
    ContextCompressor,
    InputError,
    ModelError,
    register_context_engine,
    validate_messages,
)
from everthread.agent.call_runner import INTERRUPTED_CALL_TEXT
from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.agent.turn_events import ToolFinished, ToolStarted, TurnEnded
from everthread.conversation.answer_recorder import ModelAnswer
from everthread.core.messages import text_of
from everthread.core.types import Reply, Request, StreamDelta
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from everthread.thread.events import OutputStored
from everthread.thread.options import Route
from tests.agent.agent_setup import (
    AgentSetup,
    EndlessWork,
    FakeTool,
    call_reply,
    text_tool,
    tool_results,
)
from tests.conversation.conversation_setup import make_text, numbered_text


def has_valid_messages(agent: Agent) -> bool:
    return not any(
        validate_messages(agent.conversation.messages, api=api)
        for api in ("openai", "anthropic")
    )


async def test_a_turn_streams_runs_tools_and_ends_with_its_answer(
    setup: AgentSetup,
) -> None:
    model = ScriptedModel(
        [call_reply(("look", {"what": "door"}), text="Let me look."), "It is open."]
    )
    look = text_tool("look", "the door is open")
    agent = await setup.open(model, tools=[look])
    items = [item async for item in agent.turn("Is the door open?")]
    assert isinstance(items[-1], ModelAnswer)
    assert items[-1].text == "It is open."
    assert sum(isinstance(item, ModelAnswer) for item in items) == 1
    kinds = [
        type(item)
        for item in items
        if isinstance(item, ToolStarted | ToolFinished | TurnEnded)
    ]
    assert kinds == [ToolStarted, ToolFinished, TurnEnded]
    said = "".join(item.text for item in items if isinstance(item, StreamDelta))
    assert "Let me look." in said
    assert "It is open." in said
    assert look.seen == [{"what": "door"}]
    assert [m["role"] for m in agent.conversation.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    ended = setup.events_of(TurnEnded)[0]
    assert (ended.reason, ended.rounds, ended.calls) == ("answered", 1, 1)
    assert all(
        isinstance(event.as_dict()["event"], str) for event in setup.watch.events
    )


async def test_calls_run_at_the_same_time_and_answer_in_their_order(
    setup: AgentSetup,
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

    wanted = [("meet", {"what": str(number)}, f"c{number}") for number in range(3)]
    agent = await setup.open(
        ScriptedModel([call_reply(*wanted), "Met."]), tools=[FakeTool("meet", meet)]
    )
    await agent.send("Meet.")
    assert tool_results(agent) == ["met 0", "met 1", "met 2"]
    assert [event.call_id for event in setup.events_of(ToolFinished)] == [
        "c2",
        "c1",
        "c0",
    ]


async def test_no_more_tools_run_at_once_than_allowed(setup: AgentSetup) -> None:
    running = 0
    most = 0

    async def work(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return ToolReply("ok")

    model = ScriptedModel(
        [call_reply(*[("work", {}, f"c{n}") for n in range(9)]), "All done."]
    )
    agent = await setup.open(
        model, tools=[FakeTool("work", work)], config="agent: {parallel: 2}"
    )
    await agent.send("Work.")
    assert most == 2
    assert len(tool_results(agent)) == 9


async def test_a_failing_tool_is_a_result_and_the_loop_continues(
    setup: AgentSetup,
) -> None:
    async def boom(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        raise ZeroDivisionError("by nought")

    async def leave(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        raise SystemExit(3)

    async def senseless(
        arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        raise InputError("line 9 is not there; the file has 3 lines")

    async def odd(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        return ToolReply("half \ud83d a character")

    tools = [
        FakeTool("boom", boom),
        FakeTool("leave", leave),
        FakeTool("senseless", senseless),
        FakeTool("odd", odd),
    ]
    tools.append(text_tool("quiet", "  \n"))
    wanted: list[Any] = [
        ("boom", {}),
        ("leave", {}),
        ("senseless", {}),
        ("odd", {}),
        ("quiet", {}),
    ]
    wanted += [
        ("bom", {}),
        ("boom", '{"what": "unfin', "cut"),
        ("boom", "[1]", "list"),
        ("quiet", "", "bare"),
    ]
    agent = await setup.open(
        ScriptedModel([call_reply(*wanted), "I see."]), tools=tools
    )
    answer = await agent.send("Try all.")
    assert answer.text == "I see."
    texts = tool_results(agent)
    assert texts[0] == "Failed: boom raised ZeroDivisionError: by nought"
    assert "SystemExit: 3" in texts[1]
    assert texts[2] == "Failed: line 9 is not there; the file has 3 lines"
    assert texts[3].encode("utf-8")
    assert texts[4] == texts[8] == "(no output)"
    assert "there is no tool 'bom'" in texts[5]
    assert "boom" in texts[5]
    assert "no valid JSON" in texts[6]
    assert "not an object" in texts[7]
    failed = {event.call_id for event in setup.events_of(ToolFinished) if event.failed}
    assert len(failed) == 6
    assert has_valid_messages(agent)


async def test_a_tool_may_return_text_and_other_values_are_errors(
    setup: AgentSetup,
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
    model = ScriptedModel([call_reply(*((tool.name, {}) for tool in tools)), "I see."])
    agent = await setup.open(model, tools=tools)
    assert (await agent.send("Try all.")).text == "I see."
    assert tool_results(agent)[0] == "a text"
    assert "answered with NoneType" in tool_results(agent)[1]
    assert "instead of text" in tool_results(agent)[2]


async def test_a_tool_that_hangs_is_ended(setup: AgentSetup) -> None:
    ended: list[str] = []

    async def hang(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")
        raise AssertionError

    async def own_timeout(
        arguments: Mapping[str, Any], context: ToolContext
    ) -> ToolReply:
        raise TimeoutError("the server did not answer")

    first = await setup.open(ScriptedModel([]), tools=[])
    tools = [FakeTool("hang", hang), FakeTool("own_timeout", own_timeout)]
    talking = await first.conversation.open_another()
    model = ScriptedModel([call_reply(("hang", {}), ("own_timeout", {})), "It hangs."])
    await talking.use_model(_route(model))
    agent = Agent(
        talking, tools, context=first.context, approve=_deny, tool_seconds=0.05
    )
    assert (await agent.send("Go.")).text == "It hangs."
    assert "did not finish within" in tool_results(agent)[0]
    assert "TimeoutError: the server did not answer" in tool_results(agent)[1]
    assert ended == ["cleaned up"]


async def test_approvals_are_asked_one_by_one_and_a_refusal_is_a_result(
    setup: AgentSetup,
) -> None:
    asking = 0
    asked: list[str] = []

    async def approve(permission: Permission) -> bool:
        nonlocal asking
        asking += 1
        assert asking == 1, "one question at a time"
        await asyncio.sleep(0.005)
        asking -= 1
        asked.append(permission.target)
        return permission.target == "ls"

    shell = text_tool("shell", "listed", kind="command")
    wanted = [
        ("shell", {"what": target}, f"c{n}")
        for n, target in enumerate(["ls", "rm -r /", "mkfs"])
    ]
    model = ScriptedModel([call_reply(*wanted), "Only the list."])
    agent = await setup.open(model, tools=[shell], approve=approve, yes=False)
    await agent.send("Clean up.")
    assert asked == ["ls", "rm -r /", "mkfs"]
    assert [seen["what"] for seen in shell.seen] == ["ls"]
    assert tool_results(agent)[0] == "listed"
    assert tool_results(agent)[1].startswith("Refused: ")
    assert [event.refused for event in setup.events_of(ToolFinished)] == [
        False,
        True,
        True,
    ]
    assert len(setup.events_of(ToolStarted)) == 1, "what was refused never began"


async def test_without_a_user_calls_that_need_approval_are_refused(
    setup: AgentSetup,
) -> None:
    shell = text_tool("shell", kind="command")
    agent = await setup.open(
        ScriptedModel([call_reply(("shell", {"what": "ls"})), "No."]),
        tools=[shell],
        yes=False,
    )
    await agent.send("List.")
    assert not shell.seen
    assert "nobody is there to approve" in tool_results(agent)[0]


async def test_writes_of_one_round_happen_in_their_order(setup: AgentSetup) -> None:
    written: list[str] = []

    async def write(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        await asyncio.sleep(0.01 if arguments["what"] == "first" else 0)
        written.append(str(arguments["what"]))
        return ToolReply("written")

    wanted = [
        ("write", {"what": target}, target) for target in ("first", "second", "third")
    ]
    agent = await setup.open(
        ScriptedModel([call_reply(*wanted), "ok"]),
        tools=[FakeTool("write", write, "write")],
    )
    await agent.send("Write.")
    assert written == ["first", "second", "third"]


async def test_at_its_round_limit_a_turn_must_answer(setup: AgentSetup) -> None:
    script: list[Any] = [call_reply(("look", {}, f"c{n}")) for n in range(3)]
    model = ScriptedModel([*script, "Half of it is done.", "Going on."])
    agent = await setup.open(
        model, tools=[text_tool("look")], config="agent: {max_rounds: 3}"
    )
    answer = await agent.send("Do a lot.")
    assert answer.text == "Half of it is done."
    assert setup.events_of(TurnEnded)[0].reason == "max_rounds"
    assert "limit of 3 rounds" in str(model.requests[3].messages[-1]["content"])
    stored = [
        str(item.body.get("content"))
        for item in await setup.store.history(agent.conversation.id)
    ]
    assert not any("limit of 3 rounds" in text for text in stored), (
        "it was for that call only"
    )
    await agent.send("Go on.")
    assert has_valid_messages(agent)


async def test_a_model_that_calls_beyond_the_limit_gets_no_further_round(
    setup: AgentSetup,
) -> None:
    look = text_tool("look")
    script: list[Any] = [call_reply(("look", {}, f"c{n}")) for n in range(2)]
    agent = await setup.open(
        ScriptedModel(script), tools=[look], config="agent: {max_rounds: 1}"
    )
    await agent.send("Do a lot.")
    assert len(look.seen) == 1
    assert "limit of 1 rounds" in tool_results(agent)[-1]
    assert has_valid_messages(agent)


async def test_stopping_while_tools_run_ends_them_and_says_so(
    setup: AgentSetup,
) -> None:
    slow = EndlessWork()
    wanted = call_reply(("quick", {}), ("slow", {}), text="Working.")
    model = ScriptedModel([wanted, "Sorry. What instead?"])
    agent = await setup.open(
        model, tools=[text_tool("quick", "quick result"), FakeTool("slow", slow)]
    )
    reading = asyncio.create_task(_read_turn(agent, "Go."))
    await slow.started.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert slow.is_ended
    assert tool_results(agent) == ["quick result", INTERRUPTED_CALL_TEXT]
    assert setup.events_of(TurnEnded)[0].reason == "interrupted"
    assert not agent.is_busy
    assert (await agent.send("Something else.")).text == "Sorry. What instead?"
    assert has_valid_messages(agent)
    assert INTERRUPTED_CALL_TEXT in str(
        await setup.store.history(agent.conversation.id)
    )


class HangingModel(ScriptedModel):
    """Says a word, then waits for ever."""

    async def stream(
        self, request: Request
    ) -> AsyncGenerator[StreamDelta | Reply, None]:
        self.requests.append(request)
        yield StreamDelta("text", text="One, ")
        await asyncio.Event().wait()


async def test_stopping_in_mid_stream_keeps_the_partial_answer(
    setup: AgentSetup,
) -> None:
    agent = await setup.open(HangingModel(), tools=[])
    await _stopped_at_first_word(agent)
    last = agent.conversation.messages[-1]
    assert last["role"] == "assistant"
    assert str(last["content"]).startswith("One, ")
    assert "interrupted" in str(last["content"])
    assert setup.events_of(TurnEnded)[0].reason == "interrupted"
    await agent.conversation.use_model(_route(ScriptedModel(["Fine."])))
    assert (await agent.send("Stop.")).text == "Fine."
    assert has_valid_messages(agent)


async def test_a_complete_answer_is_stored_complete(setup: AgentSetup) -> None:
    """The model has finished when its reader leaves: the paid answer is stored."""
    agent = await setup.open(ScriptedModel(["One two three.", "Fine."]), tools=[])
    await _stopped_at_first_word(agent)
    assert agent.conversation.messages[-1]["content"] == "One two three."
    assert len(await setup.store.usage(agent.conversation.id)) == 1
    await agent.send("Stop.")
    assert has_valid_messages(agent)


async def test_a_model_that_fails_fails_the_turn_and_leaves_the_message(
    setup: AgentSetup,
) -> None:
    agent = await setup.open(
        ScriptedModel([ModelError("out of service", status=401), "Back."]), tools=[]
    )
    with pytest.raises(ModelError, match="out of service"):
        await agent.send("Hello?")
    assert setup.events_of(TurnEnded)[0].reason == "failed"
    assert "out of service" in setup.events_of(TurnEnded)[0].error
    assert agent.conversation.messages[-1]["content"] == "Hello?"
    assert (await agent.send("Again?")).text == "Back."


async def test_a_huge_result_is_stored_and_cited(setup: AgentSetup) -> None:
    big = text_tool("big", "row of figures\n" * 200_000)
    agent = await setup.open(
        ScriptedModel([call_reply(("big", {})), "Much."]), tools=[big]
    )
    await agent.send("Print it.")
    assert len(setup.events_of(OutputStored)) == 1
    assert tool_results(agent)[0].startswith("<persisted-output>")
    assert len(tool_results(agent)[0]) < 5_000


async def test_hostile_call_ids_and_one_id_twice(setup: AgentSetup) -> None:
    look = text_tool("look")
    wanted = call_reply(
        ("look", {"what": "a"}, "../../etc/passwd"),
        ("look", {"what": "b"}, "same"),
        ("look", {}, "same"),
    )
    agent = await setup.open(ScriptedModel([wanted, "ok"]), tools=[look])
    assert (await agent.send("Go.")).text == "ok"
    answered = [
        message["tool_call_id"]
        for message in agent.conversation.messages
        if message["role"] == "tool"
    ]
    assert len(answered) == len(set(answered)) >= 2, "one result for each id"
    assert not validate_messages(agent.conversation.messages)


async def test_two_tools_of_one_name_are_refused(setup: AgentSetup) -> None:
    with pytest.raises(InputError, match="two tools are called look"):
        await setup.open(ScriptedModel(), tools=[text_tool("look"), text_tool("look")])


@pytest.mark.parametrize(
    "patience", [0, 0.001, 0.003, 0.006, 0.01, 0.015, 0.02, 0.03, 0.05]
)
async def test_a_turn_stopped_anywhere_leaves_a_valid_history(
    setup: AgentSetup, patience: float
) -> None:
    """Also while a message is stored, an answer recorded, a result kept, the history compacted."""

    async def work(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        await asyncio.sleep(0.002)
        return ToolReply(make_text(300, str(arguments["what"])))

    asked = 0

    def script(request: Request) -> Any:
        nonlocal asked
        asked += 1
        last = str(request.messages[-1].get("content"))
        if last.startswith("Stop") or asked % 4 == 0:
            return "Well."
        return call_reply(
            ("work", {"what": f"a{asked}"}, f"a{asked}"),
            ("work", {"what": f"b{asked}"}, f"b{asked}"),
        )

    config = "compression: {background: false, protect_last_n: 2}"
    agent = await setup.open(
        ScriptedModel(script, window=5_000),
        tools=[FakeTool("work", work)],
        config=config,
    )
    for turn in range(12):
        reading = asyncio.create_task(
            _read_turn(agent, numbered_text(turn, 100, "turn"))
        )
        await asyncio.sleep(patience)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
        assert (await agent.send("Stop here.")).text == "Well."
        assert has_valid_messages(agent)
    again = await setup.open(
        ScriptedModel(["Still here."]), resume=agent.conversation.id, tools=[]
    )
    assert again.conversation.messages == agent.conversation.messages, (
        "what is in view is what is stored"
    )
    history = [item.body for item in await setup.store.history(agent.conversation.id)]
    assert not validate_messages(history)
    assert sum(text_of(body) == "Stop here." for body in history) == 12


class EngineWithTool(ContextCompressor):
    """An engine with a tool of its own."""

    name = "noting"

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        return [text_tool("engine_notes").schema]

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        return f"{name} knows {arguments['what']}"


register_context_engine("noting", lambda services, _: EngineWithTool(services))


async def test_the_engines_own_tools_are_offered_and_answered_by_it(
    setup: AgentSetup,
) -> None:
    wanted = call_reply(
        ("engine_notes", {"what": "everything"}),
        ("engine_notes", {}, "b"),
        ("look", {}),
    )
    agent = await setup.open(
        ScriptedModel([wanted, "ok"]),
        tools=[text_tool("look")],
        config="context: {engine: noting}",
    )
    assert [tool["function"]["name"] for tool in agent.tools] == [
        "look",
        "engine_notes",
    ]
    await agent.send("What do you know?")
    assert tool_results(agent)[0] == "engine_notes knows everything"
    assert "KeyError" in tool_results(agent)[1]
    assert tool_results(agent)[2] == "done"


async def test_turns_wait_for_each_other(setup: AgentSetup) -> None:
    script: list[Any] = [
        call_reply(("look", {}, "a")),
        "one",
        call_reply(("look", {}, "b")),
        "two",
    ]
    agent = await setup.open(ScriptedModel(script), tools=[text_tool("look")])
    answers = await asyncio.gather(agent.send("First."), agent.send("Second."))
    assert [answer.text for answer in answers] == ["one", "two"]
    roles = [message["role"] for message in agent.conversation.messages]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2


async def test_after_a_switch_events_and_tools_belong_to_the_new_conversation(
    setup: AgentSetup,
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
    agent = await setup.open(ScriptedModel(script), tools=[FakeTool("look", look)])
    await agent.send("First.")
    first = agent.conversation.id
    made = await agent.conversation.open_another(new=NewSession())
    await agent.switch(made.id)
    await agent.send("Second.")
    assert seen == [first, made.id]
    assert setup.events_of(TurnEnded)[-1].session == made.id
    assert len(await setup.store.history(first)) == 4


async def _read_turn(agent: Agent, message: str) -> None:
    async with contextlib.aclosing(agent.turn(message)) as items:
        async for _ in items:
            pass


async def _stopped_at_first_word(agent: Agent) -> None:
    async with contextlib.aclosing(agent.turn("Count.")) as items:
        async for item in items:
            if isinstance(item, StreamDelta):
                return


async def _deny(permission: Permission) -> bool:
    return False


def _route(model: ScriptedModel) -> Any:
    return Route(
        model.name, model.api, model.window, base_url=model.base_url, model=model
    )
