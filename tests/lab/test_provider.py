"""The simulated provider: its models, its script and its log."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from openai import OpenAI

from everthread.core.types import Api, ModelRequest
from everthread.errors import InputError
from everthread.lab.provider import Fault, Provider, ServedModel
from tests.apis import APIS
from tests.chat_messages import assistant_message, user_message
from tests.lab.official_clients import GPT, open_clients


class TestModels:
    async def test_lists_models_for_both_clients(self) -> None:
        async with open_clients(Provider({"a": 1000, "b/c": 2000})) as clients:
            for client in (clients.openai, clients.claude):
                assert [model.id async for model in client.models.list()] == [
                    "a",
                    "b/c",
                ]
            assert (await clients.openai.models.retrieve("b/c")).id == "b/c"

    @pytest.mark.parametrize("shows", ["max_model_len", "context_length", "context_window"])
    async def test_lists_the_window_under_the_key_of_the_server(self, shows: Any) -> None:
        provider = Provider(
            [
                ServedModel("a", 4096),
                ServedModel("b", 4096, shows="n_ctx_train"),
                ServedModel("c", 4096, shows=shows),
            ]
        )
        async with provider, httpx2.AsyncClient(timeout=60) as http:
            listing = (await http.get(f"{provider.url}/v1/models")).json()
        plain, llama, shown = listing["data"]
        assert 4096 not in plain.values()
        assert llama["meta"] == {"n_ctx_train": 4096}
        assert shown[shows] == 4096

    @pytest.mark.parametrize("api", APIS)
    async def test_refuses_an_unknown_model(self, api: Api) -> None:
        async with open_clients(Provider()) as clients:
            with pytest.raises((openai.NotFoundError, anthropic.NotFoundError), match="gpt-9"):
                await clients.ask(api, model="gpt-9")
            with pytest.raises(openai.NotFoundError):
                await clients.openai.models.retrieve("gpt-9")

    def test_refuses_invalid_models(self) -> None:
        with pytest.raises(InputError, match="at least one"):
            Provider({})
        with pytest.raises(InputError, match="dialect 'klingon'"):
            ServedModel("a", dialect="klingon")
        with pytest.raises(InputError, match="at least 1"):
            Provider({"a": 0})
        with pytest.raises(InputError, match="not running"):
            _ = Provider().url


class TestScript:
    async def test_calls_an_async_function_with_the_request(self) -> None:
        arrived = asyncio.Event()
        gate = asyncio.Event()

        async def answer(request: ModelRequest) -> str:
            arrived.set()
            await gate.wait()
            return f"You use {request.model}."

        async with open_clients(Provider(script=answer)) as clients:
            first = asyncio.create_task(clients.ask("openai_chat"))
            await arrived.wait()
            assert clients.provider.log[0].status is None
            gate.set()
            assert await first == "You use gpt-5."
            assert await clients.ask("anthropic") == "You use claude-sonnet-5."

    async def test_fails_when_the_script_is_used_up(self) -> None:
        async with open_clients(Provider(script=["only"])) as clients:
            await clients.ask("openai_chat")
            with pytest.raises(openai.InternalServerError, match="1 answers, and all were given"):
                await clients.ask("openai_chat")

    async def test_raises_the_error_of_a_script_function_when_closed(self) -> None:
        def fail(request: ModelRequest) -> str:
            assert request.model == "another", "it is not another"
            return "never"

        async def ask_provider(provider: Provider) -> None:
            async with open_clients(provider) as clients:
                with pytest.raises(
                    openai.InternalServerError,
                    match="The script failed: AssertionError: it is not",
                ):
                    await clients.ask("openai_chat")

        provider = Provider(script=fail)
        with pytest.raises(AssertionError, match="it is not another"):
            await ask_provider(provider)
        assert provider.log[0].status == 500

    async def test_a_refused_request_does_not_consume_the_script(self) -> None:
        async with open_clients(Provider({GPT: 1000}, ["only"])) as clients:
            with pytest.raises(openai.BadRequestError):
                await clients.ask("openai_chat", "word " * 2000)
            assert await clients.ask("openai_chat") == "only"

    async def test_echoes_without_a_script(self) -> None:
        async with open_clients(Provider()) as clients:
            answer = await clients.ask("openai_responses", "Is anybody there?")
        assert answer == "You said: Is anybody there?"

    async def test_answers_a_blocking_client_in_a_thread(self) -> None:
        async with Provider(script=["Hello."]) as provider:

            def ask() -> str | None:
                with OpenAI(api_key="sk-lab", base_url=f"{provider.url}/v1") as client:
                    reply = client.chat.completions.create(model=GPT, messages=[user_message("Hi")])
                    return reply.choices[0].message.content

            assert await asyncio.to_thread(ask) == "Hello."

    async def test_continues_when_the_provider_is_opened_again(self) -> None:
        provider = Provider(script=["one", "two"])
        for expected in ("one", "two"):
            async with open_clients(provider) as clients:
                assert await clients.ask("openai_chat") == expected
        assert len(provider.log) == 2


class TestLog:
    async def test_records_each_request(self) -> None:
        provider = Provider(script=["A."])
        async with open_clients(provider) as clients:
            await clients.request(
                "openai_chat", extra_headers={"x-session-id": "s1"}, temperature=0.3
            )
        [record] = provider.log
        assert (record.number, record.api) == (1, "openai_chat")
        assert (record.path, record.session) == ("/v1/chat/completions", "s1")
        assert record.request
        assert record.request.params["temperature"] == 0.3
        assert record.body["temperature"] == 0.3
        assert record.headers["authorization"] == "Bearer sk-lab"
        assert record.canonical_usage.prompt_tokens == record.prompt_tokens > 0
        assert record.summary()["prompt_tokens"] == record.prompt_tokens
        assert record.reply
        assert record.reply.message["content"] == "A."

    async def test_compares_requests_of_the_same_session(self) -> None:
        clock = iter(range(100, 200))
        provider = Provider(script=["A.", "B.", "C."], clock=lambda: float(next(clock)))
        messages = [user_message("Hi")]
        session = {"model": GPT, "extra_headers": {"x-session-id": "s1"}}
        async with open_clients(provider) as clients:
            completions = clients.openai.chat.completions
            await completions.create(messages=messages, **session)
            await clients.ask("openai_chat", "another session")
            messages += [assistant_message("A."), user_message("More")]
            await completions.create(messages=messages, **session)
            messages[0] = user_message("Ho")
            with pytest.raises(openai.InternalServerError):
                await completions.create(messages=messages, **session)
        first, other, longer, changed = provider.log
        assert (first.shared, other.shared) == (None, None)
        assert longer.shared
        assert longer.shared.is_extension
        assert longer.prompt_tokens > first.prompt_tokens
        assert changed.shared
        assert changed.shared.shared_messages == 0
        assert (changed.shared.section, changed.shared.index) == ("messages", 0)
        assert (changed.status, changed.usage) == (500, None)
        times = [record.arrival_time for record in provider.log]
        assert times == sorted(set(times))

    async def test_tells_the_listener_of_each_request(self) -> None:
        statuses: list[int | None] = []
        provider = Provider(
            script=["A.", Fault("server_error")],
            listen=lambda record: statuses.append(record.status),
        )
        async with open_clients(provider) as clients:
            await clients.ask("openai_chat")
            with pytest.raises(openai.InternalServerError):
                await clients.ask("openai_chat")
        assert statuses == [200, 500]

    @pytest.mark.parametrize(
        "content",
        [b"{", b"[1]", b'{"model": 3}', b'{"model": "gpt-5", "messages": 3}'],
    )
    async def test_refuses_and_records_invalid_json(self, content: bytes) -> None:
        provider = Provider()
        async with provider, httpx2.AsyncClient(timeout=60) as http:
            url = f"{provider.url}/v1/chat/completions"
            answer = await http.post(url, content=content)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"]
        assert provider.log[0].request is None
