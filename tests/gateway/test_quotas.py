"""What keys may use in a day, over real HTTP and with a store that fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.types import Request
from everthread.errors import StoreError, SummaryError
from everthread.gateway.access.authentication import KeyAuthenticator
from everthread.gateway.access.key_creation import issue_key
from everthread.gateway.access.quotas import (
    KeyUsageCounter,
    make_spending_check,
    utc_day,
)
from everthread.gateway.contracts import Mode
from everthread.gateway.error_answers import Refused
from everthread.gateway.router import Upstream
from everthread.store.key_records import KeyLimits, KeyUse
from everthread.store.store import Store
from tests.gateway.gateway_setup import (
    CHAT,
    FILLER,
    HELLO,
    MIDNIGHT,
    UPSTREAM_KEY,
    Clock,
    GatewaySetup,
    ask_chat,
    ask_claude,
    open_setup,
)
from tests.gateway.raw_http import (
    JSON,
    RawMessage,
    encode_chunk,
    post_request,
    raw_upstream,
    response_head,
    send_bytes,
    whole_answer,
)


async def test_all_gateways_count_the_requests_of_a_day_together(
    gateways: GatewaySetup,
) -> None:
    wall_clock = Clock()
    doors = [
        KeyAuthenticator(
            gateways.store,
            usage_counter=KeyUsageCounter(gateways.store, wall_clock=wall_clock),
            ttl=0,
        )
        for _ in range(2)
    ]
    key = await gateways.key(requests=4)
    free = await gateways.key()
    urls = [await gateways.start(authenticator=door) for door in doors]
    for url in urls * 2:
        await ask_chat(gateways.chat(url, key))
        for door in doors:
            await door.close()  # the counted use is written
    for url in urls:
        with pytest.raises(openai.RateLimitError) as chat:
            await ask_chat(gateways.chat(url, key))
        assert chat.value.code == "requests_per_day_exceeded"
        assert "4 of 4 requests" in chat.value.message
        assert chat.value.response.headers["retry-after"] == "400"
    with pytest.raises(anthropic.RateLimitError) as claude:
        await ask_claude(gateways.claude(urls[0], key))
    body: Any = claude.value.body
    assert body["error"]["type"] == "rate_limit_error"
    await ask_chat(gateways.chat(urls[0], free))
    assert len(gateways.provider.log) == 5
    wall_clock.now = MIDNIGHT + 86_400
    await ask_chat(gateways.chat(urls[0], key))
    await doors[0].close()
    days = [
        await gateways.store.list_keys(day, tenant="acme")
        for day in ("2024-10-04", "2024-10-05")
    ]
    limited = [next(one for one in day if one.key.limits.requests) for day in days]
    assert [one.use_of_day.requests for one in limited] == [4, 1]


async def test_a_burst_of_requests_stays_within_the_limit(
    gateways: GatewaySetup,
) -> None:
    url = await gateways.start()
    key = await gateways.key(requests=10)
    client = gateways.chat(url, key)
    answers = await asyncio.gather(
        *(ask_chat(client) for _ in range(30)), return_exceptions=True
    )
    assert sum(isinstance(answer, openai.RateLimitError) for answer in answers) == 20
    assert len(gateways.provider.log) == 10


@pytest.mark.parametrize(
    ("mode", "limit"),
    [
        ("managed", {"tokens": 30}),
        ("observe", {"tokens": 30}),
        ("off", {"dollars": Decimal("0.00003")}),
    ],
)
async def test_limits_the_tokens_and_dollars_of_a_day(
    mode: Mode, limit: dict[str, Any], gateways: GatewaySetup
) -> None:
    url = await gateways.start()
    key = await gateways.key(mode=mode, **limit)
    client = gateways.chat(url, key)
    long: Any = [{"role": "user", "content": FILLER * 3}]
    async for _ in await ask_chat(client, long, stream=True):
        pass
    with pytest.raises(openai.RateLimitError) as told:
        await ask_chat(client)
    (what,) = limit
    assert told.value.code == f"{what}_per_day_exceeded"
    assert 0 < int(told.value.response.headers["retry-after"]) <= 86_400
    assert len(gateways.provider.log) == 1


async def test_charges_a_key_the_reported_usage_including_summaries(
    tmp_path: Path,
) -> None:
    async with (
        open_setup(tmp_path, window=6_000) as gateways,
        AsyncExitStack() as serving,
    ):
        writer = f"{{provider: custom, base_url: '{gateways.provider.url}/v1', model: {CHAT}}}"
        settings = f"auxiliary: {{compression: {writer}}}\ncompression: {{economics: false, background: false}}"
        url = await replace(gateways, stack=serving).start(settings=settings)
        client = gateways.claude(url, await gateways.key(tokens=10**9))
        history = list(HELLO)
        for number in range(12):
            said = await ask_claude(client, history)
            history += [
                {"role": "assistant", "content": said.content[0].text},
                {"role": "user", "content": f"Entry {number}: {FILLER * 12}"},
            ]
        await serving.aclose()
        reported = [
            normalize_usage(one.usage, api=one.api).total_tokens
            for one in gateways.provider.log
            if one.usage
        ]
        assert {one.api for one in gateways.provider.log} == {
            "anthropic",
            "openai_chat",
        }, "summaries were written"
        (key,) = await gateways.store.list_keys(utc_day(time.time()))
        assert (key.use_of_day.requests, key.use_of_day.tokens) == (12, sum(reported))
        assert key.use_of_day.dollars > 0


async def test_pays_for_summaries_only_of_accepted_credentials(
    tmp_path: Path,
) -> None:
    """The first prompt of an unknown credential is too long: the journal shortens it, and no model is paid for that."""
    async with (
        open_setup(tmp_path, window=6_000) as gateways,
        AsyncExitStack() as serving,
    ):
        writer = f"{{provider: custom, base_url: '{gateways.provider.url}/v1', model: {CHAT}}}"
        settings = f"auxiliary: {{compression: {writer}}}\ncompression: {{economics: false, background: false}}"
        known = [Upstream("lab", gateways.provider.url)]
        url = await replace(gateways, stack=serving).start(
            "passthrough", upstreams=known, settings=settings
        )
        client = gateways.claude(url, "sk-ant-unknown")
        history = list(HELLO)
        for number in range(14):
            history += [
                {"role": "assistant", "content": "Noted."},
                {"role": "user", "content": f"Entry {number}: {FILLER * 24}"},
            ]
        await ask_claude(client, history)
        assert [one.status for one in gateways.provider.log] == [400, 200]
        assert {one.api for one in gateways.provider.log} == {"anthropic"}, (
            "no summary was paid"
        )
        for number in range(14):
            history += [
                {"role": "assistant", "content": "Noted."},
                {"role": "user", "content": f"Later {number}: {FILLER * 24}"},
            ]
        await ask_claude(client, history)
        assert "openai_chat" in {one.api for one in gateways.provider.log}, "now one is"


async def test_writes_no_summary_beyond_a_key_s_limits(
    gateways: GatewaySetup,
) -> None:
    token = await gateways.key(tokens=1_000, dollars=Decimal("0.01"))
    caller = await KeyAuthenticator(gateways.store).authenticate({"x-api-key": token})
    await caller.authorize(CanonicalUsage(900), CHAT)
    await caller.authorize(CanonicalUsage(900), CHAT)
    with pytest.raises(Refused, match="tokens"):
        await caller.authorize(CanonicalUsage(1_001), CHAT)
    with pytest.raises(Refused, match=r"\$0"):
        await caller.authorize(CanonicalUsage(0, 1_000), "claude-opus-4-1")
    permit = make_spending_check(caller.authorize)
    await permit(Request(CHAT, [{"role": "user", "content": "x" * 3_000}]))
    with pytest.raises(SummaryError, match="of 1,000 tokens"):
        await permit(
            Request(
                CHAT,
                [{"role": "user", "content": "x" * 3_000}],
                params={"max_tokens": 300},
            )
        )


async def test_charges_broken_streams_and_other_endpoints(
    gateways: GatewaySetup,
) -> None:
    async def answer(request: RawMessage, writer: asyncio.StreamWriter) -> None:
        if b"embeddings" in request.line:
            await whole_answer(
                200,
                JSON,
                b'{"data": [], "usage": {"prompt_tokens": 70, "total_tokens": 70}}',
            )(request, writer)
            return
        event = b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n' % (
            b"word " * 80
        )
        kind = [
            (b"content-type", b"text/event-stream"),
            (b"transfer-encoding", b"chunked"),
        ]
        writer.write(response_head(200, kind) + encode_chunk(event))
        await writer.drain()
        writer.close()

    async with raw_upstream(answer) as upstream:
        url = await gateways.start(
            upstreams=[Upstream("raw", upstream.url, api_key=UPSTREAM_KEY)]
        )
        for path, tokens in (("/v1/chat/completions", 100), ("/v1/embeddings", 70)):
            token = await gateways.key(path[4:8], tokens=tokens)
            body = b'{"model": "gpt-4o", "stream": true, "messages": [{"role": "user", "content": "Go"}]}'
            request = post_request(
                path, body, (b"Authorization", b"Bearer " + token.encode())
            )
            with contextlib.suppress(ValueError):  # broken off as the upstream's was
                assert (await send_bytes(url, request)).status == 200
            assert (await send_bytes(url, request)).status == 429


_USAGE = b'"usage": {"prompt_tokens": 70, "total_tokens": 70}'


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (
            b"text/event-stream",
            b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [], %b}\n\n'
            % _USAGE,
        ),
        (
            b"text/event-stream",
            b'data: {"type": "response.completed", "response": {%b}}\n\n' % _USAGE,
        ),
        (b"text/event-stream", b'data: {"choices": [{"text": "a"}]}\n\n' * 70),
        (b"application/json", b'{"data": ["%b"], %b}' % (b"x" * 9_000_000, _USAGE)),
        (
            b"application/json",
            b'{"data": [{"usage": 1}, "%b"], %b, "object": "list"}'
            % (b"x" * 9_000_000, _USAGE),
        ),
    ],
)
async def test_charges_streams_and_long_answers_of_other_endpoints(
    kind: bytes, answer: bytes, gateways: GatewaySetup
) -> None:
    """The evasion: streamed completions, and embeddings of more than eight megabytes, cost nothing."""
    headers = [(b"content-type", kind)]
    async with raw_upstream(whole_answer(200, headers, answer)) as upstream:
        url = await gateways.start(
            upstreams=[Upstream("raw", upstream.url, api_key=UPSTREAM_KEY)]
        )
        token = await gateways.key(tokens=70)
        request = post_request(
            "/v1/completions",
            b'{"prompt": "Go"}',
            (b"Authorization", b"Bearer " + token.encode()),
        )
        assert [(await send_bytes(url, request)).status for _ in range(2)] == [200, 429]


async def test_a_trailing_slash_evades_no_limit(gateways: GatewaySetup) -> None:
    """Some upstreams take it, so it is the conversation that it is there: read, stored and charged."""
    answer = b'{"model": "gpt-4o", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Gone."}}]}'
    async with raw_upstream(whole_answer(200, JSON, answer)) as upstream:
        url = await gateways.start(
            upstreams=[Upstream("raw", upstream.url, api_key=UPSTREAM_KEY)]
        )
        token = await gateways.key(tokens=1)
        body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "Go"}]}'
        request = post_request(
            "/v1/chat/completions/",
            body,
            (b"Authorization", b"Bearer " + token.encode()),
        )
        heard = [await send_bytes(url, request) for _ in range(2)]
    assert [one.status for one in heard] == [200, 429]
    assert heard[0].names["x-everthread-thread"]


class FailingStore:
    """A store that takes nothing while it is down."""

    def __init__(self) -> None:
        self.down = True
        self.days: dict[str, KeyUse] = {}

    async def count_use(
        self, day: str, uses: Mapping[str, KeyUse]
    ) -> dict[str, KeyUse]:
        await asyncio.sleep(0)
        if self.down:
            raise StoreError("the disk is gone")
        for use in uses.values():
            self.days[day] = self.days.get(day, KeyUse()) + use
        return dict.fromkeys(uses, self.days[day])


async def test_keeps_counts_and_limits_while_the_store_is_down() -> None:
    store = FailingStore()
    wall_clock = Clock()
    ledger = KeyUsageCounter(cast("Store", store), wall_clock=wall_clock)
    _, key = issue_key(limits=KeyLimits(requests=3, tokens=100))
    for _ in range(3):
        ledger.admit(key)
    with pytest.raises(Refused, match="3 of 3 requests"):
        ledger.admit(key)
    await ledger.close()
    assert not store.days
    wall_clock.now = MIDNIGHT + 86_400
    ledger.admit(key)
    ledger.spend(key, CanonicalUsage(input_tokens=99, output_tokens=1), "gpt-4o")
    with pytest.raises(Refused, match="100 of 100 tokens"):
        ledger.admit(key)
    store.down = False
    await ledger.close()
    assert {day: (use.requests, use.tokens) for day, use in store.days.items()} == {
        "2024-10-04": (3, 0),
        "2024-10-05": (1, 100),
    }
