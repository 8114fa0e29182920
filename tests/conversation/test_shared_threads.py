"""The same conversation on either store, with a second one on its thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from everthread import open_store, validate_messages
from everthread.compaction.compressor import ContextCompressor
from everthread.core.messages import text_of
from everthread.testing import ScriptedModel
from tests.conversation.conversation_setup import (
    Conversations,
    make_text,
    numbered_text,
    send_texts,
)
from tests.store.conftest import BACKENDS, new_url, postgres, run_folder

__all__ = ["new_url", "postgres", "run_folder"]


@pytest.mark.parametrize("kind", BACKENDS)
async def test_two_conversations_compact_append_and_undo_concurrently(
    new_url: Callable[..., str], kind: str
) -> None:
    url = new_url(kind)
    store = await asyncio.to_thread(open_store, url)
    conversations = Conversations(store)
    model = ScriptedModel(lambda _: f"Noted. {make_text(200)}", window=16_000)
    first = await conversations.open(model, protect_last_n=2)
    questions = [numbered_text(turn, 600, "account") for turn in range(12)]
    for text in questions:
        await first.send(text)
    assert conversations.compactions
    second = await conversations.open(model, resume=first.session.id, protect_last_n=2)
    await asyncio.gather(
        first.compress(),
        second.add("Turn in between"),
        second.compress(),
    )
    await first.send("Turn of the first")
    await second.send("Turn of the second")
    await first.undo()
    await second.send("Turn after it was taken back")
    await first.send("Turn at the end")
    stored_texts = [text_of(message.body) for message in await store.load_history(first.id)]
    questions += ["Turn in between", "Turn of the first", "Turn of the second"]
    questions += ["Turn after it was taken back", "Turn at the end"]
    assert [text for text in stored_texts if text.startswith("Turn")] == questions
    reader = await conversations.open(model, resume=second.id)
    assert reader.messages == first.messages
    assert validate_messages(reader.messages) == []
    await store.close()
    assert not conversations.watch.broken


class RecordingEngine(ContextCompressor):
    """An engine that records the calls it gets."""

    def on_session_start(self, session_id: str, **how: Any) -> None:
        super().on_session_start(session_id, **how)
        self.started = [*getattr(self, "started", []), (session_id, how["reason"])]


async def test_a_second_conversation_follows_a_compaction_of_the_first(
    conversations: Conversations,
) -> None:
    engines: list[RecordingEngine] = []

    def make(services: Any) -> RecordingEngine:
        engines.append(RecordingEngine(services))
        return engines[-1]

    claude: dict[str, Any] = {
        "name": "claude-sonnet-4-5",
        "api": "anthropic",
        "base_url": "https://api.anthropic.com",
    }
    model = ScriptedModel(lambda _: f"Noted. {make_text(100)}", window=64_000, **claude)
    first = await conversations.open(
        model,
        engine=make,
        provider="anthropic",
        protect_last_n=2,
    )
    await send_texts(first, 40, 60, "account")
    second = await conversations.open(
        model, engine=make, provider="anthropic", protect_last_n=2, resume=first.id
    )
    await second.send("I am here too.")
    await first.compress()
    await second.send("Still here.")
    assert second.session.id == first.session.id
    assert engines[1].compaction_count == engines[0].compaction_count == 1
    assert engines[1].started[-1] == (first.session.id, "compression")
    marked_indexes = [
        index
        for index, item in enumerate(model.requests[-1].messages)
        if "cache_control" in str(item)
    ]
    assert marked_indexes == list(range(len(second.messages) - 4, len(second.messages) - 1)), (
        "the last three"
    )
    await first.send("And I.")
    await first.compress()
    await second.compress()
    third = await conversations.open(model, resume=first.id)
    assert third.messages == second.messages
