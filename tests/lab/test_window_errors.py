"""Windows are enforced with real counts, and said in each provider's words."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from everthread import classify_error
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api
from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.faults import DIALECTS
from tests.apis import APIS
from tests.lab.official_clients import CLAUDE, GPT, Clients, open_clients

LONG = "word " * 3000
REFUSED = (openai.APIStatusError, anthropic.APIStatusError)
SILENT = ("openai-responses", "groq", "bedrock", "ollama")
"""Dialects that do not say how large the window is."""
SUMS = ("openai", "anthropic", "vllm", "openrouter", "sglang")
"""Dialects that refuse an output for which the prompt leaves no room."""


async def expect_refusal(clients: Clients, text: str, model: str = GPT, **options: Any) -> Any:
    with pytest.raises(openai.APIStatusError) as caught:
        await clients.request("openai_chat", text, model=model, **options)
    return caught.value


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_overflow_is_understood_in_each_dialect(dialect: str) -> None:
    provider = Provider([ServedModel(GPT, 2048, dialect)])
    async with open_clients(provider) as clients:
        error = await expect_refusal(clients, LONG)
    prompt = TokenCounter(GPT).request([{"role": "user", "content": LONG}])
    verdict = classify_error(error)
    assert verdict.kind == "prompt_too_long"
    assert verdict.context_limit == (None if dialect in SILENT else 2048)
    assert verdict.input_tokens in (None, prompt)
    assert provider.log[0].prompt_tokens == prompt
    assert provider.log[0].error


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_some_dialects_refuse_an_output_without_room(dialect: str) -> None:
    provider = Provider([ServedModel(GPT, 4096, dialect)])
    async with open_clients(provider) as clients:
        if dialect not in SUMS:
            reply = await clients.request("openai_chat", LONG, max_tokens=2000)
            assert reply.choices[0].finish_reason == "stop"
            return
        error = await expect_refusal(clients, LONG, max_tokens=2000)
    prompt = TokenCounter(GPT).request([{"role": "user", "content": LONG}])
    verdict = classify_error(error)
    assert verdict.kind == "max_tokens_too_large"
    assert (verdict.context_limit, verdict.input_tokens) == (4096, prompt)
    assert verdict.available_output == 4096 - prompt


@pytest.mark.parametrize("dialect", ["openai", "anthropic", "gemini", "groq", "bedrock"])
async def test_refuses_an_output_that_the_model_cannot_write(dialect: str) -> None:
    provider = Provider([ServedModel(GPT, 100_000, dialect, max_output=4096)])
    async with open_clients(provider) as clients:
        error = await expect_refusal(clients, "Hi", max_tokens=5000)
    verdict = classify_error(error)
    assert verdict.kind == "max_tokens_too_large"
    assert verdict.available_output in (4096, 4097)


async def test_refuses_one_token_more_than_the_window() -> None:
    messages: Any = [{"role": "user", "content": LONG}]
    prompt = TokenCounter(GPT).request(messages)

    provider = Provider({"gpt-5-fits": prompt, "gpt-5-short": prompt - 1})
    async with open_clients(provider) as clients:
        await clients.ask("openai_chat", LONG, model="gpt-5-fits")
        await expect_refusal(clients, LONG, "gpt-5-short")
    assert [record.status for record in provider.log] == [200, 400]


async def test_cuts_a_reply_at_the_end_of_the_window() -> None:
    messages: Any = [{"role": "user", "content": LONG}]
    window = TokenCounter("llama-3").request(messages) + 30

    async with open_clients(
        Provider([ServedModel("llama-3", window, "llama.cpp")], ["on and on " * 100])
    ) as clients:
        reply = await clients.openai.chat.completions.create(model="llama-3", messages=messages)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens <= window


async def test_counts_tools_and_system_prompt() -> None:
    async with open_clients(Provider({CLAUDE: 1600})) as clients:
        await clients.ask("anthropic", "Hi", model=CLAUDE)
        system = "Be careful. " * 400
        tools = [{"name": "t", "description": LONG, "input_schema": {"type": "object"}}]
        extras: list[Any] = [{"system": system}, {"tools": tools}]
        for extra in extras:
            messages: Any = [{"role": "user", "content": "Hi"}]
            with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
                await clients.claude.messages.create(
                    model=CLAUDE, max_tokens=10, messages=messages, **extra
                )


@pytest.mark.parametrize("api", APIS)
async def test_may_refuse_inside_a_stream(api: Api) -> None:
    models = [ServedModel(name, 1000, errors_in_stream=True) for name in (GPT, CLAUDE)]
    provider = Provider(models)
    async with open_clients(provider) as clients:
        with pytest.raises(REFUSED):
            await clients.ask(api, LONG)
        with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
            await clients.ask(api, LONG, stream=True)
        assert classify_error(caught.value).kind == "prompt_too_long"
    assert [record.status for record in provider.log] == [400, 200]
