"""Whose a thread is: one owner for a personal gateway, the credential's tenant for all others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.core.messages import text_of
from everthread.lab.provider import ServedModel
from tests.gateway.gateway_setup import (
    CHAT,
    FILLER,
    GatewaySetup,
    open_setup_with_models,
)

FORWARDED = [
    {"forwarded": "for=192.0.2.1"},
    {"x-forwarded-for": "192.0.2.1"},
    {"via": "1.1 proxy"},
]


class HttpConversation:
    """One conversation over HTTP; each call may carry another credential."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.messages: list[Any] = []
        self._http = http
        self._url = url

    async def say(self, text: str, token: str, **headers: str) -> str:
        """The thread of the answer."""
        self.messages.append({"role": "user", "content": text})
        answer = await self._http.post(
            f"{self._url}/v1/chat/completions",
            json={"model": CHAT, "messages": self.messages},
            headers={"authorization": f"Bearer {token}", **headers},
        )
        assert answer.status_code == 200, answer.text
        self.messages.append(answer.json()["choices"][0]["message"])
        return str(answer.headers["x-everthread-thread"])


async def test_a_renewed_login_changes_nothing_on_a_personal_gateway(
    gateways: GatewaySetup, http: httpx2.AsyncClient
) -> None:
    talk = HttpConversation(http, await gateways.start("none", key=None))
    threads = [
        await talk.say(f"Question {turn}", f"sk-login-{turn}") for turn in range(3)
    ]
    assert len(set(threads)) == 1
    stored = await gateways.wait_for_texts(threads[0], 6)
    assert stored == [text_of(message) for message in talk.messages]
    assert (await gateways.store.session(threads[0])).tenant == "default"
    assert {record.headers["authorization"] for record in gateways.provider.log} == {
        f"Bearer sk-login-{turn}" for turn in range(3)
    }, "each goes upstream"


async def test_a_renewed_login_after_a_compaction_reuses_it(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    models = [ServedModel(CHAT, 8_000)]
    async with open_setup_with_models(tmp_path, models, lambda _: "Noted.") as gateways:
        settings = "compression: {background: false, economics: false}\n"
        url = await gateways.start("none", key=None, settings=settings)
        talk = HttpConversation(http, url)
        thread = await talk.say(f"Page 0. {FILLER * 100}", "sk-first")
        while not await gateways.store.compactions(thread):
            thread = await talk.say(f"Another page. {FILLER * 100}", "sk-first")
        made = await gateways.store.compactions(thread)
        await gateways.wait_for_texts(thread, len(talk.messages))
        resumed = HttpConversation(
            http, await gateways.start("none", key=None, settings=settings)
        )
        resumed.messages = talk.messages
        sent_before = gateways.provider.log[-1]
        count = len(gateways.provider.log)
        assert await resumed.say("Go on.", "sk-renewed") == thread
        [sent] = gateways.provider.log[count:]
        assert sent.status == 200, "it is managed from its first request on"
        messages = sent_before.body["messages"]
        assert sent.body["messages"][: len(messages)] == messages
        assert await gateways.store.compactions(thread) == made


@pytest.mark.parametrize("headers", FORWARDED, ids=lambda headers: next(iter(headers)))
async def test_people_behind_another_server_have_a_tenant_each(
    headers: dict[str, str], gateways: GatewaySetup, http: httpx2.AsyncClient
) -> None:
    url = await gateways.start("none", key=None)
    person = HttpConversation(http, url)
    one = HttpConversation(http, url)
    other = HttpConversation(http, url)
    threads = [
        await person.say("Hello", "sk-one"),
        await one.say("Hello", "sk-one", **headers),
        await other.say("Hello", "sk-two", **headers),
    ]
    assert len(set(threads)) == 3
    assert await one.say("Go on", "sk-one", **headers) == threads[1]
    tenants = {(await gateways.store.session(thread)).tenant for thread in threads}
    assert len(tenants) == 3
    assert "default" in tenants


async def test_with_passthrough_a_credential_is_a_tenant_even_on_loopback(
    gateways: GatewaySetup, http: httpx2.AsyncClient
) -> None:
    talk = HttpConversation(http, await gateways.start("passthrough", key=None))
    before = await talk.say("Hello", "sk-one")
    after = await talk.say("Go on", "sk-two")
    assert before != after
    tenants = {
        (await gateways.store.session(thread)).tenant for thread in (before, after)
    }
    assert len(tenants) == 2
