"""Small promises of a conversation, each found broken once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from everthread import open_conversation, validate_messages
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.summarizers.summarizer import SummaryDraft
from everthread.config import parse_config
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from everthread.thread.events import CompactionDone, Notice
from tests.conversation.conversation_setup import (
    SYSTEM,
    ConversationSetup,
    make_text,
)


async def test_a_branch_with_a_title_keeps_everything_else(
    setup: ConversationSetup,
) -> None:
    new = NewSession(platform="cli", user="ada")
    conversation = await setup.open(ScriptedModel(["one", "two"]), new=new)
    await conversation.send("First question")
    branch = await conversation.branch(title="Another way")
    kept = branch.session
    assert (kept.title, kept.system, kept.platform, kept.user) == (
        "Another way",
        SYSTEM,
        "cli",
        "ada",
    )
    assert kept.model == conversation.session.model
    assert kept.kind == "branch"


async def test_one_message_that_is_too_large_is_made_smaller_before_it_is_sent(
    setup: ConversationSetup,
) -> None:
    model = ScriptedModel(["fine"], window=8_000)
    conversation = await setup.open(model)
    await conversation.send(f"Read this: {make_text(9_000)} What does it say?")
    assert len(model.requests) == 1, "it is not refused first"
    assert setup.watch.of(CompactionDone)
    sent = model.requests[0].messages
    assert validate_messages(sent) == []
    assert any("What does it say?" in str(message["content"]) for message in sent)


async def test_system_and_tools_over_the_threshold_do_not_switch_compaction_off(
    setup: ConversationSetup,
) -> None:
    model = ScriptedModel(lambda _: make_text(150), window=16_000)
    conversation = await setup.open(
        model,
        system=f"{SYSTEM} {make_text(6_500)}",
        protect_last_n=2,
        background=False,
    )
    for turn in range(30):
        await conversation.send(f"Turn {turn}: {make_text(150)}")
    assert setup.watch.of(CompactionDone), (
        "the history is compacted at 85 % of the window"
    )
    told = [
        notice.text
        for notice in setup.watch.of(Notice)
        if "System prompt and tools" in notice.text
    ]
    assert len(told) == 1
    assert "85 %" in told[0]


class Broken:
    name = "broken"

    async def summarize(self, _request: Any) -> SummaryDraft:
        raise ValueError("no summary today")


async def test_a_failing_custom_summariser_falls_back_to_the_journal(
    tmp_path: Path,
) -> None:
    model = ScriptedModel(lambda _: make_text(200), window=8_000)
    config = parse_config("compression: {background: false, protect_last_n: 2}")
    done: list[CompactionDone] = []

    def hear(event: Any) -> None:
        if isinstance(event, CompactionDone):
            done.append(event)

    conversation = await open_conversation(
        model,
        config=config,
        store=tmp_path / "s.db",
        summarizer=Broken(),
        listener=hear,
    )
    for turn in range(16):
        await conversation.send(f"Turn {turn}: {make_text(200)}")
    await conversation.close()
    assert done
    assert any("no summary today" in warning for warning in done[0].warnings)


async def test_an_engine_is_notified_when_its_conversation_ends(
    setup: ConversationSetup,
) -> None:
    ended: list[str] = []

    class Told(ContextCompressor):
        def on_session_end(self, session_id: str) -> None:
            ended.append(session_id)

    conversation = await setup.open(ScriptedModel(["one"]), engine=Told)
    await conversation.send("Hello")
    await conversation.close()
    await conversation.close("done")
    assert ended == [conversation.session.id]
