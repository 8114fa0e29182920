"""The tenant of a thread: one for a personal gateway, the credential's own otherwise."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.lab.provider import ServedModel
from tests.gateway.gateway_setup import (
    CHAT_MODEL,
    FILLER,
    ChatClient,
    Gateways,
    open_gateways_with_models,
)

FORWARDED = [
    {"forwarded": "for=192.0.2.1"},
    {"x-forwarded-for": "192.0.2.1"},
    {"via": "1.1 proxy"},
]


async def test_a_renewed_login_keeps_the_thread_on_a_personal_gateway(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    client = ChatClient(http, await gateways.start("none", key=None))
    tokens = [f"sk-login-{number}" for number in range(3)]
    threads = []
    for client.token in tokens:
        threads.append(await client.say("Question"))
    assert len(set(threads)) == 1
    stored = await gateways.wait_for_texts(threads[0], 6)
    texts = [text_of(message) for message in client.messages]
    assert stored == texts
    session = await gateways.store.load_session(threads[0])
    assert session.tenant == "default"
    sent = [record.headers["authorization"] for record in gateways.provider.log]
    assert sent == [f"Bearer {token}" for token in tokens], "each goes upstream"


async def test_a_renewed_login_after_a_compaction_reuses_it(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    models = [ServedModel(CHAT_MODEL, 8_000)]
    async with open_gateways_with_models(tmp_path, models, lambda _: "Noted.") as gateways:
        settings = "compression: {background: false, economics: false}\n"
        url = await gateways.start("none", key=None, settings=settings)
        client = ChatClient(http, url, token="sk-first")
        thread = await client.say(f"Page 0. {FILLER * 100}")
        while not await gateways.store.list_compactions(thread):
            thread = await client.say(f"Another page. {FILLER * 100}")
        compactions_before = await gateways.store.list_compactions(thread)
        await gateways.wait_for_texts(thread, len(client.messages))
        client.url = await gateways.start("none", key=None, settings=settings)
        client.token = "sk-renewed"
        before = gateways.provider.log[-1].body["messages"]
        count = len(gateways.provider.log)
        assert await client.say("Go on.") == thread
        [sent] = gateways.provider.log[count:]
        assert sent.status == 200, "it is managed from its first request on"
        assert sent.body["messages"][: len(before)] == before
        compactions = await gateways.store.list_compactions(thread)
        assert compactions == compactions_before


@pytest.mark.parametrize("headers", FORWARDED, ids=lambda headers: next(iter(headers)))
async def test_forwarded_requests_have_a_tenant_for_each_credential(
    headers: dict[str, str], gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    url = await gateways.start("none", key=None)
    person = ChatClient(http, url, token="sk-one")
    one = ChatClient(http, url, token="sk-one")
    other = ChatClient(http, url, token="sk-two")
    threads = [
        await person.say("Hello"),
        await one.say("Hello", **headers),
        await other.say("Hello", **headers),
    ]
    assert len(set(threads)) == 3
    assert await one.say("Go on", **headers) == threads[1]
    tenants = {(await gateways.store.load_session(thread)).tenant for thread in threads}
    assert len(tenants) == 3
    assert "default" in tenants
