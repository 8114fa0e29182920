"""Keys and tenants over real HTTP: the official clients, the configured gateway, and a provider."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from everthread.config import parse_config
from everthread.errors import ConfigError, InputError
from everthread.factory import open_store
from everthread.factory.upstreams import add_own_key, list_upstreams
from everthread.gateway.access.authentication import KEY_CACHE_SECONDS, KeyAuthenticator
from everthread.gateway.access.key_creation import issue_key
from everthread.gateway.contracts import Auth
from everthread.gateway.router import Upstream
from everthread.store.key_records import KeyLimits
from everthread.store.search_records import SearchQuery
from everthread.testing import SteppedClock
from tests.gateway.gateway_setup import (
    CHAT_MODEL,
    CLAUDE_MODEL,
    FILLER,
    HELLO,
    LATE_EVENING,
    UPSTREAM_KEY,
    Gateways,
    ask_chat,
    ask_claude,
    open_gateways,
)

SECRET = "The harbour password is zebrafish-seven."


async def test_accepts_a_valid_key_and_sends_the_upstream_key(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    url = await gateways.start()
    key = await gateways.create_key()
    await ask_chat(gateways.openai_client(url, key))
    await ask_claude(gateways.anthropic_client(url, key))
    body = {
        "model": CLAUDE_MODEL,
        "max_tokens": 100,
        "messages": HELLO,
    }
    response = await http.post(
        f"{url}/v1/messages",
        json=body,
        headers={"x-api-key": key},
    )
    assert response.is_success
    credentials = [
        (one.headers.get("authorization"), one.headers.get("x-api-key"))
        for one in gateways.provider.log
    ]
    assert credentials == [
        (f"Bearer {UPSTREAM_KEY}", None),
        (None, UPSTREAM_KEY),
        (None, UPSTREAM_KEY),
    ]
    rows = await gateways.store.list_threads()
    tenants = {thread.first.tenant for thread in rows}
    assert tenants == {"acme"}
    off = await ask_chat(
        gateways.openai_client(url, await gateways.create_key("quiet", mode="off"))
    )
    assert off.choices[0].message.content
    rows = await gateways.store.list_threads(tenant="quiet")
    assert not rows, "the key's mode stands before the upstream's"


async def test_refuses_missing_unknown_and_revoked_keys_in_the_clients_protocol(
    gateways: Gateways,
) -> None:
    clock = SteppedClock(LATE_EVENING)
    authenticator = KeyAuthenticator(gateways.store, clock=clock)
    gateways.exit_stack.push_async_callback(authenticator.close)
    url = await gateways.start(authenticator=authenticator)
    revoked = await gateways.create_key()
    valid_key = await gateways.create_key()
    await ask_chat(gateways.openai_client(url, revoked))
    await gateways.store.keys.revoke_key(revoked.split("_")[1])
    clock.now += KEY_CACHE_SECONDS
    almost = valid_key[:-1] + ("A" if valid_key[-1] != "A" else "B")
    for wrong in (revoked, almost, "sk-else", "et_", UPSTREAM_KEY):
        with pytest.raises(openai.AuthenticationError) as chat:
            await ask_chat(gateways.openai_client(url, wrong))
        assert chat.value.code == "invalid_api_key"
        with pytest.raises(anthropic.AuthenticationError) as claude:
            await ask_claude(gateways.anthropic_client(url, wrong))
        body: Any = claude.value.body
        assert body["type"] == "error"
        assert body["error"]["type"] == "authentication_error"
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        for path in ("/v1/models", "/metrics", "/v1/files"):
            response = await http.get(path)
            assert response.status_code == 401
        response = await http.post("/v1/messages", json={})
        assert response.json()["error"]["type"] == "authentication_error"
        response = await http.get("/healthz")
        assert response.status_code == 200
        other = {"authorization": f"Bearer {await gateways.create_key(scopes=('threads',))}"}
        response = await http.get("/v1/models", headers=other)
        assert response.status_code == 403
    assert len(gateways.provider.log) == 1
    await ask_chat(gateways.openai_client(url, valid_key))


async def test_refuses_every_key_while_the_store_is_unavailable(
    tmp_path: Path, gateways: Gateways
) -> None:
    other = open_store(tmp_path / "closed.db")
    await other.close()
    url = await gateways.start(authenticator=KeyAuthenticator(other))
    key = await gateways.create_key()
    with pytest.raises(openai.InternalServerError) as error:
        await ask_chat(gateways.openai_client(url, key))
    assert error.value.status_code == 503
    assert error.value.response.headers["retry-after"] == "1"
    assert not gateways.provider.log


async def ask_for_headers(gateways: Gateways, url: str, key: str, **options: Any) -> Any:
    """Ask Claude and return the answer with its headers."""
    client = gateways.anthropic_client(url, key)
    return await client.messages.with_raw_response.create(
        model=CLAUDE_MODEL,
        max_tokens=100,
        **options,
    )


async def talk_until_compacted(gateways: Gateways, url: str, key: str) -> tuple[str, list[Any]]:
    """Tell a secret and continue until the first compaction; return the thread and the history."""
    history: list[Any] = [{"role": "user", "content": SECRET}]
    for number in range(14):
        raw = await ask_for_headers(gateways, url, key, messages=history)
        [content] = (await raw.parse()).content
        history += [
            {"role": "assistant", "content": content.text},
            {"role": "user", "content": f"Entry {number}: {FILLER * 12}"},
        ]
        if int(raw.headers["x-everthread-compactions"]) >= 1:
            return raw.headers["x-everthread-thread"], history
    raise AssertionError("nothing was compacted")


async def test_tenants_never_see_each_others_threads(tmp_path: Path) -> None:
    async with open_gateways(tmp_path, window=6_000) as gateways:
        url = await gateways.start(settings="compression: {background: false}\n")
        anns_key = await gateways.create_key("ann")
        bobs_key = await gateways.create_key("bob")
        thread, history = await talk_until_compacted(gateways, url, anns_key)
        before = [message.body for message in await gateways.store.load_history(thread)]

        raw = await ask_for_headers(
            gateways,
            url,
            bobs_key,
            messages=history[:-1],
        )
        assert raw.headers["x-everthread-thread"] != thread, "the same words of another tenant"
        for name in (thread, thread[:8]):
            headers = {"x-everthread-session": name}
            raw = await ask_for_headers(
                gateways, url, bobs_key, messages=HELLO, extra_headers=headers
            )
            assert raw.headers["x-everthread-thread"] != thread
            sent = gateways.provider.log[-1].body
            assert "zebrafish" not in str(sent)
        second_key = await gateways.create_key("ann")
        headers = {"x-everthread-session": thread}
        raw = await ask_for_headers(
            gateways, url, second_key, messages=HELLO, extra_headers=headers
        )
        assert raw.headers["x-everthread-thread"] == thread, "the owner names the thread itself"
        after = [message.body for message in await gateways.store.load_history(thread)]
        assert after[: len(before)] == before
        for tenant in ("ann", "bob"):
            hits = await gateways.store.search(SearchQuery("zebrafish", tenant=tenant))
            assert hits
            for hit in hits:
                session = await gateways.store.load_session(hit.session)
                assert session.tenant == tenant
        assert not await gateways.store.search(SearchQuery("zebrafish", tenant="default"))


async def test_each_passed_through_credential_is_a_tenant(
    gateways: Gateways,
) -> None:
    urls = [await gateways.start("passthrough", key=None) for _ in range(2)]
    threads = []
    for credential in ("sk-ann-1", "sk-bob-2"):
        # The first one is forwarded unchanged.
        await ask_claude(gateways.anthropic_client(urls[0], credential))
        for url in urls:
            raw = await gateways.anthropic_client(
                url, credential
            ).messages.with_raw_response.create(model=CLAUDE_MODEL, max_tokens=100, messages=HELLO)
            threads.append(raw.headers["x-everthread-thread"])
            assert gateways.provider.log[-1].headers["authorization"] == f"Bearer {credential}"
    anns_threads, bobs_threads = threads[:2], threads[2:]
    assert anns_threads[0] == anns_threads[1], "both gateways know the credential"
    assert bobs_threads[0] == bobs_threads[1]
    assert anns_threads[0] != bobs_threads[0]
    tenants = {thread.first.tenant for thread in await gateways.store.list_threads()}
    assert len(tenants) == 2
    assert all(tenant.startswith("up_") for tenant in tenants)
    async with httpx2.AsyncClient(base_url=urls[0], timeout=60) as http:
        for headers in ({}, {"authorization": "Bearer"}, {"x-api-key": ""}):
            refused = await http.post("/v1/messages", json={}, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["type"] == "authentication_error"
    assert len(gateways.provider.log) == 6


async def test_without_authentication_sends_only_the_clients_credential(
    caplog: pytest.LogCaptureFixture, gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    url = await gateways.start("none", key=UPSTREAM_KEY)
    assert "lab" in caplog.text
    assert "api_key_env" in caplog.text
    await ask_chat(gateways.openai_client(url, "sk-theirs"))
    for path in ("/v1/files", "/v1/fine_tuning/jobs", "/v1/messages"):
        await http.post(
            f"{url}{path}",
            json={
                "model": CLAUDE_MODEL,
                "max_tokens": 9,
                "messages": HELLO,
            },
        )
    sent = [one.headers for one in gateways.provider.log]
    assert sent[0]["authorization"] == "Bearer sk-theirs"
    assert not [headers for headers in sent if UPSTREAM_KEY in str(headers)]
    assert UPSTREAM_KEY not in caplog.text


async def test_refuses_a_public_address_without_a_usable_key(gateways: Gateways) -> None:
    for mode, reason in (
        ("none", "without API keys"),
        ("keys", "everthread keys create"),
    ):
        with pytest.raises(InputError, match=reason):
            await gateways.start(mode, host="0.0.0.0")  # type: ignore[arg-type]  # noqa: S104  what is refused
    for host in ("::1", "localhost"):
        await gateways.start("none", host=host)
    with pytest.raises(InputError, match="api_key_env"):
        await gateways.start("passthrough")
    token = await gateways.create_key()
    revoked = token.split("_")[1]
    await gateways.store.keys.revoke_key(revoked)
    with pytest.raises(InputError, match="everthread keys create"):
        await gateways.start(host="0.0.0.0")  # noqa: S104
    key = await gateways.create_key()
    url = await gateways.start(host="0.0.0.0")  # noqa: S104  the rule is about it
    await ask_chat(gateways.openai_client(url.replace("0.0.0.0", "127.0.0.1"), key))  # noqa: S104
    await gateways.start("passthrough", key=None, host="0.0.0.0")  # noqa: S104


async def use_credential(gateways: Gateways, auth: Auth, key: str) -> list[str]:
    """Send requests of every outcome; return the answers that must not hold the credential.

    An upstream's refusal of the model is not one of them: it quotes the model, which is the key here.
    """
    upstream_key = UPSTREAM_KEY if auth == "keys" else None
    unreachable = Upstream("gone", "http://127.0.0.1:9", api_key=upstream_key)
    url = await gateways.start(auth, key=upstream_key)
    unreachable_url = await gateways.start(auth, upstreams=[unreachable])
    headers = {"x-api-key": key, "authorization": f"Bearer {key}"}
    message: Any = {
        "model": CLAUDE_MODEL,
        "max_tokens": 50,
        "messages": HELLO,
    }
    answers: list[httpx2.Response] = []
    async with httpx2.AsyncClient(timeout=120, headers=headers) as http:
        for root in (url, unreachable_url):
            answers.append(await http.post(f"{root}/v1/messages", json=message))
            await http.post(f"{root}/v1/messages", json={"model": key})
            answers.append(await http.post(f"{root}/v1/{CHAT_MODEL}", json={}))
        answers += [await http.post(f"{url}/v1/messages", json=message) for _ in range(5)]
        assert answers[-1].status_code == (429 if auth == "keys" else 200)
        answers.append(await http.get(f"{url}/metrics"))
    async with httpx2.AsyncClient(timeout=120) as http:
        almost = {"x-api-key": key.swapcase()}
        answers.append(await http.post(f"{url}/v1/messages", json=message, headers=almost))
    return [f"{answer.headers} {answer.text}" for answer in answers]


@pytest.mark.parametrize("auth", ["keys", "passthrough"])
async def test_stores_and_logs_no_credential(
    auth: Auth, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = "recognisable-credential-4711"
    with caplog.at_level(logging.DEBUG):
        async with open_gateways(tmp_path) as gateways:
            if auth == "keys":
                key = await gateways.create_key(tokens=10_000, requests=7)
            answers = await use_credential(gateways, auth, key)
            sent = [record.headers for record in gateways.provider.log]
    credential = UPSTREAM_KEY if auth == "keys" else key
    assert credential in [headers.get("x-api-key") for headers in sent]
    if auth == "keys":
        assert key not in str(sent)
    files = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    log_lines = [
        record.getMessage() for record in caplog.records if record.name.startswith("everthread")
    ]
    assert log_lines
    secret = key.split("_", 2)[-1]
    for text in (*answers, *log_lines):
        assert secret not in text
        assert UPSTREAM_KEY not in text
    assert secret.encode() not in files
    assert UPSTREAM_KEY.encode() not in files
    if auth == "keys":
        assert b"acme" in files


def test_refuses_invalid_key_properties() -> None:
    token, new = issue_key(tenant="acme", name="Ann's")
    assert token.startswith(f"et_{new.id}_")
    assert issue_key()[0] != issue_key()[0]
    assert token.split("_", 2)[2] not in repr(new)
    wrong: list[Any] = [
        {"scopes": ()},
        {"scopes": ("proxy", "root")},
        {"tenant": ""},
        {"tenant": "a b"},
        {"tenant": "x" * 101},
        {"name": "a\nb"},
        {"limits": KeyLimits(requests=-1)},
        {"limits": KeyLimits(dollars=Decimal("NaN"))},
        {"limits": replace(KeyLimits(), dollars=Decimal("Infinity"))},
    ]
    for properties in wrong:
        with pytest.raises(InputError):
            issue_key(**properties)


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("https://api.openai.com/v1", "OPENAI_API_KEY"),
        ("https://api.anthropic.com", "ANTHROPIC_API_KEY"),
        ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
        ("https://other.example/v1", None),
        ("https://notopenai.com/v1", None),
        ("http://vllm:8000", ""),
        ("http://10.0.0.7:8000", ""),
        ("http://127.0.0.1:8000", ""),
    ],
)
def test_requires_an_upstream_key_when_clients_use_ours(
    url: str, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider's own variable is the default, and goes to that provider only."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    config = parse_config(f"gateway: {{auth: keys, upstreams: [{{name: one, url: '{url}'}}]}}")
    (upstream,) = list_upstreams(config)
    assert upstream.api_key is None
    if variable == "":
        assert add_own_key(upstream).api_key is None
        return
    with pytest.raises(ConfigError, match="api_key_env"):
        add_own_key(upstream)
    monkeypatch.setenv(variable or "OPENAI_API_KEY", "sk-usual")
    if variable is not None:
        assert add_own_key(upstream).api_key == "sk-usual"
    else:
        with pytest.raises(ConfigError, match="api_key_env"):
            add_own_key(upstream)


async def test_a_busy_event_loop_does_not_count_as_an_unavailable_store(
    tmp_path: Path,
) -> None:
    """The store's answer is used though the loop read it after the time limit of one second."""
    store = open_store(tmp_path / "s.db")
    token, new = issue_key()
    await store.keys.create_key(new)
    request = asyncio.create_task(
        KeyAuthenticator(store).authenticate({"authorization": f"Bearer {token}"})
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    time.sleep(1.2)  # noqa: ASYNC251 - the loop is busy
    assert (await request).key_id == new.id
    await store.close()
