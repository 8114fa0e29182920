"""`/compress`, `/undo` and `/context`."""

from __future__ import annotations

from typing import Any

from everthread.testing import ScriptedModel
from everthread.thread.events import CompactionDone, Recovery
from tests.agent.agent_setup import Agents, text_tool
from tests.agent.commands.command_runs import SMALL, open_with_turns, run_command
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import make_text, numbered_text, send_texts


async def test_a_compaction_is_previewed_made_and_undone(agents: Agents) -> None:
    agent, _ = await open_with_turns(agents, window=24_000)
    before = list(agent.conversation.messages)
    session = agent.conversation.session.id
    preview = await run_command(agent, "/compress --preview page 3")
    assert "would be replaced by a summary" in preview.text
    assert "- user: Turn 2: page 2 0 is settled" in preview.text, (
        "it lists messages that would be replaced"
    )
    assert agent.conversation.messages == before
    assert agent.conversation.session.id == session
    compaction = await run_command(agent, "/compress page 3")
    assert compaction.data["messages_before"] == 16
    assert compaction.data["messages_after"] == len(agent.conversation.messages) < 16
    assert compaction.data["tokens_after"] < compaction.data["tokens_before"]
    for words in (
        f"{compaction.data['tokens_before']:,} → {compaction.data['tokens_after']:,}",
        "journal",
        "16 messages",
    ):
        assert words in compaction.text
    assert agents.events_of(CompactionDone)[0].reason == "manual"
    undone = await run_command(agent, "/undo")
    assert agent.conversation.messages == before
    assert undone.data["messages"] == 16
    again = await run_command(agent, "/undo")
    assert (again.failed, again.data) == (False, {"undone": False})
    assert "nothing to undo" in again.text


async def test_no_compaction_follows_an_undo_at_once(agents: Agents) -> None:
    agent = await agents.open(ScriptedModel(lambda _: "Noted.", window=24_000), config=SMALL)
    turn = await agents.send_until_compacted(agent, 1_000)
    undone = await run_command(agent, "/undo")
    assert agent.conversation.tokens >= agent.conversation.threshold
    assert "waits until it has grown by a tenth" in undone.text
    await agent.send("A short question.")
    assert len(agents.events_of(CompactionDone)) == 1
    while len(agents.events_of(CompactionDone)) == 1:
        turn += 1
        await agent.send(numbered_text(turn, 1_000, "page"))


async def test_an_undo_that_does_not_fit_is_compacted_by_the_next_message(
    agents: Agents,
) -> None:
    agent = await agents.open(ScriptedModel(lambda _: "Noted.", window=24_000), config=SMALL)
    turn = await agents.send_until_compacted(agent, 1_000)
    for page in range(turn, turn + 12):
        await agent.send(numbered_text(page, 1_000, "page"))
    undone = await run_command(agent, "/undo")
    while not agent.conversation.is_full:
        undone = await run_command(agent, "/undo")
    assert "do not fit the window" in undone.text
    count = len(agents.events_of(CompactionDone))
    await agent.send("A short question.")
    assert len(agents.events_of(CompactionDone)) == count + 1
    assert not agents.events_of(Recovery)


async def test_a_preview_never_grows_the_history(agents: Agents) -> None:
    agent = await agents.open(ScriptedModel(lambda _: "Noted.", window=6_000), config=SMALL)
    offered = 0
    for turn in range(12):
        await agent.send(numbered_text(turn, 100, "page"))
        result = await run_command(agent, "/compress --preview")
        assert result.data["tokens_after"] <= result.data["tokens_before"]
        if result.data["covered"]:
            offered += 1
            assert f"at most {result.data['tokens_after']:,}" in result.text
    assert offered


async def test_compress_with_nothing_to_do_or_disabled(agents: Agents) -> None:
    agent, _ = await open_with_turns(agents, 1)
    assert "Nothing was changed" in (await run_command(agent, "/compress")).text
    off = await agents.open(ScriptedModel(["ok"]), config="compression: {enabled: false}")
    await off.send("Hi.")
    result = await run_command(off, "/compress")
    assert result.failed
    assert "disabled" in result.text


async def test_context_shows_the_window_by_kind(agents: Agents) -> None:
    script: list[Any] = [
        call_reply(("dump", {"what": "x" * 400})),
        "Seen.",
        *["Noted."] * 20,
    ]
    agent = await agents.open(
        ScriptedModel(script, window=16_000),
        tools=[text_tool("dump", make_text(2_000))],
        config=SMALL,
    )
    await agent.send("Dump.")
    result = await run_command(agent, "/context")
    kinds = result.data["kinds"]
    assert abs(sum(kinds.values()) - agent.conversation.tokens) < 10
    assert kinds["tool results"] > kinds["tool calls"] > 0
    assert kinds["system prompt"] > 200
    assert kinds["summary"] == 0
    assert f"tool results{kinds['tool results']:>12,}  " in result.text
    await send_texts(agent, 8, 1_000, "row")
    assert (await run_command(agent, "/context")).data["kinds"]["summary"] > 0
