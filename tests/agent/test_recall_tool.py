"""Recall: exact words of the whole thread, also those summarised away; bounded, redacted, final."""

from __future__ import annotations

import re
from typing import Any

from everthread import Agent
from everthread.agent import MAX_RECALL_CHARS
from everthread.agent.tool_interface import ToolContext
from everthread.agent.tools.recall import Recall
from everthread.core.messages import text_of
from everthread.testing import ScriptedModel
from everthread.thread.events import OutputStored
from tests.agent.agent_setup import Agents, text_tool, tool_results
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import make_text

SMALL = "compression: {background: false, protect_last_n: 2}"
TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


async def ask(agent: Agent, **arguments: Any) -> str:
    context = ToolContext(agent.context.workspace, agent.context.home, agent.conversation)
    return (await Recall().call(arguments, context)).text


async def open_compacted_agent(agents: Agents, *, first: str, window: int = 24_000) -> Agent:
    """An agent whose first turn is long out of sight."""
    agent = await agents.open(ScriptedModel(lambda _: "Noted.", window=window), config=SMALL)
    await agent.send(first)
    await agents.send_until_compacted(agent, 1_500, times=2)
    return agent


async def test_messages_in_the_context_are_left_out_unless_nothing_else_matches(
    agents: Agents,
) -> None:
    detail = "The hinge of gate 14 takes 22.5 newton metres."
    agent = await open_compacted_agent(agents, first=detail)
    question = "Which torque did I name for the hinge of gate 14?"
    await agent.send(question)
    answer = await ask(agent, query=question)
    assert detail in answer
    assert question not in answer.partition("\n\n")[2]
    only_in_context = await ask(agent, query="torque")
    assert question in only_in_context


async def test_summarised_messages_are_found_word_for_word(agents: Agents) -> None:
    detail = "The hinge of gate 14 takes 22.5 newton metres, left-hand thread, says Mrs Okonkwo."
    agent = await agents.open(ScriptedModel(lambda _: "Noted.", window=24_000), config=SMALL)
    await agent.send("Let us begin.")
    await agent.send(f"{make_text(700, 'row')}. {detail} {make_text(700, 'line')}")
    await agents.send_until_compacted(agent, 1_500, times=3)
    answer = await ask(agent, query="Okonkwo hinge")
    assert len(answer) <= MAX_RECALL_CHARS
    assert detail in answer
    assert re.match(
        r"recall 'Okonkwo hinge': \d found: (message:\d+) ?.*\n\n\[\1\] user, turn 2, ",
        answer,
    )
    assert re.search(r"turn 2, \d{4}-\d\d-\d\d \d\d:\d\d UTC:\n", answer)
    number = re.findall(r"message:(\d+)", answer)[0]
    full_text = await ask(agent, id=f"message:{number}")
    stored = await agents.store.load_message(int(number))
    assert text_of(stored.body)[:1_000] in full_text


async def test_nothing_found_is_final(agents: Agents) -> None:
    rounds = [call_reply(("recall", {"query": "zeppelin"}, f"c{n}")) for n in range(12)]
    agent = await agents.open(ScriptedModel([*rounds, "Never."]))
    await agent.send("Did I ever tell you of that airship?")
    for result in tool_results(agent):
        assert result.startswith("recall 'zeppelin': nothing was found."), (
            "an earlier search is not a finding"
        )
    assert "Not searched: other conversations. Do not repeat this search." in tool_results(agent)[0]


async def test_stored_outputs_are_found_and_read_in_parts(agents: Agents) -> None:
    lines = [f"line {n}: value {n * 7919 % 10007}" for n in range(30_000)]
    lines[17_000] = "line 17000: PUMP_FAILURE code E-7731"
    big = text_tool("dump", "\n".join(lines))
    script: list[Any] = [
        call_reply(("dump", {})),
        call_reply(("recall", {"query": "PUMP_FAILURE"})),
        "Found.",
    ]
    agent = await agents.open(ScriptedModel(script), tools=[big, Recall()])
    await agent.send("Dump it.")
    cited = agents.events_of(OutputStored)[0].output
    assert f"[{cited}] output of dump" in tool_results(agent)[1]
    assert "line 17000: PUMP_FAILURE code E-7731\nline 17001" in tool_results(agent)[1], (
        "the text is quoted exactly"
    )
    text_read = ""
    offset = 0
    for _ in range(3):
        answer = await ask(agent, id=cited, offset=offset)
        assert len(answer) <= MAX_RECALL_CHARS
        part, _, rest = answer.rpartition("\n\n[")
        text_read += part.partition("\n\n")[2]
        offset = int(rest.rpartition(" ")[2].rstrip("]"))
    assert "\n".join(lines).startswith(text_read)
    assert "nothing at offset" in await ask(agent, id=cited, offset=10_000_000)


async def test_secrets_are_taken_out_wherever_a_part_begins(agents: Agents) -> None:
    agent = await agents.open(ScriptedModel(["Careful."]))
    await agent.send(f"Deploy with GITHUB_TOKEN={TOKEN} please, to the staging host.")
    answer = await ask(agent, query="staging")
    assert "staging host" in answer
    assert TOKEN not in answer
    number = re.findall(r"message:(\d+)", answer)[0]
    assert TOKEN not in await ask(agent, id=number)


async def test_other_threads_are_not_searched(agents: Agents) -> None:
    other = await agents.open(ScriptedModel(["ok"]))
    answer = await other.send("The vault is behind the mirror.")
    agent = await agents.run_calls(("recall", {"id": f"message:{answer.id}"}))
    assert "nothing was found" in await ask(agent, query="vault mirror")
    assert tool_results(agent)[0].startswith("Failed: this conversation has no message")


async def test_a_branch_recalls_shared_messages(agents: Agents) -> None:
    agent = await agents.open(ScriptedModel(lambda _: "ok"))
    first = await agent.send("The vault is behind the mirror.")
    branch = await agent.conversation.branch()
    await agent.switch(branch.id)
    assert "ok" in await ask(agent, id=f"message:{first.id}")


async def test_bad_arguments_are_refused(agents: Agents) -> None:
    agent = await agents.run_calls(
        ("recall", {}),
        ("recall", {"id": "../../etc/passwd"}, "b"),
        ("recall", {"id": "output:" + "0" * 16}, "c"),
    )
    assert "give a query" in tool_results(agent)[0]
    assert "is no id" in tool_results(agent)[1]
    assert tool_results(agent)[2].startswith("Failed: ")
