"""A conversation whose recall also has vectors: made in the background when something leaves view."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from everthread.config import parse_config
from everthread.conversation.conversation import Conversation
from everthread.conversation.events import Notice, Recalled
from everthread.conversation.options import RecallOptions
from everthread.core.exchange import Request
from everthread.errors import ConfigError
from everthread.factory.embeddings import embedder_of
from everthread.providers.embeddings import EndpointEmbedder
from everthread.testing import ScriptedModel, ScriptedSummarizer
from tests.conversation.talk import Room, room, run, words
from tests.conversation.test_recalling import injected
from tests.providers.embedding_server import embedding_server

FACT = "Her automobile is crimson, purchased from old Aldermoor."
ASKED = "Which colour has the vehicle?"
SECRET = "ghp_" + "x7Kq2LmN9pRs4TuV6wYz" + "A1b2C3d4E5f6G7h8"


async def compacted(place: Room, embedder: EndpointEmbedder, sent: list[Request]) -> Conversation:
    """A conversation where the fact is no longer in view."""

    def answer(request: Request) -> str:
        sent.append(request)
        return words(120, "answer")

    setup = place.setup(
        ScriptedModel(answer, window=16_000),
        background=False,
        keep_important=0.0,
        protect_last_n=2,
        target_ratio=0.1,
        summarizer=ScriptedSummarizer({"Goal": "Keep the books."}),
        recall=RecallOptions(similarity=0.5),
    )
    talk = await Conversation.open(replace(setup, embedder=embedder, closing=[embedder.close]))
    for text in ("Let us begin.", FACT, *(f"Turn {turn}. {words(250, f'topic {turn}')}" for turn in range(4))):
        await talk.send(text)
    assert (await talk.compress()).changed
    sent.clear()
    return talk


def test_what_left_view_is_found_by_its_meaning_and_a_failing_server_is_told_once(tmp_path: Path) -> None:
    pytest.importorskip("numpy")

    async def talk() -> None:
        async with room(tmp_path) as place:
            sent: list[Request] = []
            conversation = await compacted(place, EndpointEmbedder("embed-1", served.url), sent)
            seen = {message.id for message in await place.store.messages(conversation.session.id)}
            while await place.store.without_vectors(conversation.id, "embed-1", seen=seen):  # noqa: ASYNC110 - untold
                await asyncio.sleep(0.01)
            await conversation.send(ASKED)
            assert FACT in injected(sent[0])[0]
            assert not place.watch.of(Notice)
            await conversation.send(f"Is {SECRET} the token of the vehicle?")
            assert SECRET not in str(served.asked)
            served.status, served.body = 500, b"out of order"
            await conversation.send(ASKED)
            assert not injected(sent[2]), "no word of it was said"
            await conversation.send("What was it with old Aldermoor?")
            assert FACT in injected(sent[3])[0], "full text goes on"
            (notice,) = place.watch.of(Notice)
            assert "full text alone" in notice.text
            assert "answered 500" in notice.text
            assert len(place.watch.of(Recalled)) == sum(map(bool, map(injected, sent)))
            await conversation.close()

    with embedding_server() as served:
        run(talk())


def test_who_makes_vectors_is_configured_and_nobody_does_by_default() -> None:
    pytest.importorskip("numpy")

    def made(options: str) -> str | None:
        embedder = embedder_of(parse_config(f"recall: {options}"))
        return None if embedder is None else embedder.name

    assert made("{}") is None
    assert made("{enabled: false, embeddings: {model: local}}") is None
    assert made("{embeddings: {model: local}}") == "wordllama/l2_supercat_256"
    assert made("{embeddings: {model: e5, base_url: http://127.0.0.1:9/v1}}") == "e5"
    for wrong in (
        "{model: e5}",
        "{model: local, base_url: http://127.0.0.1:9/v1}",
        "{base_url: http://127.0.0.1:9/v1}",
    ):
        with pytest.raises(ConfigError, match=r"recall\.embeddings"):
            made(f"{{embeddings: {wrong}}}")
