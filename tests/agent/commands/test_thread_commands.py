"""`/search`, `/sessions`, `/new`, `/resume` and `/branch`."""

from __future__ import annotations

from everthread.core.messages import text_of
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from tests.agent.agent_setup import AgentSetup, call_reply, text_tool
from tests.agent.commands.command_runs import open_with_turns, run_command
from tests.conversation.conversation_setup import make_text


async def test_resuming_a_conversation_of_another_model_says_so(
    setup: AgentSetup,
) -> None:
    first = await setup.open(ScriptedModel(lambda _: "Noted.", name="model-a", window=24_000))
    await first.send("Hello.")
    thread = first.conversation.id
    second = await setup.open(ScriptedModel(lambda _: "Noted.", name="model-b", window=24_000))
    await second.send("Hi.")
    result = await run_command(second, f"/resume {thread}")
    assert "It was with model-a; model-b answers now" in result.text


async def test_new_resume_branch_and_sessions(setup: AgentSetup) -> None:
    agent, model = await open_with_turns(setup, 2)
    first = agent.conversation.id
    new = await run_command(agent, "/new Spring cleaning")
    assert new.next_session
    await agent.switch(new.next_session)
    await agent.send("A fresh start.")
    assert [text_of(m) for m in model.requests[-1].messages] == ["A fresh start."]
    assert model.requests[-1].system == model.requests[0].system, (
        "the new conversation has a system prompt"
    )
    assert model.requests[-1].tools == model.requests[0].tools
    listed = await run_command(agent, "/sessions")
    assert "Spring cleaning" in listed.text
    assert "Turn 0" in listed.text
    assert [row["here"] for row in listed.data["threads"]].count(True) == 1
    parent = agent.conversation.session
    other = await agent.conversation.open_another(
        new=NewSession(kind="subagent", parent=parent.id, title="A part")
    )
    await other.add("Count the files.")
    await other.close()
    assert (await run_command(agent, "/sessions")).data == listed.data, (
        "threads of subagents are not listed"
    )
    assert "/resume ID" in (await run_command(agent, "/resume")).text
    back = await run_command(agent, f"/resume {first[:8]}")
    assert back.next_session == first
    await agent.switch(back.next_session)
    assert len(agent.conversation.messages) == 4
    branch = await run_command(agent, "/branch")
    await agent.switch(branch.next_session or "")
    await agent.send("Only here.")
    assert len(agent.conversation.messages) == 6
    assert len(await setup.store.history(first)) == 4
    assert (await run_command(agent, "/resume zzzz")).failed
    assert (await run_command(await setup.open(ScriptedModel()), "/branch")).failed, (
        "there is nothing to branch from"
    )


async def test_other_tenants_threads_are_not_shown(setup: AgentSetup) -> None:
    acme = await setup.open(ScriptedModel(["ok"]), session=NewSession(tenant="acme"))
    await acme.send("The vault is behind the mirror.")
    bolt = await setup.open(ScriptedModel(["ok"]), session=NewSession(tenant="bolt"))
    await bolt.send("Hello.")
    assert "vault" not in (await run_command(bolt, "/sessions")).text
    assert (await run_command(bolt, "/search vault")).data["hits"] == []
    assert (await run_command(bolt, f"/resume {acme.conversation.id}")).failed
    assert (await run_command(bolt, "/insights")).data["total"]["calls"] == 1
    assert (await run_command(acme, "/search vault")).data["hits"]


async def test_search_finds_in_every_conversation(setup: AgentSetup) -> None:
    agent, _ = await open_with_turns(setup, 1)
    other = await setup.open(ScriptedModel(["ok"]))
    await other.send("The hinge of gate 14 is loose.")
    result = await run_command(agent, "/search hinge")
    assert result.data["hits"][0]["thread"] == other.conversation.id
    assert "gate 14" in result.text
    asked = await run_command(agent, "/search which gate has a loose hinge?")
    assert asked.data["hits"][0]["thread"] == other.conversation.id
    assert "Nothing was found" in (await run_command(agent, "/search zeppelin")).text
    assert (await run_command(agent, "/search")).failed


async def test_search_shows_the_message_before_and_after(setup: AgentSetup) -> None:
    agent = await setup.open(
        ScriptedModel([call_reply(("dump", {})), "The hinge is loose.", "Noted."]),
        tools=[text_tool("dump", make_text(200))],
    )
    await agent.send("Which gate?")
    await agent.send("Mend the hinge.")
    asked, call, result, answer, mend, noted = (
        one.id for one in await setup.store.history(agent.conversation.id)
    )
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
    assert first.data["hits"][0]["before"] is None
    assert first.data["hits"][0]["after"]["message"] == call == asked + 1
