"""Compacting when it pays: with a cold cache, between turns, reported in one line."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.conversation.conversation import Conversation
from everthread.core.messages import text_of
from everthread.core.types import ModelReply, ModelRequest
from everthread.testing import ScriptedModel, SteppedClock
from everthread.thread.events import Planned
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import (
    Conversations,
    make_text,
    numbered_text,
    route_to_model,
    tool_result,
)
from tests.conversation.manual_timers import ManualTimers

WINDOW = 16_000
TTL = 300.0


def answer_or_look(request: ModelRequest) -> str | ModelReply:
    """Call a tool if the user asks to look, else answer."""
    is_asked = text_of(request.messages[-1]) == "Look."
    return call_reply(("look", "{}")) if is_asked else make_text(200, "answer")


class CachingClaude(ScriptedModel):
    """A Claude whose cache holds the last request for five minutes."""

    def __init__(self, wall: SteppedClock) -> None:
        super().__init__(
            answer_or_look,
            name="claude-sonnet-4-5",
            window=WINDOW,
            api="anthropic",
        )
        self._wall = wall
        self._at = float("-inf")
        self._prompt = 0

    async def complete(self, request: Any) -> ModelReply:
        reply = await super().complete(request)
        assert reply.usage is not None
        prompt = int(reply.usage["input_tokens"])
        read = min(self._prompt, prompt) if self._wall() - self._at < TTL else 0
        self._at = self._wall()
        self._prompt = prompt
        used = {
            "input_tokens": 0,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": prompt - read,
        }
        return replace(reply, usage=reply.usage | used)


class CheapSummarizer:
    """A summariser with a price, and a delay."""

    name = "priced"

    def __init__(self) -> None:
        self.asked = 0
        self.done = asyncio.Event()

    def quote_price(self, tokens: int, budget: int) -> float | None:
        return 1e-7 * (tokens + budget)

    async def summarize(self, _request: SummaryRequest) -> SummaryDraft:
        self.asked += 1
        self.done.set()
        return SummaryDraft({"Goal": "Keep the books."}, self.name)


@pytest.fixture
def wall() -> SteppedClock:
    return SteppedClock(1.7e9)


async def open_with_cache(
    conversations: Conversations,
    wall: SteppedClock,
    timers: ManualTimers | None = None,
    model: CachingClaude | None = None,
    **settings: Any,
) -> Conversation:
    changes = {
        "wall_clock": wall,
        "timer": timers or ManualTimers(),
    }
    return await conversations.open(
        model or CachingClaude(wall),
        provider="anthropic",
        changes=changes,
        **settings,
    )


async def fill(conversation: Conversation, wall: SteppedClock, tokens: int) -> None:
    turn = 0
    while conversation.tokens < tokens:
        turn += 1
        wall.advance(20)
        await conversation.send(numbered_text(turn, 250, "topic"))


async def test_after_a_pause_the_history_is_compacted_below_the_threshold(
    conversations: Conversations,
    wall: SteppedClock,
) -> None:
    conversation = await open_with_cache(conversations, wall)
    await fill(conversation, wall, 6_000)
    wall.advance(TTL - 20)
    await conversation.send("Still there?")
    assert not conversations.compactions, "the cache is warm"
    wall.advance(TTL + 1)
    await conversation.send("Back again.")
    (done,) = conversations.compactions
    assert done.reason == "cold-cache"
    assert done.tokens_before < conversation.threshold
    assert "the cache is cold: 301 s passed" in done.decision
    (record,) = await conversations.store.list_compactions(conversation.id)
    assert record.record.figures["decision"] == done.decision
    (plan,) = conversations.events(Planned)
    assert plan.timing == "now"
    assert f"{plan.timing}: {plan.reason}" == done.decision
    assert plan.savings > plan.cost


async def test_a_model_summary_is_prepared_before_the_cache_expires(
    conversations: Conversations,
    wall: SteppedClock,
) -> None:
    timers = ManualTimers()
    writer = CheapSummarizer()
    conversation = await open_with_cache(conversations, wall, timers, summarizer=writer)
    await fill(conversation, wall, 6_000)
    assert timers.list_seconds() == [0.8 * TTL]
    wall.advance(2 * TTL)
    await conversation.send("Back already.")
    assert writer.asked == 0, "a cold cache is no reason to wait for a model"
    wall.advance(0.8 * TTL)
    timers.end_all()
    await asyncio.wait_for(writer.done.wait(), 60)
    async with asyncio.timeout(60):
        while not conversations.compactions:  # until the summary is ready
            wall.advance(TTL)
            await conversation.send("And again.")
    (done,) = conversations.compactions
    assert done.reason == "cold-cache"
    assert done.author == "priced"
    await conversation.close()
    assert not timers.waiting


async def test_another_process_knows_when_the_last_call_was(
    conversations: Conversations, wall: SteppedClock
) -> None:
    first = await open_with_cache(conversations, wall)
    await fill(first, wall, 6_000)
    wall.advance(TTL + 5)
    second = await open_with_cache(conversations, wall, resume=first.id)
    await second.send("Good morning.")
    (done,) = conversations.compactions
    assert "305 s passed" in done.decision


async def test_waits_for_the_end_of_a_turn(
    conversations: Conversations,
    wall: SteppedClock,
) -> None:
    conversation = await open_with_cache(conversations, wall)
    await fill(conversation, wall, 7_000)
    await conversation.send("Look.")
    await conversation.add_results([tool_result(make_text(1_000, "page"))])
    await conversation.send()
    assert conversation.tokens > conversation.threshold
    (plan,) = conversations.events(Planned)
    assert plan.timing == "later"
    assert "end of the turn" in plan.reason
    assert not conversations.compactions
    await conversation.send("And now?")
    assert len(conversations.compactions) == 1


async def test_other_tools_make_the_cache_cold(
    conversations: Conversations, wall: SteppedClock
) -> None:
    conversation = await open_with_cache(conversations, wall)
    await fill(conversation, wall, 6_000)
    tool = {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {},
        },
    }
    conversation.use_tools([tool])
    await conversation.send("Look.")
    (done,) = conversations.compactions
    assert "other tools are offered" in done.decision


async def test_starts_no_idle_timer_while_calls_are_open(
    conversations: Conversations,
    wall: SteppedClock,
) -> None:
    timers = ManualTimers()
    conversation = await open_with_cache(conversations, wall, timers)
    await fill(conversation, wall, 6_000)
    model = ScriptedModel(
        [call_reply(("look", "{}")), "Done."], name="claude-sonnet-4-5", window=WINDOW
    )
    await conversation.use_model(route_to_model(model, "anthropic"))
    await conversation.send("Look.")
    assert not timers.waiting
    await conversation.add_results([tool_result("nothing")])
    await conversation.send()
    assert len(timers.waiting) == 1


async def test_an_idle_conversation_is_compacted_before_its_cache_expires(
    conversations: Conversations,
    wall: SteppedClock,
) -> None:
    timers = ManualTimers()
    conversation = await open_with_cache(
        conversations, wall, timers, compact_when_idle=True, background=False
    )
    await fill(conversation, wall, 6_000)
    before = conversation.tokens
    assert timers.list_seconds() == [0.8 * TTL]
    timers.end_all()
    await conversation.wait_for_idle_compaction()
    (done,) = conversations.compactions
    assert done.reason == "idle"
    assert conversation.tokens < before < conversation.threshold
    await conversation.undo()
    assert conversation.tokens >= before, "it is undone like any other"


async def test_a_message_that_comes_first_cancels_the_idle_compaction(
    conversations: Conversations,
    wall: SteppedClock,
) -> None:
    timers = ManualTimers()
    conversation = await open_with_cache(
        conversations, wall, timers, compact_when_idle=True, background=False
    )
    await fill(conversation, wall, 6_000)
    timers.end_all()
    await conversation.send("I am back.")
    assert not conversations.compactions
    texts = [message["content"] for message in conversation.messages]
    assert "I am back." in str(texts[-2])


async def test_a_short_conversation_sets_no_idle_timer(
    conversations: Conversations,
) -> None:
    timers = ManualTimers()
    conversation = await open_with_cache(
        conversations, SteppedClock(1.7e9), timers, compact_when_idle=True
    )
    await conversation.send("Hello.")
    assert not timers.waiting


class DiagnosingClaude(CachingClaude):
    """A Claude that explains a cache miss if it is asked."""

    def __init__(self, wall: SteppedClock) -> None:
        super().__init__(wall)
        self.asked: list[Any] = []

    async def complete(self, request: Any) -> ModelReply:
        reply = await super().complete(request)
        self.asked.append(request.params.get("diagnostics"))
        reason = {
            "type": "tools_changed",
            "cache_missed_input_tokens": 9,
        }
        raw = {"diagnostics": {"cache_miss_reason": reason}}
        return replace(reply, id=f"msg_{len(self.asked)}", raw=raw)


async def test_a_conversation_asks_why_the_cache_missed(
    conversations: Conversations, wall: SteppedClock
) -> None:
    model = DiagnosingClaude(wall)
    route = replace(route_to_model(model, "anthropic"), base_url="", provider="anthropic")
    conversation = await conversations.open(model, changes={"route": route})
    for text in ("One.", "Two."):
        await conversation.send(text)
    assert model.asked == [
        {"previous_message_id": None},
        {"previous_message_id": "msg_1"},
    ]
    reasons = [call.usage.cache_miss for call in await conversation.usage()]
    assert reasons == ["tools changed", "tools changed"], "they are stored"
