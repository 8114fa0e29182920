"""`/search`, `/sessions`, `/new`, `/resume` and `/branch`."""

from __future__ import annotations

from everthread import Agent
from everthread.agent.commands import CommandResult
from everthread.core.messages import text_of
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import Agents, text_tool
from tests.agent.commands.command_runs import open_with_turns, run_command
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import make_text


async def follow(agent: Agent, result: CommandResult) -> None:
    """Continue in the session that a command names."""
    assert result.next_session is not None
    await agent.switch(result.next_session)


async def test_resuming_a_conversation_of_another_model_says_so(
    agents: Agents,
) -> None:
    first = await agents.open(ScriptedModel(lambda _: "Noted.", name="model-a", window=24_000))
    await first.send("Hello.")
    thread = first.conversation.id
    second = await agents.open(ScriptedModel(lambda _: "Noted.", name="model-b", window=24_000))
    await second.send("Hi.")
    result = await run_command(second, f"/resume {thread}")
    assert "It was with model-a; model-b answers now" in result.text


async def test_new_starts_a_conversation_with_the_same_prompt_and_tools(
    agents: Agents,
) -> None:
    agent, model = await open_with_turns(agents, 2)
    result = await run_command(agent, "/new Spring cleaning")
    await follow(agent, result)
    await agent.send("A fresh start.")
    first_request = model.requests[0]
    last_request = model.requests[-1]
    (message,) = last_request.messages
    assert text_of(message) == "A fresh start."
    assert last_request.system == first_request.system
    assert last_request.tools == first_request.tools


async def test_sessions_lists_conversations_without_subagents(agents: Agents) -> None:
    agent, _ = await open_with_turns(agents, 2)
    result = await run_command(agent, "/new Spring cleaning")
    await follow(agent, result)
    await agent.send("A fresh start.")
    listed = await run_command(agent, "/sessions")
    assert "Spring cleaning" in listed.text
    assert "Turn 0" in listed.text
    marks = [row["here"] for row in listed.data["threads"]]
    assert marks.count(True) == 1

    subagent = NewSession(
        kind="subagent",
        parent=agent.conversation.session.id,
        title="A part",
    )
    other = await agent.conversation.open_another(new=subagent)
    await other.add("Count the files.")
    await other.close()
    listed_again = await run_command(agent, "/sessions")
    assert listed_again.data == listed.data


async def test_resume_continues_the_conversation_that_is_named(agents: Agents) -> None:
    agent, _ = await open_with_turns(agents, 2)
    thread = agent.conversation.id
    result = await run_command(agent, "/new")
    await follow(agent, result)
    listed = await run_command(agent, "/resume")
    assert "/resume ID" in listed.text
    resumed = await run_command(agent, f"/resume {thread[:8]}")
    assert resumed.next_session == thread
    await follow(agent, resumed)
    assert len(agent.conversation.messages) == 4
    unknown = await run_command(agent, "/resume z")
    assert unknown.failed


async def test_branch_continues_in_a_copy(agents: Agents) -> None:
    agent, _ = await open_with_turns(agents, 2)
    thread = agent.conversation.id
    branched = await run_command(agent, "/branch")
    await follow(agent, branched)
    await agent.send("Only here.")
    assert len(agent.conversation.messages) == 6
    original = await agents.store.load_history(thread)
    assert len(original) == 4
    empty = await agents.open(ScriptedModel())
    refused = await run_command(empty, "/branch")
    assert refused.failed, "there is nothing to branch from"


async def test_other_tenants_threads_are_not_shown(agents: Agents) -> None:
    acme = await agents.open(ScriptedModel(["ok"]), session=NewSession(tenant="acme"))
    await acme.send("The vault is behind the mirror.")
    bolt = await agents.open(ScriptedModel(["ok"]), session=NewSession(tenant="bolt"))
    await bolt.send("Hello.")
    listed = await run_command(bolt, "/sessions")
    assert "vault" not in listed.text
    found = await run_command(bolt, "/search vault")
    assert found.data["hits"] == []
    resumed = await run_command(bolt, f"/resume {acme.conversation.id}")
    assert resumed.failed
    insights = await run_command(bolt, "/insights")
    assert insights.data["total"]["calls"] == 1
    found_by_owner = await run_command(acme, "/search vault")
    assert found_by_owner.data["hits"]


async def test_search_finds_in_every_conversation(agents: Agents) -> None:
    agent, _ = await open_with_turns(agents, 1)
    other = await agents.open(ScriptedModel(["ok"]))
    await other.send("The hinge of gate 14 is loose.")
    for query in ("hinge", "which gate has a loose hinge?"):
        result = await run_command(agent, f"/search {query}")
        first_hit = result.data["hits"][0]
        assert first_hit["thread"] == other.conversation.id
        assert "gate 14" in result.text
    unknown = await run_command(agent, "/search zeppelin")
    assert "Nothing was found" in unknown.text
    without_words = await run_command(agent, "/search")
    assert without_words.failed


async def test_search_shows_the_message_before_and_after(agents: Agents) -> None:
    agent = await agents.open(
        ScriptedModel([call_reply(("dump", {})), "The hinge is loose.", "Noted."]),
        tools=[text_tool("dump", make_text(200))],
    )
    await agent.send("Which gate?")
    await agent.send("Mend the hinge.")
    history = await agents.store.load_history(agent.conversation.id)
    asked, call, result, answer, mend, noted = (message.id for message in history)
    found = await run_command(agent, "/search hinge")
    lines = [line for line in found.text.splitlines() if line.startswith("  ")]
    assert lines[:2] == [
        f"  - before #{answer} assistant (also a match)",
        f"  - after #{noted} assistant: Noted.",
    ]
    assert lines[2].startswith(f"  - before #{result} tool (dump): ")
    assert lines[2].endswith("…")
    assert max(map(len, lines)) < 78
    assert lines[3:] == [f"  - after #{mend} user (also a match)"]
    assert found.data["hits"][1]["after"] == {
        "message": mend,
        "role": "user",
        "tool": "",
        "text": "Mend the hinge.",
    }
    first = await run_command(agent, "/search gate")
    first_hit = first.data["hits"][0]
    assert first_hit["before"] is None
    assert first_hit["after"]["message"] == call
    assert call == asked + 1
