"""Faults on demand, as the official clients see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from everthread import classify_error, normalize_usage
from everthread.core.types import Api
from everthread.errors import InputError
from everthread.lab.provider import Fault, Provider
from everthread.lab.provider.faults import (
    ANSWERED_FAULTS,
    FAULT_KINDS,
    FaultKind,
    FaultPlan,
    parse_fault,
)
from everthread.lab.provider.script import Step
from tests.apis import APIS
from tests.lab.official_clients import GPT, open_clients

REFUSED = (openai.APIStatusError, anthropic.APIStatusError)
BROKEN = (
    openai.APIConnectionError,
    anthropic.APIConnectionError,
    openai.APIError,
    anthropic.APIError,
)
WORDS = "one two three four five " * 20
LATE = (openai.APITimeoutError, anthropic.APITimeoutError)


@pytest.mark.parametrize(
    ("kind", "status", "verdict"),
    [
        ("rate_limit", 429, "rate_limit"),
        ("server_error", 500, "other"),
        ("overflow", 400, "prompt_too_long"),
        ("payload_too_large", 413, "payload_too_large"),
    ],
)
@pytest.mark.parametrize("api", APIS)
async def test_raises_the_clients_own_error_once(
    api: Api, kind: FaultKind, status: int, verdict: str
) -> None:
    provider = Provider(script=[Fault(kind, retry_after=7), "Fine again."])
    async with open_clients(provider) as clients:
        with pytest.raises(REFUSED) as caught:
            await clients.ask(api)
        assert await clients.ask(api) == "Fine again."
    error: Any = caught.value
    assert error.status_code == status
    assert classify_error(error).kind == verdict
    assert [record.fault for record in provider.log] == [kind, ""]
    assert [record.status for record in provider.log] == [status, 200]
    if kind == "rate_limit":
        assert error.response.headers["retry-after"] == "7"


async def test_an_overloaded_provider_is_not_an_overflow() -> None:
    async with open_clients(Provider(script=[Fault("overloaded")])) as clients:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await clients.ask("anthropic")
    error: Any = caught.value
    assert error.status_code == 529
    assert error.body["error"]["type"] == "overloaded_error"
    assert classify_error(error).kind in ("other", "rate_limit")


async def test_a_retrying_client_gets_its_answer() -> None:
    script: list[Step] = [
        Fault("rate_limit", retry_after=0.01),
        Fault("server_error", retry_after=0.01),
        "At last.",
    ]
    async with open_clients(Provider(script=script)) as clients:
        patient = clients.openai.with_options(max_retries=2)
        messages: Any = [{"role": "user", "content": "Hi"}]
        assert (
            (await patient.chat.completions.create(model=GPT, messages=messages))
            .choices[0]
            .message.content
        ) == "At last."


@pytest.mark.parametrize("api", APIS)
async def test_hangs_until_the_client_disconnects(api: Api) -> None:
    async with open_clients(Provider(script=[Fault("hang")]), patience=0.1) as clients:
        with pytest.raises(LATE):
            await clients.ask(api)
        [record] = clients.provider.log
        assert record.status is None
        await _until(lambda: bool(record.events))
        assert record.events == ["gone"]


async def test_closes_while_an_answer_hangs() -> None:
    provider = Provider(script=[Fault("hang", seconds=3600)])
    async with provider:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(provider.url.rpartition(":")[2])
        )
        body = json.dumps({"model": GPT, "messages": [{"role": "user", "content": "Hi"}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: lab\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await _until(lambda: bool(provider.log))
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_resets_a_hanging_connection_after_its_time() -> None:
    provider = Provider(script=[Fault("hang", seconds=0.01)])
    async with open_clients(provider) as clients:
        with pytest.raises(openai.APIConnectionError):
            await clients.ask("openai_chat")
    assert provider.log[0].events == ["reset"]


@pytest.mark.parametrize("stream", [False, True])
async def test_sends_a_delayed_answer(stream: bool) -> None:
    async with open_clients(
        Provider(script=[Fault("delay", reply="Late.", seconds=0.01)])
    ) as clients:
        assert (await clients.ask("openai_chat", stream=stream)) == "Late."


@pytest.mark.parametrize("kind", sorted(ANSWERED_FAULTS))
async def test_echoes_if_a_fault_with_an_answer_has_no_reply(
    kind: FaultKind,
) -> None:
    async with open_clients(Provider(script=[Fault(kind, seconds=0.01)])) as clients:
        answer = await clients.ask("openai_chat")
    assert answer.startswith("You said: "), "and not with the words of an answer that is cut off"


@pytest.mark.parametrize("api", APIS)
async def test_records_a_client_that_leaves_a_slow_stream(api: Api) -> None:
    provider = Provider(
        script=[
            Fault("slow", reply=WORDS, seconds=0.005),
            Fault("slow", reply=WORDS, seconds=600),
        ]
    )

    async with open_clients(provider) as clients:
        assert await clients.ask(api, stream=True) == WORDS
        with pytest.raises((*LATE, httpx2.TimeoutException, asyncio.TimeoutError)):
            await asyncio.wait_for(clients.ask(api, stream=True), 0.1)
        await _until(lambda: bool(provider.log[1].events))
    assert [record.events for record in provider.log] == [[], ["gone"]]


@pytest.mark.parametrize("api", APIS)
async def test_a_broken_answer_without_a_stream_raises(api: Api) -> None:
    """The clients may say that the connection failed, or stumble over half a JSON."""

    provider = Provider(script=[Fault("reset"), Fault("truncated")])
    async with open_clients(provider) as clients:
        for _ in range(2):
            with pytest.raises((*BROKEN, json.JSONDecodeError)):
                await clients.ask(api)
    assert [record.events for record in provider.log] == [["reset"], ["cut"]]


@pytest.mark.parametrize("kind", ["reset", "truncated"])
@pytest.mark.parametrize("api", APIS)
async def test_a_broken_stream_ends_after_some_words(api: Api, kind: FaultKind) -> None:
    provider = Provider(script=[Fault(kind, after=8, reply=WORDS)])
    pieces: list[str] = []
    is_interrupted = False
    async with open_clients(provider) as clients:
        try:
            await clients.read_stream(api, pieces)
        except (*BROKEN, httpx2.TransportError):
            is_interrupted = True
    assert is_interrupted or kind == "truncated"
    received = "".join(pieces)
    assert received
    assert received != WORDS
    assert WORDS.startswith(received)


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("stream_overflow", "prompt_too_long"), ("stream_error", "other")],
)
@pytest.mark.parametrize("api", APIS)
async def test_an_error_may_come_in_a_stream_with_status_200(
    api: Api, kind: FaultKind, verdict: str
) -> None:
    provider = Provider(script=[Fault(kind, after=8, reply=WORDS)])
    pieces: list[str] = []
    async with open_clients(provider) as clients:
        with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
            await clients.read_stream(api, pieces)
    assert pieces
    assert classify_error(caught.value).kind == verdict
    assert provider.log[0].status == 200
    assert provider.log[0].error


@pytest.mark.parametrize(("kind", "status"), [("stream_overflow", 400), ("stream_error", 500)])
async def test_an_error_meant_for_a_stream_refuses_a_request_without_one(
    kind: FaultKind, status: int
) -> None:
    async with open_clients(Provider(script=[Fault(kind)])) as clients:
        with pytest.raises(openai.APIStatusError) as caught:
            await clients.ask("openai_chat")
    assert caught.value.status_code == status


@pytest.mark.parametrize(
    ("api", "field"),
    [
        ("openai_chat", "choices"),
        ("openai_responses", "output"),
        ("anthropic", "content"),
    ],
)
async def test_an_empty_answer_has_no_content(api: Api, field: str) -> None:
    async with open_clients(Provider(script=[Fault("empty")] * 2)) as clients:
        assert await clients.ask(api, stream=True) == ""
        assert getattr(await clients.request(api), field) == []


@pytest.mark.parametrize("api", APIS)
async def test_reports_missing_wrong_or_huge_usage(api: Api) -> None:
    script = [
        Fault("no_usage", reply="A."),
        Fault("wrong_usage", reply="B.", tokens=500),
        Fault("huge_reasoning", reply="C.", tokens=90_000),
    ]
    provider = Provider(script=script)

    async with open_clients(provider) as clients:
        assert ([await clients.ask(api) for _ in script]) == ["A.", "B.", "C."]
    missing, wrong, huge = provider.log
    assert missing.usage is None
    assert wrong.usage
    assert min(_numbers(wrong.usage)) < 0
    assert wrong.canonical_usage.output_tokens >= 0
    assert normalize_usage(huge.usage).output_tokens > 90_000
    assert missing.prompt_tokens == wrong.prompt_tokens > 0


class TestPlan:
    def test_repeats_its_faults_with_the_same_seed(self) -> None:
        def fate(seed: int) -> list[Fault | None]:
            plan = FaultPlan({"rate_limit": 0.2, "reset": 0.2}, seed=seed)
            return [plan.next() for _ in range(200)]

        assert fate(1) == fate(1) != fate(2)
        kinds = [fault.kind if fault else None for fault in fate(1)]
        assert {kind: 20 <= kinds.count(kind) <= 60 for kind in ("rate_limit", "reset")} == {
            "rate_limit": True,
            "reset": True,
        }

    async def test_faults_without_an_answer_do_not_consume_the_script(self) -> None:
        script = [f"Answer {number}." for number in range(8)]
        rates: Any = {"rate_limit": 0.3, "server_error": 0.2, "delay": 0.2}

        provider = Provider(script=script, faults=FaultPlan(rates, seed=3, seconds=0.001))
        async with open_clients(provider) as clients:
            answers: list[str] = []
            while len(answers) < len(script):
                try:
                    answers.append(await clients.ask("openai_chat"))
                except openai.APIStatusError:
                    continue
            assert answers == script
        assert {record.fault for record in provider.log} == {
            "",
            "rate_limit",
            "server_error",
            "delay",
        }

    def test_refuses_invalid_rates_and_kinds(self) -> None:
        nonsense: Any = "bad luck"
        with pytest.raises(InputError, match="from 0 to 1"):
            FaultPlan({"reset": 1.5})
        with pytest.raises(InputError, match="fault 'bad luck' is unknown"):
            Fault(nonsense)
        for text in ("bad=1", "reset=often"):
            with pytest.raises(InputError, match="--fault"):
                parse_fault(text)
        assert parse_fault("reset=0.5") == ("reset", 0.5)
        assert [parse_fault(kind) for kind in FAULT_KINDS] == [(kind, 1.0) for kind in FAULT_KINDS]


async def _until(happened: Callable[[], bool]) -> None:
    """Poll: the log is a list and sets no event."""
    for _ in range(2000):
        if happened():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it never happened")


def _numbers(usage: dict[str, Any]) -> list[int]:
    values = [value for value in usage.values() if isinstance(value, int)]
    return values + [
        number for value in usage.values() if isinstance(value, dict) for number in _numbers(value)
    ]
