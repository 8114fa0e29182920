"""The same conversation on either store, with a second one on its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everthread import open_store, validate_messages
from everthread.compaction.summarizers.summarizer import SummaryDraft, SummaryRequest
from everthread.conversation.conversation import Conversation
from everthread.core.messages import text_of
from everthread.testing import ScriptedModel
from everthread.thread.events import CompactionDone
from everthread.thread.options import Setup, SummarizerContext
from tests.conversation.conversation_setup import (
    ConversationSetup,
    make_text,
    numbered_text,
    open_setup,
    send_texts,
)
from tests.store.conftest import BACKENDS, new_url, postgres, run_folder

__all__ = ["new_url", "postgres", "run_folder"]


@pytest.mark.parametrize("kind", BACKENDS)
async def test_two_compact_append_and_take_back_at_once(
    new_url: Callable[..., str], kind: str
) -> None:
    url = new_url(kind)
    store = await asyncio.to_thread(open_store, url)
    place = ConversationSetup(store)
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=16_000)
    first = await place.open(model, protect_last_n=2)
    asked = [numbered_text(turn, 600, "account") for turn in range(12)]
    for text in asked:
        await first.send(text)
    assert place.watch.of(CompactionDone)
    second = await place.open(model, resume=first.session.id, protect_last_n=2)
    await asyncio.gather(
        first.compress(), second.add("Turn in between"), second.compress()
    )
    await first.send("Turn of the first")
    await second.send("Turn of the second")
    await first.undo()
    await second.send("Turn after it was taken back")
    await first.send("Turn at the end")
    said = [text_of(message.body) for message in await store.history(first.id)]
    asked += ["Turn in between", "Turn of the first", "Turn of the second"]
    asked += ["Turn after it was taken back", "Turn at the end"]
    assert [text for text in said if text.startswith("Turn")] == asked
    again = await place.open(model, resume=second.id)
    assert again.messages == first.messages
    assert validate_messages(again.messages) == []
    await store.close()
    assert not place.watch.broken


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
            last = self._context.last_request()
            assert last is not None
            self._context.report_abandoned(last)
            raise
        raise AssertionError(request)


async def test_a_summary_that_was_given_up_is_accounted_for_at_the_close(
    tmp_path: Path,
) -> None:
    async with open_setup(tmp_path) as place:
        model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=64_000)
        given: Any = place.setup(model, protect_last_n=2)
        asked = asyncio.Event()
        setup = Setup(
            place.store,
            given.route,
            given.engine,
            lambda context: GivenUp(context, asked),
            given.options,
            given.system,
        )
        conversation = await Conversation.open(setup)
        await send_texts(conversation, 12, 600, "account")
        task = asyncio.ensure_future(conversation.compress())
        await asked.wait()
        task.cancel()
        await asyncio.wait({task})
        await conversation.close()
        spent = [
            record
            for record in await conversation.usage()
            if record.task == "auxiliary"
        ]
        assert len(spent) == 1
        assert spent[0].estimated
