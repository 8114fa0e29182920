"""A store that the version before wrote is opened, brought up to date and goes on (tests/store/fixtures)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import httpx2
import psycopg
import pytest

from everthread import open_conversation, open_store
from everthread.config import parse_config
from everthread.core.messages import text_of
from everthread.errors import SchemaTooNewError
from everthread.factory import migrate_store
from everthread.factory.gateway import open_gateway
from everthread.gateway.router import Upstream
from everthread.lab.provider import Provider, ServedModel
from everthread.store.database import latest_version
from everthread.store.models import SearchQuery
from everthread.store.store import Store
from everthread.testing import ScriptedModel

FIXTURES = Path(__file__).parent / "fixtures"
HEADERS = {"x-api-key": "sk-client", "authorization": "Bearer sk-client", "anthropic-version": "2023-06-01"}


@pytest.fixture
def known(kind: str) -> dict[str, Any]:
    """What is in the store."""
    read: dict[str, Any] = json.loads(gzip.decompress((FIXTURES / "stores.json.gz").read_bytes()))[kind]
    return read


@pytest.fixture
def old_url(kind: str, new_url: Callable[..., str]) -> str:
    """A copy of the store the version before wrote."""
    url = new_url(kind, empty=True)
    if kind == "sqlite":
        data = gzip.decompress((FIXTURES / "sqlite.db.gz").read_bytes())
        Path(url.removeprefix("sqlite:///")).write_bytes(data)
        return url
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(gzip.decompress((FIXTURES / "postgresql.sql.gz").read_bytes()))
    return url


async def close_sound(store: Store) -> None:
    assert (await store.check()).problems == ()
    await store.close()


async def test_an_old_store_opens_and_everything_in_it_is_there(kind: str, old_url: str, known: dict[str, Any]) -> None:
    store = open_store(old_url)
    health = await store.check()
    assert health.schema == latest_version(kind)
    assert (health.sessions, health.messages) == (known["sessions"], known["messages"])
    for name in ("compressor", "lossless"):
        thread = known[name]
        assert await store.get_compression_tip(thread["thread"]) == thread["tip"]
        assert len(await store.history(thread["thread"])) == thread["messages"]
        assert len(await store.compactions(thread["thread"])) == thread["compactions"]
        assert len(await store.nodes(thread["thread"])) == thread["nodes"]
        assert await store.search(SearchQuery('"L-1003"', thread=thread["thread"]))
        assert [pin.text for pin in await store.pins(thread["thread"])] == [thread["pin"]]
    learnt = (await store.limits_for("https://api.example.test/v1", "small-model")).window
    assert learnt is None or learnt.limit == 32_000
    assert [kept.tool for kept in await store.outputs(known["compressor"]["thread"])] == ["terminal"]
    assert (await store.output(known["output"])).startswith("stored line")
    assert [turn.state for turn in await store.turns(known["compressor"]["thread"])] == ["queued"]
    assert [key.key.id for key in await store.list_keys("2026-01-01")] == [known["key"]]
    await close_sound(store)


@pytest.mark.parametrize("engine", ["compressor", "lossless"])
async def test_a_conversation_of_an_old_store_goes_on_past_its_window(
    engine: str, old_url: str, known: dict[str, Any]
) -> None:
    thread, store = known[engine], open_store(old_url)
    model = ScriptedModel(lambda _: "Settled. " + "The answer was entered and checked. " * 40, window=8_000)
    config = parse_config(f"context: {{engine: {engine}}}\ncompression: {{background: false, protect_last_n: 2}}")
    talk = await open_conversation(
        model, config=config, store=store, resume=thread["tip"], system="You keep ledgers.", summarizer="extractive"
    )
    assert talk.id == thread["thread"]
    for turn in range(8):
        await talk.send(f"Please settle page {turn}. " + "It was entered and checked twice. " * 60)
    assert len(await store.compactions(talk.id)) > thread["compactions"]
    assert len(await store.history(talk.id)) == thread["messages"] + 16
    context = "\n".join(map(text_of, talk.messages))
    assert "Never push to main." in context
    assert all(f"its code is L-{1000 + turn}." in context for turn in range(thread["messages"] // 2)), (
        "the user's words are rebuilt from the stored messages, not from the old summary"
    )
    await talk.close()
    await close_sound(store)


@pytest.mark.parametrize("number", [0, 1])
async def test_a_proxied_thread_goes_on_with_the_rewrites_it_had(
    number: int, old_url: str, known: dict[str, Any]
) -> None:
    client, store = known["clients"][number], open_store(old_url)
    messages, seen = list(client["messages"]), []
    served = [ServedModel(client["model"], client["window"], shows="max_model_len")]
    async with Provider(served, lambda _: "Noted.") as provider:
        config, upstreams = (
            parse_config("gateway: {port: 0}\ncompression: {background: false}\n"),
            [Upstream("lab", provider.url)],
        )
        async with (
            open_gateway(config, auth="none", store=store, upstreams=upstreams) as gateway,
            httpx2.AsyncClient(timeout=60) as http,
        ):
            for turn in range(16):
                text = f"And page {turn}? " + "It was entered and checked twice. " * 60
                messages.append({"role": "user", "content": text})
                body = {"model": client["model"], "messages": messages, "max_tokens": 500}
                body |= {"system": "You keep ledgers."} if client["path"] == "/v1/messages" else {}
                answer = await http.post(gateway.url + client["path"], json=body, headers=HEADERS)
                assert answer.status_code == 200, answer.text
                messages.append({"role": "assistant", "content": "Noted."})
                seen.append(int(answer.headers["x-everthread-compactions"]))
                assert answer.headers["x-everthread-thread"] == client["headers"]["x-everthread-thread"]
        sent = provider.log[-1].request
    before = int(client["headers"]["x-everthread-compactions"])
    assert seen == sorted(seen)
    assert seen[0] >= before, "what was stored is used again"
    assert seen[-1] > before
    assert sent is not None
    assert len(sent.messages) < len(messages)
    context = "\n".join(map(text_of, sent.messages))
    words = context.partition("## What the User Said")[2]
    said = [text_of(message) for message in client["messages"] if message["role"] == "user"]
    assert said[1].split(";")[0][:40] in words, "the user's words are taken from the client's own messages"
    assert "[2, shortened] " in words
    await close_sound(store)


def test_a_store_of_a_later_version_is_refused_in_a_sentence(old_url: str, kind: str) -> None:
    statement = "INSERT INTO schema_version VALUES (4000, 'later')"
    if kind == "sqlite":
        connection = apsw.Connection(old_url.removeprefix("sqlite:///"))
        connection.execute(statement)
        connection.close()
    else:
        with psycopg.connect(old_url, autocommit=True) as server:
            server.execute(statement.encode())
    with pytest.raises(SchemaTooNewError, match="has schema 4000, this version of Everthread knows up to"):
        open_store(old_url)


def test_a_copy_is_made_before_the_store_is_brought_up_to_date(
    kind: str, old_url: str, known: dict[str, Any], tmp_path: Path
) -> None:
    copy = tmp_path / "before"
    _, before, after = migrate_store(old_url, backup=str(copy))
    assert (before, after) == (known["schema"], latest_version(kind))
    assert copy.stat().st_size > 0
    if kind == "sqlite":
        connection = apsw.Connection(str(copy))
        assert list(connection.execute("SELECT MAX(number) FROM schema_version")) == [(known["schema"],)]
        connection.close()
