"""What keys may use in a day, over real HTTP and with a store that fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import anthropic
import openai
import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.types import ModelRequest
from everthread.core.utc_days import format_utc_day
from everthread.errors import StoreError, SummaryError
from everthread.gateway.access.authentication import KeyAuthenticator
from everthread.gateway.access.key_creation import issue_key
from everthread.gateway.access.quotas import (
    KeyUsageCounter,
    make_spending_check,
)
from everthread.gateway.contracts import Mode
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.router import Upstream
from everthread.lab.provider import Provider
from everthread.store.key_records import KeyLimits, KeyUse
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.gateway.gateway_setup import (
    CHAT_MODEL,
    FILLER,
    HELLO,
    LATE_EVENING,
    MIDNIGHT,
    UPSTREAM_KEY,
    Gateways,
    ask_chat,
    ask_claude,
    open_gateways,
)
from tests.gateway.manager_setup import statuses_of
from tests.gateway.raw_http import (
    JSON,
    STREAM,
    RawMessage,
    WriteAnswer,
    encode_chunk,
    fixed_answer,
    open_raw_upstream,
    post_request,
    response_head,
    send_bytes,
)


async def test_all_gateways_count_the_requests_of_a_day_together(
    gateways: Gateways,
) -> None:
    store = gateways.store
    wall_clock = SteppedClock(LATE_EVENING)
    authenticators = []
    for _ in range(2):
        counter = KeyUsageCounter(store, wall_clock=wall_clock)
        authenticators.append(KeyAuthenticator(store, usage_counter=counter, cache_seconds=0))
    key = await gateways.create_key(requests=4)
    urls = [await gateways.start(authenticator=one) for one in authenticators]
    for url in urls * 2:
        await ask_chat(gateways.openai_client(url, key))
        for authenticator in authenticators:
            await authenticator.close()  # the counted use is written
    for url in urls:
        with pytest.raises(openai.RateLimitError) as refused:
            await ask_chat(gateways.openai_client(url, key))
        assert refused.value.code == "requests_per_day_exceeded"
        assert "4 of 4 requests" in refused.value.message
        assert refused.value.response.headers["retry-after"] == "400"
    with pytest.raises(anthropic.RateLimitError) as claude:
        await ask_claude(gateways.anthropic_client(urls[0], key))
    body: Any = claude.value.body
    assert body["error"]["type"] == "rate_limit_error"
    await ask_chat(gateways.openai_client(urls[0], await gateways.create_key()))
    assert len(gateways.provider.log) == 5, "another key is not limited"
    wall_clock.now = MIDNIGHT + 86_400
    await ask_chat(gateways.openai_client(urls[0], key))
    await authenticators[0].close()
    uses = []
    for day in ("2024-10-04", "2024-10-05"):
        keys = await store.keys.list_keys(day, tenant="acme")
        uses += [one.use_of_day.requests for one in keys if one.key.limits.requests]
    assert uses == [4, 1]


async def test_a_burst_of_requests_stays_within_the_limit(
    gateways: Gateways,
) -> None:
    url = await gateways.start()
    key = await gateways.create_key(requests=10)
    client = gateways.openai_client(url, key)
    answers = await asyncio.gather(*(ask_chat(client) for _ in range(30)), return_exceptions=True)
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
    mode: Mode, limit: dict[str, Any], gateways: Gateways
) -> None:
    url = await gateways.start()
    key = await gateways.create_key(mode=mode, **limit)
    client = gateways.openai_client(url, key)
    long: Any = [{"role": "user", "content": FILLER * 3}]
    async for _ in await ask_chat(client, long, stream=True):
        pass
    with pytest.raises(openai.RateLimitError) as refused:
        await ask_chat(client)
    (name,) = limit
    assert refused.value.code == f"{name}_per_day_exceeded"
    assert 0 < int(refused.value.response.headers["retry-after"]) <= 86_400
    assert len(gateways.provider.log) == 1


def write_summaries(provider: Provider) -> str:
    """Return settings with which a chat model of the provider writes the summaries."""
    model = f"{{provider: custom, base_url: '{provider.url}/v1', model: {CHAT_MODEL}}}"
    return (
        f"auxiliary: {{compression: {model}}}\ncompression: {{economics: false, background: false}}"
    )


def count_protocols(gateways: Gateways) -> Counter[str]:
    """Count the requests to the provider: those for summaries are `openai_chat`."""
    return Counter(record.api for record in gateways.provider.log)


async def test_charges_a_key_the_reported_usage_including_summaries(
    tmp_path: Path,
) -> None:
    async with (
        open_gateways(tmp_path, window=6_000) as gateways,
        AsyncExitStack() as serving,
    ):
        settings = write_summaries(gateways.provider)
        url = await replace(gateways, exit_stack=serving).start(settings=settings)
        client = gateways.anthropic_client(url, await gateways.create_key(tokens=10**9))
        history = list(HELLO)
        for number in range(12):
            answer = await ask_claude(client, history)
            history.append({"role": "assistant", "content": answer.content[0].text})
            history.append(make_entry(number, 12))
        await serving.aclose()
        reported = [
            normalize_usage(record.usage, api=record.api).total_tokens
            for record in gateways.provider.log
            if record.usage
        ]
        assert count_protocols(gateways)["openai_chat"], "summaries were written"
        (key,) = await gateways.store.keys.list_keys(format_utc_day(time.time()))
        assert key.use_of_day.requests == 12
        assert key.use_of_day.tokens == sum(reported)
        assert key.use_of_day.dollars > 0


def make_entry(number: int, repeats: int) -> dict[str, str]:
    return {"role": "user", "content": f"Entry {number}: {FILLER * repeats}"}


def add_entries(history: list[Any], numbers: range) -> None:
    for number in numbers:
        history.append({"role": "assistant", "content": "Noted."})
        history.append(make_entry(number, 24))


async def test_pays_for_summaries_only_of_accepted_credentials(tmp_path: Path) -> None:
    """The first prompt of an unknown credential is too long: the journal shortens it, and no model is paid for that."""
    async with open_gateways(tmp_path, window=6_000) as gateways:
        url = await gateways.start(
            "passthrough", key=None, settings=write_summaries(gateways.provider)
        )
        client = gateways.anthropic_client(url, "sk-ant-unknown")
        history = list(HELLO)
        add_entries(history, range(14))
        await ask_claude(client, history)
        assert statuses_of(gateways.provider) == [400, 200]
        assert count_protocols(gateways) == {"anthropic": 2}, "no summary was paid"
        add_entries(history, range(14, 28))
        await ask_claude(client, history)
        assert count_protocols(gateways)["openai_chat"], "now one is"


async def test_writes_no_summary_beyond_the_limits_of_a_key(gateways: Gateways) -> None:
    token = await gateways.create_key(tokens=1_000, dollars=Decimal("0.01"))
    caller = await KeyAuthenticator(gateways.store).authenticate({"x-api-key": token})
    await caller.authorize(CanonicalUsage(900), CHAT_MODEL)
    await caller.authorize(CanonicalUsage(900), CHAT_MODEL)
    with pytest.raises(RequestRefused, match="tokens"):
        await caller.authorize(CanonicalUsage(1_001), CHAT_MODEL)
    with pytest.raises(RequestRefused, match=r"\$0"):
        await caller.authorize(CanonicalUsage(0, 1_000), "claude-opus-4-1")
    check_spending = make_spending_check(caller.authorize)
    request = ModelRequest(CHAT_MODEL, [{"role": "user", "content": "x" * 3_000}])
    await check_spending(request)
    with pytest.raises(SummaryError, match="of 1,000 tokens"):
        await check_spending(replace(request, params={"max_tokens": 300}))


@dataclass
class ChargedRequests:
    """Requests through a gateway before an upstream that gives one answer."""

    gateways: Gateways
    url: str

    async def send_twice(self, path: str, body: bytes, tokens: int) -> list[RawMessage]:
        """Send a request with a new key of this allowance, and send it again."""
        key = await self.gateways.create_key(f"tenant-{tokens}", tokens=tokens)
        credential = (b"Authorization", b"Bearer " + key.encode())
        request = post_request(path, body, credential)
        answers = []
        for _ in range(2):
            with contextlib.suppress(ValueError):  # broken off as the upstream's was
                answers.append(await send_bytes(self.url, request))
        return answers


@asynccontextmanager
async def charge_requests(
    gateways: Gateways, answer: WriteAnswer
) -> AsyncIterator[ChargedRequests]:
    async with open_raw_upstream(answer) as upstream:
        upstreams = [Upstream("raw", upstream.url, api_key=UPSTREAM_KEY)]
        yield ChargedRequests(gateways, await gateways.start(upstreams=upstreams))


async def break_off(_request: RawMessage, writer: asyncio.StreamWriter) -> None:
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "%b"}}]}\n\n'
    writer.write(response_head(200, STREAM))
    writer.write(encode_chunk(event % (b"word " * 80)))
    await writer.drain()
    writer.close()


async def test_charges_a_stream_that_breaks_off(gateways: Gateways) -> None:
    body = b'{"model": "gpt-4o", "stream": true, "messages": [{"role": "user", "content": "Go"}]}'
    async with charge_requests(gateways, break_off) as charged:
        [refused] = await charged.send_twice("/v1/chat/completions", body, 100)
    assert refused.status == 429


_USAGE = b'"usage": {"prompt_tokens": 70, "total_tokens": 70}'


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (
            b"text/event-stream",
            b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [], %b}\n\n' % _USAGE,
        ),
        (
            b"text/event-stream",
            b'data: {"type": "response.completed", "response": {%b}}\n\n' % _USAGE,
        ),
        (b"text/event-stream", b'data: {"choices": [{"text": "a"}]}\n\n' * 70),
        (b"application/json", b'{"data": [], %b}' % _USAGE),
        (b"application/json", b'{"data": ["%b"], %b}' % (b"x" * 9_000_000, _USAGE)),
        (
            b"application/json",
            b'{"data": [{"usage": 1}, "%b"], %b, "object": "list"}' % (b"x" * 9_000_000, _USAGE),
        ),
    ],
)
async def test_charges_streams_and_long_answers_of_other_endpoints(
    kind: bytes, answer: bytes, gateways: Gateways
) -> None:
    """Streamed completions and embeddings of more than eight megabytes are charged as well."""
    relayed = fixed_answer(200, [(b"content-type", kind)], answer)
    async with charge_requests(gateways, relayed) as charged:
        answers = await charged.send_twice("/v1/completions", b'{"prompt": "Go"}', 70)
    statuses = [one.status for one in answers]
    assert statuses == [200, 429]


async def test_a_trailing_slash_evades_no_limit(gateways: Gateways) -> None:
    """Some upstreams accept it and answer the conversation, so it is read, stored and charged."""
    answer = b'{"model": "gpt-4o", "choices": [{"index": 0, "message": {"role": "assistant", "content": "Gone."}}]}'
    body = b'{"model": "gpt-4o", "messages": [{"role": "user", "content": "Go"}]}'
    async with charge_requests(gateways, fixed_answer(200, JSON, answer)) as charged:
        answers = await charged.send_twice("/v1/chat/completions/", body, 1)
    statuses = [one.status for one in answers]
    assert statuses == [200, 429]
    assert answers[0].header_values["x-everthread-thread"]


class UnavailableStore:
    """A store that takes nothing while it is down; its own `keys`."""

    def __init__(self) -> None:
        self.down = True
        self.days: dict[str, KeyUse] = {}
        self.keys = self

    async def add_use(self, day: str, uses: Mapping[str, KeyUse]) -> dict[str, KeyUse]:
        await asyncio.sleep(0)
        if self.down:
            raise StoreError("the disk is gone")
        for use in uses.values():
            self.days[day] = self.days.get(day, KeyUse()) + use
        return dict.fromkeys(uses, self.days[day])


async def test_keeps_counts_and_limits_while_the_store_is_down() -> None:
    store = UnavailableStore()
    wall_clock = SteppedClock(LATE_EVENING)
    counter = KeyUsageCounter(cast("Store", store), wall_clock=wall_clock)
    _, key = issue_key(limits=KeyLimits(requests=3, tokens=100))
    for _ in range(3):
        counter.admit(key)
    with pytest.raises(RequestRefused, match="3 of 3 requests"):
        counter.admit(key)
    await counter.close()
    assert not store.days
    wall_clock.now = MIDNIGHT + 86_400
    counter.admit(key)
    counter.spend(key, CanonicalUsage(input_tokens=99, output_tokens=1), "gpt-4o")
    with pytest.raises(RequestRefused, match="100 of 100 tokens"):
        counter.admit(key)
    store.down = False
    await counter.close()
    assert {day: (use.requests, use.tokens) for day, use in store.days.items()} == {
        "2024-10-04": (3, 0),
        "2024-10-05": (1, 100),
    }
