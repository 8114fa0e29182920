"""Compacting when it pays: with a cold cache, between turns, reported in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.conversation.conversation import Conversation
from everthread.core.messages import text_of
from everthread.core.types import Reply, Request
from everthread.testing import ScriptedModel, SteppedClock
from everthread.thread.engines.summary_wait import Timer
from everthread.thread.events import CompactionDone, Planned
from tests.conversation.conversation_setup import (
    ConversationSetup,
    call_reply,
    make_text,
    numbered_text,
    open_setup,
    route_to_model,
    tool_result,
)

WINDOW = 16_000
TTL = 300.0


def answer_or_look(request: Request) -> str | Reply:
    """Call a tool if the user asks to look, else answer."""
    is_asked = text_of(request.messages[-1]) == "Look."
    return call_reply("look", "{}") if is_asked else make_text(200, "answer")


class CachingClaude(ScriptedModel):
    """A Claude whose cache holds the last request for five minutes."""

    def __init__(self, wall: SteppedClock) -> None:
        super().__init__(
            answer_or_look,
            name="claude-sonnet-4-5",
            window=WINDOW,
            api="anthropic",
        )
        self._wall, self._at, self._prompt = wall, float("-inf"), 0

    async def complete(self, request: Any) -> Reply:
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


class PricedSummarizer:
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


class ManualTimer:
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, seconds: float, then: Callable[[], None]) -> Timer:
        entry = (seconds, then)
        self.set.append(entry)
        return _Entry(self, entry)

    def ring(self) -> None:
        rung = self.set
        self.set = []
        for _, then in rung:
            then()


class _Entry:
    def __init__(
        self, alarm: ManualTimer, entry: tuple[float, Callable[[], None]]
    ) -> None:
        self._alarm = alarm
        self._entry = entry

    def cancel(self) -> None:
        self._alarm.set = [
            entry for entry in self._alarm.set if entry is not self._entry
        ]


@pytest.fixture
def wall() -> SteppedClock:
    return SteppedClock(1.7e9)


async def open_with_cache(
    place: ConversationSetup,
    wall: SteppedClock,
    alarm: ManualTimer | None = None,
    **more: Any,
) -> Conversation:
    model = CachingClaude(wall)
    setup = place.setup(model, provider="anthropic", **more)
    setup = replace(
        setup,
        route=route_to_model(model, "anthropic"),
        wall_clock=wall,
        timer=alarm or ManualTimer(),
    )
    return await Conversation.open(setup)


async def fill(conversation: Conversation, wall: SteppedClock, tokens: int) -> None:
    turn = 0
    while conversation.tokens < tokens:
        turn += 1
        wall.advance(20)
        await conversation.send(numbered_text(turn, 250, "topic"))


async def test_after_a_pause_the_history_is_compacted_below_the_threshold(
    setup: ConversationSetup,
    wall: SteppedClock,
) -> None:
    conversation = await open_with_cache(setup, wall)
    await fill(conversation, wall, 6_000)
    wall.advance(TTL - 20)
    await conversation.send("Still there?")
    assert not setup.watch.of(CompactionDone), "the cache is warm"
    wall.advance(TTL + 1)
    await conversation.send("Back again.")
    (done,) = setup.watch.of(CompactionDone)
    assert done.reason == "cold-cache"
    assert done.tokens_before < conversation.threshold
    assert "the cache is cold: 301 s passed" in done.decision
    (record,) = await setup.store.compactions(conversation.id)
    assert record.record.figures["decision"] == done.decision
    (plan,) = setup.watch.of(Planned)
    assert (plan.action, f"{plan.action}: {plan.why}") == ("now", done.decision)
    assert plan.saves > plan.cost


async def test_economics_can_be_switched_off(
    setup: ConversationSetup, wall: SteppedClock
) -> None:
    conversation = await open_with_cache(setup, wall, economics=False)
    await fill(conversation, wall, 6_000)
    wall.advance(2 * TTL)
    await conversation.send("Back again.")
    assert not setup.watch.of(CompactionDone)
    assert not setup.watch.of(Planned)


async def test_a_model_summary_is_prepared_before_the_cache_expires(
    setup: ConversationSetup,
    wall: SteppedClock,
) -> None:
    alarm = ManualTimer()
    writer = PricedSummarizer()
    conversation = await open_with_cache(setup, wall, alarm, summarizer=writer)
    await fill(conversation, wall, 6_000)
    ((seconds, _),) = alarm.set
    assert seconds == 0.8 * TTL
    wall.advance(2 * TTL)
    await conversation.send("Back already.")
    assert writer.asked == 0, "nobody waits for a model because the cache is cold"
    wall.advance(0.8 * TTL)
    alarm.ring()
    await asyncio.wait_for(writer.done.wait(), 60)
    async with asyncio.timeout(60):
        while not setup.watch.of(CompactionDone):  # until the summary is ready
            wall.advance(TTL)
            await conversation.send("And again.")
    (done,) = setup.watch.of(CompactionDone)
    assert (done.reason, done.author) == ("cold-cache", "priced")
    await conversation.close()
    assert not alarm.set


async def test_another_process_knows_the_rhythm(
    tmp_path: Path, wall: SteppedClock
) -> None:
    async with open_setup(tmp_path) as place:
        first = await open_with_cache(place, wall)
        await fill(first, wall, 6_000)
        model = CachingClaude(wall)
        setup = replace(
            place.setup(model, provider="anthropic"),
            wall_clock=wall,
            timer=ManualTimer(),
        )
        wall.advance(TTL + 5)
        second = await Conversation.open(setup, resume=first.id)
        await second.send("Good morning.")
        (done,) = place.watch.of(CompactionDone)
        assert "305 s passed" in done.decision


async def test_during_a_turn_it_waits_for_the_end_of_the_turn(
    setup: ConversationSetup,
    wall: SteppedClock,
) -> None:
    conversation = await open_with_cache(setup, wall)
    await fill(conversation, wall, 7_000)
    await conversation.send("Look.")
    await conversation.add_results([tool_result(make_text(1_000, "page"))])
    await conversation.send()
    assert conversation.tokens > conversation.threshold
    (plan,) = setup.watch.of(Planned)
    assert plan.action == "later"
    assert "end of the turn" in plan.why
    assert not setup.watch.of(CompactionDone)
    await conversation.send("And now?")
    assert len(setup.watch.of(CompactionDone)) == 1


async def test_other_tools_make_the_cache_cold(
    setup: ConversationSetup, wall: SteppedClock
) -> None:
    conversation = await open_with_cache(setup, wall)
    await fill(conversation, wall, 6_000)
    tool = {
        "type": "function",
        "function": {"name": "look", "description": "Look.", "parameters": {}},
    }
    conversation.use_tools([tool])
    await conversation.send("Look.")
    (done,) = setup.watch.of(CompactionDone)
    assert "other tools are offered" in done.decision


async def test_a_turn_with_calls_under_way_sets_no_alarm(
    setup: ConversationSetup,
    wall: SteppedClock,
) -> None:
    alarm = ManualTimer()
    conversation = await open_with_cache(setup, wall, alarm)
    await fill(conversation, wall, 6_000)
    model = ScriptedModel(
        [call_reply("look", "{}"), "Done."], name="claude-sonnet-4-5", window=WINDOW
    )
    await conversation.use_model(route_to_model(model, "anthropic"))
    await conversation.send("Look.")
    assert not alarm.set
    await conversation.add_results([tool_result("nothing")])
    await conversation.send()
    assert len(alarm.set) == 1


async def test_an_idle_conversation_is_compacted_before_its_cache_expires(
    setup: ConversationSetup,
    wall: SteppedClock,
) -> None:
    alarm = ManualTimer()
    conversation = await open_with_cache(
        setup, wall, alarm, idle=True, background=False
    )
    await fill(conversation, wall, 6_000)
    before = conversation.tokens
    ((seconds, _),) = alarm.set
    assert seconds == 0.8 * TTL
    alarm.ring()
    await conversation.wait_for_idle_compaction()
    (done,) = setup.watch.of(CompactionDone)
    assert done.reason == "idle"
    assert conversation.tokens < before < conversation.threshold
    await conversation.undo()
    assert conversation.tokens >= before, "it is undone like any other"


async def test_a_message_that_comes_first_cancels_the_idle_compaction(
    setup: ConversationSetup,
    wall: SteppedClock,
) -> None:
    alarm = ManualTimer()
    conversation = await open_with_cache(
        setup, wall, alarm, idle=True, background=False
    )
    await fill(conversation, wall, 6_000)
    alarm.ring()
    await conversation.send("I am back.")
    assert not setup.watch.of(CompactionDone)
    said = [message["content"] for message in conversation.messages]
    assert "I am back." in str(said[-2])


async def test_a_short_conversation_sets_no_idle_timer(
    setup: ConversationSetup,
) -> None:
    alarm = ManualTimer()
    conversation = await open_with_cache(setup, SteppedClock(1.7e9), alarm, idle=True)
    await conversation.send("Hello.")
    assert not alarm.set


class DiagnosingClaude(CachingClaude):
    """A Claude that explains a cache miss if it is asked."""

    def __init__(self, wall: SteppedClock) -> None:
        super().__init__(wall)
        self.asked: list[Any] = []

    async def complete(self, request: Any) -> Reply:
        reply = await super().complete(request)
        self.asked.append(request.params.get("diagnostics"))
        reason = {"type": "tools_changed", "cache_missed_input_tokens": 9}
        raw = {"diagnostics": {"cache_miss_reason": reason}}
        return replace(reply, id=f"msg_{len(self.asked)}", raw=raw)


async def test_a_conversation_asks_why_the_cache_missed(
    tmp_path: Path, wall: SteppedClock
) -> None:
    async with open_setup(tmp_path) as place:
        model = DiagnosingClaude(wall)
        setup = place.setup(model, provider="anthropic")
        official = replace(
            route_to_model(model, "anthropic"), base_url="", provider="anthropic"
        )
        conversation = await Conversation.open(
            replace(setup, route=official, wall_clock=wall, timer=ManualTimer())
        )
        for text in ("One.", "Two."):
            await conversation.send(text)
        assert model.asked == [
            {"previous_message_id": None},
            {"previous_message_id": "msg_1"},
        ]
        reasons = [call.usage.cache_miss for call in await conversation.usage()]
        assert reasons == ["tools changed", "tools changed"], "they are stored"
