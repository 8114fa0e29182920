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
from tests.lab.official_clients import APIS, CLAUDE, GPT, Clients, open_clients

LONG = "word " * 3000
REFUSED = (openai.APIStatusError, anthropic.APIStatusError)
SILENT = ("openai-responses", "groq", "bedrock", "ollama")
"""Dialects that do not say how large the window is."""
SUMS = ("openai", "anthropic", "vllm", "openrouter", "sglang")
"""Dialects that refuse an output for which the prompt leaves no room."""


async def expect_refusal(
    clients: Clients, text: str, model: str = GPT, **options: Any
) -> Any:
    with pytest.raises(openai.APIStatusError) as caught:
        await clients.openai.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], **options
        )
    return caught.value


async def test_every_dialects_error_is_read_rightly() -> None:
    models = [ServedModel(f"gpt-5-{name}", 2048, name) for name in DIALECTS]
    provider = Provider(models)

    async def play(clients: Clients) -> dict[str, Any]:
        return {
            name: await expect_refusal(clients, LONG, f"gpt-5-{name}")
            for name in DIALECTS
        }

    prompt = TokenCounter(GPT).request([{"role": "user", "content": LONG}])
    for name, error in (await open_clients(provider, play)).items():
        verdict = classify_error(error)
        assert (name, verdict.kind) == (name, "prompt_too_long")
        assert (name, verdict.context_limit) == (name, None if name in SILENT else 2048)
        assert verdict.input_tokens in (None, prompt)
    assert all(
        record.prompt_tokens == prompt and record.error for record in provider.log
    )


async def test_an_output_for_which_there_is_no_room() -> None:
    models = [ServedModel(f"gpt-5-{name}", 4096, name) for name in DIALECTS]
    prompt = TokenCounter(GPT).request([{"role": "user", "content": LONG}])

    async def play(clients: Clients) -> dict[str, Any]:
        found = {
            name: await expect_refusal(clients, LONG, f"gpt-5-{name}", max_tokens=2000)
            for name in SUMS
        }
        for name in set(DIALECTS) - set(SUMS):
            said = await clients.openai.chat.completions.create(
                model=f"gpt-5-{name}",
                messages=[{"role": "user", "content": LONG}],
                max_tokens=2000,
            )
            assert said.choices[0].finish_reason == "stop"
        return found

    for name, error in (await open_clients(Provider(models), play)).items():
        verdict = classify_error(error)
        assert (name, verdict.kind) == (name, "max_tokens_too_large")
        assert (verdict.context_limit, verdict.input_tokens) == (4096, prompt)
        assert verdict.available_output == 4096 - prompt


async def test_an_output_the_model_cannot_write() -> None:
    dialects = ("openai", "anthropic", "gemini", "groq", "bedrock")
    models = [
        ServedModel(f"gpt-5-{name}", 100_000, name, max_output=4096)
        for name in dialects
    ]

    async def play(clients: Clients) -> dict[str, Any]:
        return {
            name: await expect_refusal(clients, "Hi", f"gpt-5-{name}", max_tokens=5000)
            for name in dialects
        }

    for name, error in (await open_clients(Provider(models), play)).items():
        verdict = classify_error(error)
        assert (name, verdict.kind) == (name, "max_tokens_too_large")
        assert verdict.available_output in (4096, 4097)


async def test_exactly_the_window_fits_and_one_token_more_does_not() -> None:
    messages: Any = [{"role": "user", "content": LONG}]
    prompt = TokenCounter(GPT).request(messages)

    async def play(clients: Clients) -> None:
        await clients.ask("openai_chat", LONG, model="gpt-5-fits")
        await expect_refusal(clients, LONG, "gpt-5-short")

    provider = Provider({"gpt-5-fits": prompt, "gpt-5-short": prompt - 1})
    await open_clients(provider, play)
    assert [record.status for record in provider.log] == [200, 400]


async def test_a_reply_ends_where_the_window_does() -> None:
    messages: Any = [{"role": "user", "content": LONG}]
    window = TokenCounter("llama-3").request(messages) + 30

    async def play(clients: Clients) -> Any:
        return await clients.openai.chat.completions.create(
            model="llama-3", messages=messages
        )

    reply = await open_clients(
        Provider([ServedModel("llama-3", window, "llama.cpp")], ["on and on " * 100]),
        play,
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.total_tokens <= window


async def test_tools_and_system_prompt_count() -> None:
    async def play(clients: Clients) -> None:
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

    await open_clients(Provider({CLAUDE: 1600}), play)


@pytest.mark.parametrize("api", APIS)
async def test_the_error_may_come_inside_a_stream(api: Api) -> None:
    async def play(clients: Clients) -> None:
        with pytest.raises(REFUSED):
            await clients.ask(api, LONG)
        with pytest.raises((openai.APIError, anthropic.APIError)) as caught:
            await clients.ask(api, LONG, stream=True)
        assert classify_error(caught.value).kind == "prompt_too_long"

    models = [ServedModel(name, 1000, errors_in_stream=True) for name in (GPT, CLAUDE)]
    provider = Provider(models)
    await open_clients(provider, play)
    assert [record.status for record in provider.log] == [400, 200]
