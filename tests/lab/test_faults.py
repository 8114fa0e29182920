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
from tests.lab.official_clients import APIS, CLAUDE, GPT, Clients, open_clients

REFUSED = (openai.APIStatusError, anthropic.APIStatusError)
BROKEN = (
    openai.APIConnectionError,
    anthropic.APIConnectionError,
    openai.APIError,
    anthropic.APIError,
)
WORDS = "one two three four five " * 20
LATE = (openai.APITimeoutError, anthropic.APITimeoutError)


ERRORS: list[tuple[Any, int, str]] = [
    ("rate_limit", 429, "rate_limit"),
    ("server_error", 500, "other"),
    ("overflow", 400, "prompt_too_long"),
    ("payload_too_large", 413, "payload_too_large"),
]


@pytest.mark.parametrize("api", APIS)
async def test_errors_arrive_as_the_clients_own(api: Api) -> None:
    async def play(clients: Clients) -> list[Any]:
        errors = []
        for _ in ERRORS:
            with pytest.raises(REFUSED) as caught:
                await clients.ask(api)
            errors.append(caught.value)
        assert await clients.ask(api) == "Fine again."
        return errors

    provider = Provider(
        script=[*(Fault(kind, retry_after=7) for kind, _, _ in ERRORS), "Fine again."]
    )
    errors = await open_clients(provider, play)
    assert [(error.status_code, classify_error(error).kind) for error in errors] == [
        error[1:] for error in ERRORS
    ]
    assert [record.fault for record in provider.log] == [
        *(error[0] for error in ERRORS),
        "",
    ]
    assert [record.status for record in provider.log] == [
        *(error[1] for error in ERRORS),
        200,
    ]
    assert errors[0].response.headers["retry-after"] == "7"


async def test_an_overloaded_provider_is_no_matter_of_size() -> None:
    async def play(clients: Clients) -> Any:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await clients.ask("anthropic")
        return caught.value

    error = await open_clients(Provider(script=[Fault("overloaded")]), play)
    assert (error.status_code, error.body["error"]["type"]) == (529, "overloaded_error")
    assert classify_error(error).kind in ("other", "rate_limit")


async def test_a_client_that_retries_gets_through() -> None:
    async def play(clients: Clients) -> str | None:
        patient = clients.openai.with_options(max_retries=2)
        messages: Any = [{"role": "user", "content": "Hi"}]
        return (
            (await patient.chat.completions.create(model=GPT, messages=messages))
            .choices[0]
            .message.content
        )

    script: list[Step] = [
        Fault("rate_limit", retry_after=0.01),
        Fault("server_error", retry_after=0.01),
        "At last.",
    ]
    assert await open_clients(Provider(script=script), play) == "At last."


@pytest.mark.parametrize("api", APIS)
async def test_a_hanging_answer_ends_when_the_client_goes_away(api: Api) -> None:
    async def play(clients: Clients) -> None:
        with pytest.raises(LATE):
            await clients.ask(api)
        [record] = clients.provider.log
        assert record.status is None
        await _until(lambda: bool(record.events))
        assert record.events == ["gone"]

    await open_clients(Provider(script=[Fault("hang")]), play, patience=0.1)


async def test_a_hanging_answer_keeps_nobody_from_closing() -> None:
    provider = Provider(script=[Fault("hang", seconds=3600)])
    async with provider:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(provider.url.rpartition(":")[2])
        )
        body = json.dumps(
            {"model": GPT, "messages": [{"role": "user", "content": "Hi"}]}
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: lab\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await _until(lambda: bool(provider.log))
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_after_its_time_a_hanging_connection_is_reset() -> None:
    async def play(clients: Clients) -> None:
        with pytest.raises(openai.APIConnectionError):
            await clients.ask("openai_chat")

    provider = Provider(script=[Fault("hang", seconds=0.01)])
    await open_clients(provider, play)
    assert provider.log[0].events == ["reset"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_delayed_answer_comes(stream: bool) -> None:
    async def play(clients: Clients) -> str:
        return await clients.ask("openai_chat", stream=stream)

    assert (
        await open_clients(
            Provider(script=[Fault("delay", reply="Late.", seconds=0.01)]), play
        )
        == "Late."
    )


@pytest.mark.parametrize("kind", sorted(ANSWERED_FAULTS))
async def test_a_fault_that_leaves_the_answer_whole_answers_with_an_echo(
    kind: FaultKind,
) -> None:
    async def play(clients: Clients) -> str:
        return await clients.ask("openai_chat")

    answer = await open_clients(Provider(script=[Fault(kind, seconds=0.01)]), play)
    assert answer.startswith("You said: "), (
        "and not with the words of an answer that is cut off"
    )


@pytest.mark.parametrize("api", APIS)
async def test_a_client_that_leaves_a_slow_stream_is_noticed(api: Api) -> None:
    provider = Provider(
        script=[
            Fault("slow", reply=WORDS, seconds=0.005),
            Fault("slow", reply=WORDS, seconds=600),
        ]
    )

    async def play(clients: Clients) -> None:
        assert await clients.ask(api, stream=True) == WORDS
        with pytest.raises((*LATE, httpx2.TimeoutException, asyncio.TimeoutError)):
            await asyncio.wait_for(clients.ask(api, stream=True), 0.1)
        await _until(lambda: bool(provider.log[1].events))

    await open_clients(provider, play)
    assert [record.events for record in provider.log] == [[], ["gone"]]


@pytest.mark.parametrize("api", APIS)
async def test_without_a_stream_nothing_usable_arrives(api: Api) -> None:
    """The clients may say that the connection failed, or stumble over half a JSON."""

    async def play(clients: Clients) -> None:
        for _ in range(2):
            with pytest.raises((*BROKEN, json.JSONDecodeError)):
                await clients.ask(api)

    provider = Provider(script=[Fault("reset"), Fault("truncated")])
    await open_clients(provider, play)
    assert [record.events for record in provider.log] == [["reset"], ["cut"]]


@pytest.mark.parametrize("api", APIS)
async def test_a_stream_breaks_off_after_some_words(api: Api) -> None:
    async def play(clients: Clients) -> None:
        for kind in ("reset", "truncated"):
            said: list[str] = []
            try:
                await _collect(clients, api, said)
            except (*BROKEN, httpx2.TransportError):
                pass
            else:
                assert kind == "truncated"
            heard = "".join(said)
            assert heard
            assert heard != WORDS
            assert WORDS.startswith(heard)

    await open_clients(
        Provider(
            script=[
                Fault("reset", after=8, reply=WORDS),
                Fault("truncated", after=8, reply=WORDS),
            ]
        ),
        play,
    )


@pytest.mark.parametrize("api", APIS)
async def test_an_error_inside_a_stream_with_status_200(api: Api) -> None:
    async def play(clients: Clients) -> list[str]:
        kinds: list[str] = []
        for _ in range(2):
            said: list[str] = []
            with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
                await _collect(clients, api, said)
            assert said
            kinds.append(classify_error(caught.value).kind)
        return kinds

    script = [
        Fault("stream_overflow", after=8, reply=WORDS),
        Fault("stream_error", after=8, reply=WORDS),
    ]
    provider = Provider(script=script)
    assert await open_clients(provider, play) == ["prompt_too_long", "other"]
    assert all(record.status == 200 and record.error for record in provider.log)


async def test_such_an_error_without_a_stream_is_an_error() -> None:
    async def play(clients: Clients) -> list[int]:
        statuses = []
        for _ in range(2):
            with pytest.raises(openai.APIStatusError) as caught:
                await clients.ask("openai_chat")
            statuses.append(caught.value.status_code)
        return statuses

    assert await open_clients(
        Provider(script=[Fault("stream_overflow"), Fault("stream_error")]), play
    ) == [400, 500]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_answer(stream: bool) -> None:
    async def play(clients: Clients) -> None:
        messages: Any = [{"role": "user", "content": "Hi"}]
        if stream:
            for api in APIS:
                said: list[str] = []
                await _collect(clients, api, said)
                assert not said
            return
        chat = await clients.openai.chat.completions.create(
            model=GPT, messages=messages
        )
        assert chat.choices == []
        assert (
            await clients.openai.responses.create(model=GPT, input="Hi")
        ).output == []
        assert (
            await clients.claude.messages.create(
                model=CLAUDE, max_tokens=9, messages=messages
            )
        ).content == []

    await open_clients(Provider(script=lambda _request: Fault("empty")), play)


@pytest.mark.parametrize("api", APIS)
async def test_usage_that_is_missing_wrong_or_huge(api: Api) -> None:
    script = [
        Fault("no_usage", reply="A."),
        Fault("wrong_usage", reply="B.", tokens=500),
        Fault("huge_reasoning", reply="C.", tokens=90_000),
    ]
    provider = Provider(script=script)

    async def play(clients: Clients) -> list[str]:
        return [await clients.ask(api) for _ in script]

    assert await open_clients(provider, play) == ["A.", "B.", "C."]
    missing, wrong, huge = provider.log
    assert missing.usage is None
    assert wrong.usage
    assert min(_numbers(wrong.usage)) < 0
    assert wrong.canonical_usage.output_tokens >= 0
    assert normalize_usage(huge.usage).output_tokens > 90_000
    assert missing.prompt_tokens == wrong.prompt_tokens > 0


class TestPlan:
    def test_the_same_seed_is_the_same_misfortune(self) -> None:
        def fate(seed: int) -> list[Fault | None]:
            plan = FaultPlan({"rate_limit": 0.2, "reset": 0.2}, seed=seed)
            return [plan.next() for _ in range(200)]

        assert fate(1) == fate(1) != fate(2)
        kinds = [fault.kind if fault else None for fault in fate(1)]
        assert {
            kind: 20 <= kinds.count(kind) <= 60 for kind in ("rate_limit", "reset")
        } == {
            "rate_limit": True,
            "reset": True,
        }

    async def test_what_gets_no_answer_uses_none_of_the_script(self) -> None:
        script = [f"Answer {number}." for number in range(8)]
        rates: Any = {"rate_limit": 0.3, "server_error": 0.2, "delay": 0.2}

        async def play(clients: Clients) -> list[str]:
            heard: list[str] = []
            while len(heard) < len(script):
                try:
                    heard.append(await clients.ask("openai_chat"))
                except openai.APIStatusError:
                    continue
            return heard

        provider = Provider(
            script=script, faults=FaultPlan(rates, seed=3, seconds=0.001)
        )
        assert await open_clients(provider, play) == script
        assert {record.fault for record in provider.log} == {
            "",
            "rate_limit",
            "server_error",
            "delay",
        }

    def test_nonsense_is_refused(self) -> None:
        nonsense: Any = "bad luck"
        with pytest.raises(InputError, match="from 0 to 1"):
            FaultPlan({"reset": 1.5})
        with pytest.raises(InputError, match="fault 'bad luck' is unknown"):
            Fault(nonsense)
        for text in ("bad=1", "reset=often"):
            with pytest.raises(InputError, match="--fault"):
                parse_fault(text)
        assert parse_fault("reset=0.5") == ("reset", 0.5)
        assert [parse_fault(kind) for kind in FAULT_KINDS] == [
            (kind, 1.0) for kind in FAULT_KINDS
        ]


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
        number
        for value in usage.values()
        if isinstance(value, dict)
        for number in _numbers(value)
    ]


async def _collect(clients: Clients, api: Api, said: list[str]) -> None:
    """Return the texts of a stream before its end or failure."""
    messages: Any = [{"role": "user", "content": "Hi"}]
    if api == "openai_chat":
        async for chunk in await clients.openai.chat.completions.create(
            model=GPT, messages=messages, stream=True
        ):
            said += [
                choice.delta.content for choice in chunk.choices if choice.delta.content
            ]
    elif api == "openai_responses":
        async for event in await clients.openai.responses.create(
            model=GPT, input="Hi", stream=True
        ):
            if event.type == "response.output_text.delta":
                said.append(event.delta)
    else:
        async for delta in await clients.claude.messages.create(
            model=CLAUDE, max_tokens=900, messages=messages, stream=True
        ):
            if delta.type == "content_block_delta" and delta.delta.type == "text_delta":
                said.append(delta.delta.text)
