"""An engine with nothing but the abstract methods works in the library, a conversation, the gateway and frameworks."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread import acompress, open_conversation, register_context_engine
from everthread.compaction.compaction_result import Compaction
from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.summarizers.summarizer import SummaryRequest
from everthread.config import parse_config
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, Messages
from everthread.integrations.model_calls import ModelCall
from everthread.integrations.threads import FrameworkThreads
from everthread.testing import ScriptedModel
from tests.gateway.gateway_setup import open_gateways

SETTINGS = "context: {engine: only-compress}\n"
LINE = "the ledger of the northern branch was compared with its receipts. " * 40
compaction_threads: list[tuple[int, int]] = []
"""The process and the thread of each compaction."""


class OnlyCompress(ContextEngine):
    """Keeps the last message, after a note with the author of a summary that it asked for."""

    name = "only-compress"

    def __init__(self, services: Services) -> None:
        self.services = services

    def update_from_response(self, usage: CanonicalUsage) -> None: ...

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        return (prompt_tokens or 0) >= self.services.budget.threshold

    async def compress(self, messages: Messages, **_how: Any) -> Compaction:
        compaction_threads.append((os.getpid(), threading.get_ident()))
        request = SummaryRequest(messages, [], self.services.budget.summary_max)
        draft = await self.services.summarizer.summarize(request)
        note: Message = {
            "role": "user",
            "content": f"{len(messages) - 1} messages were left out by {draft.author}.",
        }
        last = len(messages) - 1
        count = self.services.counter.messages
        return Compaction(
            messages=[note, {"role": "assistant", "content": "Yes."}, messages[last]],
            summary="",
            tokens_before=count(messages),
            tokens_after=count([note, messages[last]]),
            kept=(None, None, last),
            covered=tuple(range(last)),
            author=draft.author,
        )


register_context_engine("only-compress", lambda services, _: OnlyCompress(services))


@pytest.fixture(autouse=True)
def clear_compaction_threads() -> None:
    compaction_threads.clear()


def make_talk() -> list[Message]:
    messages: list[Message] = []
    for number in range(12):
        messages += [
            {"role": "user", "content": f"Ledger {number}: {LINE}"},
            {"role": "assistant", "content": f"Noted {number}."},
        ]
    return [*messages, {"role": "user", "content": "And now?"}]


def assert_engine_ran(*, is_beside: bool) -> None:
    """The engine worked in this process; beside the event loop if it must not block that."""
    assert compaction_threads
    processes = {process for process, _ in compaction_threads}
    assert processes == {os.getpid()}
    threads = {thread for _, thread in compaction_threads}
    assert (threading.get_ident() not in threads) == is_beside


async def test_compresses_in_the_library() -> None:
    compaction = await acompress(make_talk(), window=8_000, config=parse_config(SETTINGS))
    assert compaction.changed
    assert compaction.messages[0]["content"] == "24 messages were left out by journal."
    assert_engine_ran(is_beside=False)


async def test_compresses_in_a_conversation(tmp_path: Path) -> None:
    model = ScriptedModel(lambda _request: "Noted.", window=8_000)
    conversation = await open_conversation(
        model=model, config=parse_config(SETTINGS), store=str(tmp_path / "store.db")
    )
    async with conversation:
        for number in range(12):
            await conversation.send(f"Ledger {number}: {LINE}")
        assert "left out by journal" in str(conversation.messages[0]["content"])
    assert_engine_ran(is_beside=True)


async def test_compresses_in_the_gateway(tmp_path: Path) -> None:
    async with open_gateways(tmp_path) as gateways, httpx2.AsyncClient(timeout=60) as http:
        url = await gateways.start(settings=SETTINGS)
        key = await gateways.create_key(scopes=("threads",))
        answer = await http.post(
            f"{url}/v1/compact",
            json={
                "model": "gpt-4o",
                "messages": make_talk(),
                "window": 8_000,
            },
            headers={"authorization": f"Bearer {key}"},
        )
        messages = answer.json()["messages"]
    assert messages[0]["content"] == "24 messages were left out by journal."
    assert messages[-1]["content"] == "And now?"
    assert_engine_ran(is_beside=True)


async def test_compresses_in_a_framework(tmp_path: Path) -> None:
    threads = FrameworkThreads(
        "lab",
        logging.getLogger("lab"),
        store=tmp_path / "books.db",
        config=parse_config(f"{SETTINGS}compression: {{background: false}}"),
    )
    history = make_talk()
    call = ModelCall(history, history, "gpt-4o", "books", "Be brief.", window=8_000)
    turn = await threads.prepare(call)
    assert turn is not None
    sent = turn.messages_to_send(lambda message: message)
    await threads.aclose()
    assert "left out by journal" in str(sent[0]["content"])
    assert sent[-1] == history[-1]
    assert_engine_ran(is_beside=True)
