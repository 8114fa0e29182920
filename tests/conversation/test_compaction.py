"""When the context is rewritten, by whom, and which events are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import Services
from everthread.compaction.summarizers.chain import SummarizerChain
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.conversation.conversation import Conversation
from everthread.conversation.summary_note import find_note
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import ModelReply
from everthread.errors import ConfigError
from everthread.testing import ScriptedModel
from everthread.thread.engines.summary_wait import MAX_SUMMARY_WAIT_SECONDS
from everthread.thread.events import (
    CompactionStarted,
    Notice,
    UsageRecorded,
)
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import (
    SYSTEM,
    Conversations,
    make_text,
    numbered_text,
    route_to_model,
    tool_result,
)
from tests.conversation.manual_timers import ManualTimers


async def open_filled(
    conversations: Conversations,
    tokens: int,
    *,
    window: int = 16_000,
    script: Callable[[Any], str | ModelReply] = lambda _: make_text(200, "answer"),
    **options: Any,
) -> Conversation:
    """Open a conversation with about this many tokens of context, in turns of five hundred."""
    model = ScriptedModel(script, window=window)
    conversation = await conversations.open(model, **options)
    turn = 0
    while conversation.tokens < tokens:
        turn += 1
        await conversation.send(numbered_text(turn, 250, "topic"))
    return conversation


class HeldSummarizer:
    """A summariser that waits until the test releases it."""

    name = "slow"

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.started = asyncio.Event()
        self.asked = 0

    async def summarize(self, _request: SummaryRequest) -> SummaryDraft:
        self.asked += 1
        self.started.set()
        await self.released.wait()
        usage = (
            {
                "model": "gpt-4o-mini",
                "prompt_tokens": 900,
                "completion_tokens": 90,
            },
        )
        return SummaryDraft({"Goal": "Keep the books."}, self.name, usage=usage)


async def test_the_threshold_triggers_a_compaction_and_the_thread_continues(
    conversations: Conversations,
) -> None:
    conversation = await open_filled(conversations, 7_500)
    first = conversation.session.id
    while not conversations.compactions:
        await conversation.send(make_text(250))
    assert conversation.id == first
    assert conversation.session.parent == first
    (record,) = await conversations.store.list_compactions(conversation.id)
    assert record.record.author == "journal"
    assert record.record.covered
    assert (await conversations.store.load_session(first)).end_reason == "compression"
    assert find_note(conversation.session.system)
    kinds = [item.kind for item in await conversations.store.list_messages(conversation.session.id)]
    assert kinds.count("summary") == 1


async def test_a_slow_summary_does_not_delay_a_turn_that_fits(
    conversations: Conversations,
) -> None:
    slow = HeldSummarizer()
    conversation = await open_filled(conversations, 8_500, summarizer=slow)
    assert slow.asked == 1, "it was begun at 80 % of the threshold"
    assert conversations.events(CompactionStarted)[0].is_background
    assert not conversations.compactions
    slow.released.set()
    await asyncio.sleep(0)
    await conversation.send("One more thing: keep the ledger.")
    (done,) = conversations.compactions
    assert done.author == "slow, journal", "the journal covers what was said since"
    assert done.tokens_after <= 0.6 * 8_000
    assert slow.asked == 1
    assert str(conversation.messages[-2]["content"]).startswith("One more thing")
    assert [item for item in conversations.events(UsageRecorded) if item.task == "auxiliary"]


async def test_a_turn_that_does_not_fit_waits_for_the_summary(
    conversations: Conversations,
) -> None:
    slow = HeldSummarizer()
    conversation = await open_filled(conversations, 7_000, summarizer=slow)
    turn = asyncio.create_task(conversation.send(make_text(9_000)))
    await asyncio.sleep(0.6)
    assert not turn.done()
    slow.released.set()
    await turn
    assert conversations.compactions
    assert conversation.tokens < 16_000


@pytest.mark.parametrize("background", [True, False])
async def test_a_summariser_that_never_answers_blocks_no_turn(
    conversations: Conversations, *, background: bool
) -> None:
    hanging = HeldSummarizer()
    timers = ManualTimers()
    chain = SummarizerChain([hanging], clock=lambda: 0.0)
    model = ScriptedModel(lambda _: make_text(200, "answer"), window=16_000)
    conversation = await conversations.open(
        model,
        summarizer=chain,
        background=background,
        changes={"timer": timers},
    )
    while conversation.tokens < 7_000:
        await conversation.send(make_text(250, f"topic {conversation.tokens}"))
    turn = asyncio.create_task(conversation.send(make_text(9_000)))
    await hanging.started.wait()
    while not turn.done():
        timers.end_all(MAX_SUMMARY_WAIT_SECONDS)
        await asyncio.sleep(0.01)
    await turn
    (done,) = conversations.compactions
    assert done.author == "journal"
    assert any("slow wrote no summary: it took too long" in line for line in done.warnings)
    assert hanging.asked == 1
    while len(conversations.compactions) < 2:
        await conversation.send(make_text(250))
    assert hanging.asked == 1, "it rests"


async def test_a_prepared_summary_is_discarded_if_its_messages_changed(
    conversations: Conversations,
) -> None:
    slow = HeldSummarizer()
    slow.released.set()
    conversation = await open_filled(conversations, 7_000, summarizer=slow)
    while not conversations.compactions:
        await conversation.send(make_text(250))
    slow.released.clear()
    while slow.asked < 2:
        await conversation.send(make_text(250))
    undone = asyncio.create_task(conversation.undo())
    await undone
    assert len(await conversations.store.load_history(conversation.id)) == len(
        conversation.messages
    )
    slow.released.set()
    await conversation.send("Go on.")
    assert conversation.messages[-2]["content"] == "Go on."


async def test_a_larger_history_than_the_new_model_takes_is_compacted_before_the_call(
    conversations: Conversations,
) -> None:
    conversation = await open_filled(conversations, 20_000, window=64_000)
    small = ScriptedModel(["fine"], name="gpt-4o-mini", window=8_000)
    await conversation.use_model(route_to_model(small))
    await conversation.send("Go on, please.")
    assert conversations.compactions[0].reason == "preflight"
    assert conversation.tokens < 4_000
    assert str(small.requests[0].messages[-1]["content"]) == "Go on, please."


async def test_compacts_by_the_reported_tokens(
    conversations: Conversations,
) -> None:
    def heavy(_request: Any) -> ModelReply:
        usage = {
            "prompt_tokens": 9_000,
            "completion_tokens": 5,
        }
        return ModelReply(
            {
                "role": "assistant",
                "content": "ok",
            },
            "stop",
            usage=usage,
        )

    model = ScriptedModel(heavy, window=16_000)
    conversation = await conversations.open(model)
    for turn in range(30):
        await conversation.send(f"{turn} {make_text(60)}")
        if conversations.compactions:
            break
    estimate = conversation.threshold // 2
    assert turn * 60 < estimate, "by our own count the prompt is far below the threshold"
    assert conversations.compactions[0].tokens_before >= 9_000


async def test_compresses_with_a_focus_and_undoes_it(conversations: Conversations) -> None:
    conversation = await open_filled(conversations, 5_000)
    before = conversation.messages
    preview = await conversation.preview("topic 3")
    assert preview.reason == "preview"
    assert conversation.messages == before
    compaction = await conversation.compress("topic 3")
    assert compaction.changed
    assert compaction.tokens_after < compaction.tokens_before
    assert conversations.compactions[0].reason == "manual"
    (record,) = await conversations.store.list_compactions(conversation.id)
    assert record.record.focus == "topic 3"
    await conversation.undo()
    assert conversation.messages == before
    assert (await conversation.send("still here?")).text


async def test_disabled_compression_changes_nothing(conversations: Conversations) -> None:
    conversation = await open_filled(conversations, 9_500, enabled=False)
    assert not conversations.events(CompactionStarted)
    with pytest.raises(ConfigError, match="disabled"):
        await conversation.compress()
    await conversation.compact_before_incoming()
    assert not conversations.events(CompactionStarted)


async def test_compact_before_incoming_compacts_at_85_percent(
    conversations: Conversations,
) -> None:
    conversation = await open_filled(conversations, 13_800, threshold=1.0, background=False)
    assert not conversations.compactions
    await conversation.compact_before_incoming()
    (done,) = conversations.compactions
    assert done.reason == "hygiene"


async def test_notifies_once_about_a_pause(
    conversations: Conversations,
) -> None:
    size = 9_000

    def stubborn(_request: Any) -> ModelReply:
        usage = {
            "prompt_tokens": size,
            "completion_tokens": 5,
        }
        return ModelReply(
            {
                "role": "assistant",
                "content": make_text(100),
            },
            "stop",
            usage=usage,
        )

    conversation = await conversations.open(
        ScriptedModel(stubborn, window=16_000), background=False
    )
    for index in range(30):
        await conversation.send(f"{index} {make_text(150)}")
    paused = [item for item in conversations.events(Notice) if "paused" in item.text]
    assert len(paused) == 1
    assert len(conversations.compactions) <= 3


async def test_manual_compactions_never_cause_a_pause(
    conversations: Conversations,
) -> None:
    def stubborn(_request: Any) -> ModelReply:
        usage = {
            "prompt_tokens": 7_000,
            "completion_tokens": 5,
        }
        return ModelReply(
            {
                "role": "assistant",
                "content": make_text(100),
            },
            "stop",
            usage=usage,
        )

    conversation = await conversations.open(
        ScriptedModel(stubborn, window=16_000), background=False
    )
    for _ in range(3):
        for _ in range(6):
            await conversation.send(make_text(300))
        await conversation.compress()
    await conversation.send("and now?")
    assert len(conversations.compactions) == 3
    assert not [item for item in conversations.events(Notice) if "paused" in item.text]


async def test_from_the_second_compaction_on_a_notice_warns_of_lost_detail(
    conversations: Conversations,
) -> None:
    conversation = await open_filled(conversations, 5_000)
    await conversation.compress()
    assert not conversations.events(Notice)
    await conversation.send(make_text(1_000))
    await conversation.send(make_text(1_000))
    await conversation.compress()
    (notice,) = conversations.events(Notice)
    assert "2 times" in notice.text
    assert "/new" in notice.text


async def test_warns_once_about_tools_that_fill_the_window(
    conversations: Conversations,
) -> None:
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"t{index}",
                "description": make_text(400, f"tool {index}"),
            },
        }
        for index in range(12)
    ]
    conversation = await conversations.open(
        ScriptedModel(lambda _: "ok", window=8_000), tools=tools
    )
    for index in range(4):
        await conversation.send(f"step {index} {make_text(100)}")
    (notice,) = conversations.events(Notice)
    assert "tools alone" in notice.text
    assert "%" in notice.text
    assert not conversations.events(CompactionStarted)


async def test_the_engine_hooks_are_called_as_documented(
    conversations: Conversations,
) -> None:
    calls: list[str] = []

    class RecordingEngine(ContextCompressor):
        def __init__(self, services: Services) -> None:
            super().__init__(services)
            calls.append("made")

        def on_session_start(
            self, session_id: str, *, reason: Any = "new", previous: str | None = None
        ) -> None:
            calls.append(f"start {reason}")
            super().on_session_start(session_id, reason=reason, previous=previous)

        def update_from_response(self, usage: CanonicalUsage) -> None:
            calls.append("response")
            super().update_from_response(usage)

        def on_compacted(self, compaction: Any) -> None:
            calls.append("compacted")
            super().on_compacted(compaction)

        def on_session_end(self, session_id: str) -> None:
            calls.append("end")
            super().on_session_end(session_id)

    conversation = await conversations.open(
        ScriptedModel(lambda _: make_text(300), window=16_000), engine=RecordingEngine
    )
    for _ in range(4):
        await conversation.send(make_text(800))
    await conversation.compress()
    await conversation.close()
    await conversation.close("done")
    assert calls == [
        "made",
        "start new",
        *["response"] * 4,
        "compacted",
        "start compression",
        "end",
    ]


async def test_the_system_prompt_is_rebuilt_only_at_the_start_of_a_session(
    conversations: Conversations,
) -> None:
    written: list[int] = []

    def system() -> str:
        written.append(1)
        return f"{SYSTEM} Written {len(written)} times."

    conversation = await open_filled(conversations, 5_000, system=system)
    assert len(written) == 1
    await conversation.compress()
    assert len(written) == 2
    await conversation.send("Go on.")
    again = await conversations.open(
        ScriptedModel(["ok"], window=16_000), resume=conversation.id, system=system
    )
    await again.send("And on.")
    assert len(written) == 2
    assert find_note(again.session.system)


async def test_keeps_a_message_of_another_process_during_a_compaction(
    conversations: Conversations,
) -> None:
    slow = HeldSummarizer()
    conversation = await open_filled(conversations, 5_000, summarizer=slow)
    other = await conversations.open(ScriptedModel(["b"], window=16_000), resume=conversation.id)
    compaction = asyncio.create_task(conversation.compress())
    await slow.started.wait()
    await other.send("meanwhile")
    slow.released.set()
    await compaction
    texts = [str(item["content"]) for item in conversation.messages]
    assert texts.count("meanwhile") == 1
    assert texts[-2:] == ["meanwhile", "b"]
    stored_texts = [
        str(item.body["content"])
        for item in await conversations.store.load_history(conversation.id)
    ]
    assert stored_texts.count("meanwhile") == 1


async def test_open_calls_are_never_touched(conversations: Conversations) -> None:
    conversation = await open_filled(conversations, 5_000)
    model = ScriptedModel([call_reply(("ls", "{}")), "done"], window=16_000)
    await conversation.use_model(route_to_model(model))
    await conversation.send("List the files.")
    await conversation.compress()
    assert conversation.messages[-1].get("tool_calls")
    await conversation.add_results([tool_result("a.py")])
    assert (await conversation.send()).text == "done"


async def test_sends_a_large_message_whole_and_compacts_once(
    conversations: Conversations,
) -> None:
    """It fits the window and not the threshold: the model reads all of it, and nothing is compacted in vain."""
    conversation = await open_filled(conversations, 5_000)
    model = ScriptedModel(lambda _: "noted", window=16_000)
    await conversation.use_model(route_to_model(model))
    large = make_text(7_000, "clause")
    await conversation.send(large)
    assert large in [message["content"] for message in model.requests[-1].messages]
    (done,) = conversations.compactions
    assert done.tokens_after > conversation.threshold
    await conversation.send("And?")
    assert len(conversations.compactions) == 1, "the history has not grown by a tenth"


async def test_compacts_at_85_percent_if_the_system_prompt_reaches_the_threshold(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: make_text(150), window=16_000)
    conversation = await conversations.open(
        model,
        system=f"{SYSTEM} {make_text(6_500)}",
        protect_last_n=2,
        background=False,
    )
    for turn in range(30):
        await conversation.send(f"Turn {turn}: {make_text(150)}")
    assert conversations.compactions, "the history is compacted at 85 % of the window"
    notices = [
        notice.text
        for notice in conversations.events(Notice)
        if "System prompt and tools" in notice.text
    ]
    assert len(notices) == 1
    assert "85 %" in notices[0]
