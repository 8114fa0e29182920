"""A compaction runs in a thread: the event loop stays free, and a cancelled compaction changes nothing."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from everthread import validate_messages
from everthread.compaction.compaction_result import Compaction
from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.conversation.conversation import Conversation
from everthread.testing import ScriptedModel
from tests.conversation.conversation_setup import (
    Conversations,
    make_text,
    send_texts,
)

LONGEST = 60.0
"""Seconds until a test that would hang fails."""


class HoldPoint:
    """A point at which an engine waits, in any thread, until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.threads: list[int] = []

    def engine(self) -> Any:
        hold_point = self

        class Stopped(ContextCompressor):
            async def compress(self, *given: Any, **how: Any) -> Compaction:
                hold_point.threads.append(threading.get_ident())
                hold_point.reached.set()
                assert hold_point.opened.wait(LONGEST), (
                    "the loop does not go on while an engine works"
                )
                return await super().compress(*given, **how)

        return Stopped


async def open_full(conversations: Conversations, engine: Any, **settings: Any) -> Conversation:
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=64_000)
    conversation = await conversations.open(
        model,
        engine=engine,
        protect_last_n=2,
        **settings,
    )
    await send_texts(conversation, 6, 900, "account")
    return conversation


async def wait_until_reached(hold_point: HoldPoint) -> None:
    assert await asyncio.to_thread(hold_point.reached.wait, LONGEST)


async def test_the_event_loop_is_free_while_an_engine_works(
    conversations: Conversations,
) -> None:
    hold_point = HoldPoint()
    conversation = await open_full(conversations, hold_point.engine())
    compacting = asyncio.ensure_future(conversation.compress())
    await wait_until_reached(hold_point)
    hold_point.opened.set()  # set by this loop: an engine that blocked the loop would wait for ever
    assert (await compacting).changed
    assert hold_point.threads != [threading.get_ident()]
    assert len(conversations.compactions) == 1


@pytest.mark.parametrize("moments", [0, 1, 3])
async def test_a_cancelled_compaction_changes_nothing(
    conversations: Conversations, moments: int
) -> None:
    hold_point = HoldPoint()
    conversation = await open_full(conversations, hold_point.engine())
    session = conversation.id
    before = conversation.messages
    compacting = asyncio.ensure_future(conversation.compress())
    await wait_until_reached(hold_point)
    for _ in range(moments):
        await asyncio.sleep(0)
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting
    hold_point.opened.set()
    assert conversation.id == session
    assert conversation.messages == before
    assert (await conversation.send("still here?")).text
    assert (await conversation.compress()).changed
    assert not validate_messages(conversation.messages)


class CancelledSummarizer:
    """A summariser that waits, the first time, until it is cancelled."""

    name = "asked"

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = False
        self.loops: list[asyncio.AbstractEventLoop] = []

    async def summarize(self, _request: SummaryRequest) -> SummaryDraft:
        self.loops.append(asyncio.get_running_loop())
        if self.ended:
            return SummaryDraft({"Active Task": "To go on."}, self.name)
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended = True
        raise AssertionError


async def test_a_summariser_stays_in_the_loop_and_ends_before_the_turn_does(
    conversations: Conversations,
) -> None:
    asked = CancelledSummarizer()
    conversation = await open_full(conversations, ContextCompressor, summarizer=asked)
    compacting = asyncio.ensure_future(conversation.compress())
    await asked.started.wait()
    compacting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await compacting
    assert asked.ended
    assert (await conversation.compress()).changed
    assert len(asked.loops) > 1
    assert set(asked.loops) == {asyncio.get_running_loop()}
