"""A caller may be cancelled at any moment: the store stays consistent, and the conversation matches it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from everthread import validate_messages
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.conversation.cancellation import finish_despite_cancellation
from everthread.conversation.conversation import Conversation
from everthread.core.messages import text_of
from everthread.errors import StoreClosedError
from everthread.testing import ScriptedModel
from everthread.thread.thread_setup import SummarizerContext
from tests.conversation.conversation_setup import (
    Conversations,
    make_text,
    numbered_text,
    send_texts,
)


async def cancel_after(work: Any, after: int) -> bool:
    """Cancel after this many steps of the loop; return whether the call was still running."""
    task = asyncio.ensure_future(work)
    for step in range(after):
        if task.done():
            break
        await asyncio.sleep(0.0003 if step % 3 else 0)
    under_way = not task.done()
    task.cancel()
    await asyncio.wait({task}, timeout=0.001)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return under_way


async def assert_stored(
    conversations: Conversations,
    conversation: Conversation,
    questions: list[str],
    sent_questions: set[str] | None = None,
) -> None:
    """Check that each question is stored once, in order and valid, here and for a new reader.

    With `reached`, a question that did not reach the model may be missing: it was cancelled before it was stored.
    """
    history = [
        text_of(message.body) for message in await conversations.store.load_history(conversation.id)
    ]
    stored_questions = [text for text in history if text.startswith("Turn")]
    assert stored_questions == [
        text
        for text in questions
        if sent_questions is None or text in sent_questions or text in stored_questions
    ]
    reader = await conversations.open(ScriptedModel(), resume=conversation.id)
    assert reader.messages == conversation.messages
    assert validate_messages(conversation.messages) == []


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_turn_can_be_cancelled_at_any_moment(
    conversations: Conversations, *, background: bool, streaming: bool
) -> None:
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=16_000)
    conversation = await conversations.open(model, background=background, protect_last_n=2)

    async def ask(text: str) -> None:
        if not streaming:
            await conversation.send(text)
            return
        async for _ in conversation.stream(text):
            await asyncio.sleep(0)

    questions = []
    sent_questions = set()
    cancelled_count = 0
    for turn in range(30):
        questions.append(numbered_text(turn, 600, "account"))
        if await cancel_after(ask(questions[-1]), 3 + turn * 5 % 61):
            cancelled_count += 1
        else:
            sent_questions.add(questions[-1])
    await conversation.add("The end.")
    sent_questions.update(
        text_of(message) for request in model.requests for message in request.messages
    )
    assert cancelled_count
    await assert_stored(conversations, conversation, questions, sent_questions)
    await conversation.close()


async def test_a_compaction_can_be_cancelled_at_any_moment(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=64_000)
    for after in range(0, 48, 4):
        conversation = await conversations.open(model, protect_last_n=2)
        questions = [numbered_text(turn, 300, "account") for turn in range(5)]
        for text in questions:
            await conversation.send(text)
        await cancel_after(conversation.compress(), after)
        assert (
            await conversations.store.get_compression_tip(conversation.id)
            == conversation.session.id
        )
        await assert_stored(conversations, conversation, questions)


async def test_a_started_write_is_finished_despite_repeated_cancelling() -> None:
    done = []

    async def work() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        done.append(True)

    task = asyncio.ensure_future(finish_despite_cancellation(work()))
    await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
    assert task.cancelled()
    assert done


async def test_close_runs_every_callback_if_the_store_is_closed_already(
    conversations: Conversations,
) -> None:
    closed = []

    async def close() -> None:
        closed.append(True)

    resources = AsyncExitStack()
    resources.push_async_callback(close)
    conversation = await conversations.open(
        ScriptedModel(["Noted."]), changes={"resources": resources}
    )
    await conversation.send("Hello")
    await conversations.store.close()
    with pytest.raises(StoreClosedError):
        await conversation.close("done")
    assert closed


class GivenUp:
    """A summariser that reports when its running call is cancelled."""

    name = "given up"

    def __init__(self, context: SummarizerContext, asked: asyncio.Event) -> None:
        self._context = context
        self._asked = asked

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        self._asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            last = self._context.get_last_request()
            assert last is not None
            self._context.report_abandoned(last)
            raise
        raise AssertionError(request)


async def test_records_the_usage_of_an_abandoned_summary_on_close(
    conversations: Conversations,
) -> None:
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=64_000)
    is_summarizing = asyncio.Event()
    conversation = await conversations.open(
        model,
        protect_last_n=2,
        changes={"make_summarizer": lambda context: GivenUp(context, is_summarizing)},
    )
    await send_texts(conversation, 12, 600, "account")
    task = asyncio.ensure_future(conversation.compress())
    await is_summarizing.wait()
    task.cancel()
    await asyncio.wait({task})
    await conversation.close()
    summary_usage = [record for record in await conversation.usage() if record.task == "auxiliary"]
    assert len(summary_usage) == 1
    assert summary_usage[0].estimated
