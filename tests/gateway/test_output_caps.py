"""A client that asks for more output than the window has room for, over a whole conversation through real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.answers import RequestRecord
from everthread.thread.events import CompactionReceipt
from tests.chat_messages import calls_reply, function_call
from tests.gateway.gateway_setup import FILLER, Gateways, open_gateways_with_models
from tests.gateway.manager_setup import (
    HistoryClient,
    ManagersWithProvider,
    open_managers_with_provider,
    prepare_request,
)

UNKNOWN = "orchid-unheard-of-1"
WINDOW = 8_000
CALLS = 24
Ask = Callable[[list[Any]], Awaitable[str]]


async def chat_client(gateways: Gateways, cap: int) -> Ask:
    client = gateways.openai_client(await gateways.start(), await gateways.create_key())

    async def ask(messages: list[Any]) -> str:
        reply = await client.chat.completions.create(
            model=UNKNOWN, max_tokens=cap, messages=messages
        )
        return str(reply.choices[0].message.content)

    return ask


def enable_thinking(tokens: int) -> Any:
    return (
        {
            "thinking": {"type": "enabled", "budget_tokens": tokens},
        }
        if tokens
        else {}
    )


async def claude_client(gateways: Gateways, cap: int, thinking: int = 0) -> Ask:
    client = gateways.anthropic_client(await gateways.start(), await gateways.create_key())
    extra = enable_thinking(thinking)

    async def ask(messages: list[Any]) -> str:
        answer = await client.messages.create(
            model=UNKNOWN, max_tokens=cap, messages=messages, **extra
        )
        return "".join(block.text for block in answer.content if block.type == "text")

    return ask


@asynccontextmanager
async def serve_model(
    folder: Path, dialect: str, window: int = WINDOW, **options: Any
) -> AsyncIterator[Gateways]:
    """Open gateways before a model that they do not know."""
    models = [ServedModel(UNKNOWN, window, dialect, **options)]
    async with open_gateways_with_models(folder, models, lambda _: "Noted.") as gateways:
        yield gateways


async def hold_conversation(ask: Ask, calls: int = CALLS, about: str = "Entry") -> None:
    """Hold a conversation in which each turn adds about 150 tokens."""
    messages: list[Any] = []
    for turn in range(calls):
        messages.append({"role": "user", "content": f"{about} {turn}: {FILLER * 6}"})
        messages.append({"role": "assistant", "content": await ask(messages)})


def accepted_records(provider: Provider) -> list[RequestRecord]:
    return [record for record in provider.log if record.status == 200]


def refusals(provider: Provider) -> list[str]:
    return [record.error for record in provider.log if record.status == 400]


@pytest.mark.parametrize("tokenizer", [None, "claude-sonnet-5"], ids=["as-counted", "counts-more"])
@pytest.mark.parametrize("dialect", ["openai", "vllm", "openrouter", "sglang", "anthropic"])
@pytest.mark.parametrize("cap", [7_900, 3_000])
async def test_lowers_a_refused_output_cap_for_that_call_only(
    tmp_path: Path, dialect: str, cap: int, tokenizer: str | None
) -> None:
    async with serve_model(tmp_path, dialect, tokenizer=tokenizer) as gateways:
        make_client = claude_client if dialect == "anthropic" else chat_client
        ask = await make_client(gateways, cap)
        await hold_conversation(ask)
        await hold_conversation(ask, calls=2, about="Another thread, entry")
        assert len(accepted_records(gateways.provider)) == CALLS + 2
        assert len(refusals(gateways.provider)) <= 1, "the first refusal states the window"
        for record in accepted_records(gateways.provider):
            room = WINDOW - record.prompt_tokens
            assert record.body["max_tokens"] >= 0.8 * min(cap, room), (
                "every call gets what the window leaves"
            )


async def test_remembers_the_maximum_output_that_an_error_states(
    tmp_path: Path,
) -> None:
    async with serve_model(tmp_path, "openai", 64_000, max_output=2_000) as gateways:
        await hold_conversation(await chat_client(gateways, 9_000), calls=6)
        assert len(refusals(gateways.provider)) == 1
        max_tokens = {record.body["max_tokens"] for record in accepted_records(gateways.provider)}
        assert max_tokens == {2_000}
        limits = await gateways.store.limits.list_limits()
        assert [(limit.kind, limit.limit) for limit in limits] == [("output", 2_000)]


async def test_does_not_store_the_room_of_one_prompt_as_the_models_maximum(
    tmp_path: Path,
) -> None:
    async with serve_model(tmp_path, "vllm") as gateways:
        await hold_conversation(await chat_client(gateways, 7_900), calls=3)
        limits = await gateways.store.limits.list_limits()
        assert [(limit.kind, limit.limit) for limit in limits] == [("window", WINDOW)]


async def test_a_lowered_cap_stays_above_a_thinking_budget(tmp_path: Path) -> None:
    async with serve_model(tmp_path, "anthropic") as gateways:
        await hold_conversation(await claude_client(gateways, cap=7_900, thinking=3_000))
        assert len(accepted_records(gateways.provider)) == CALLS
        assert all(record.body["max_tokens"] > 3_000 for record in gateways.provider.log)
        assert len(refusals(gateways.provider)) <= 1


def greedy_client(thinking: int = 0) -> HistoryClient:
    """A client that asks for three quarters of the window. `thinking`: its budget for that."""
    tool: Any = {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object"},
        },
    }
    extra = {"max_tokens": 6_000, **enable_thinking(thinking)}
    return HistoryClient("anthropic", tools=[tool], extra=extra)


@pytest.fixture
async def managers_with_provider(tmp_path: Path) -> AsyncIterator[ManagersWithProvider]:
    async with open_managers_with_provider(
        tmp_path, lambda _: "Noted.", window=WINDOW, dialect="anthropic"
    ) as opened:
        yield opened


async def fill_window(managers_with_provider: ManagersWithProvider, client: HistoryClient) -> None:
    """Talk until the client was compacted and its prompt has grown again."""
    manager = managers_with_provider.open(recall=True, background=False)
    prompt = 0
    while not managers_with_provider.events_of(CompactionReceipt) or prompt < 3_700:
        client.add_user_message(f"Entry {len(client.messages)}: {FILLER * 6}")
        await managers_with_provider.send(manager, client)
        prompt = managers_with_provider.provider.log[-1].prompt_tokens


async def test_the_next_process_asks_for_the_remaining_window(
    managers_with_provider: ManagersWithProvider,
) -> None:
    client = greedy_client(thinking=3_200)
    await fill_window(managers_with_provider, client)
    refused_before = len(refusals(managers_with_provider.provider))
    receipts = len(managers_with_provider.events_of(CompactionReceipt))
    client.add_user_message("And now?")
    await managers_with_provider.send(
        managers_with_provider.open(recall=True, background=False), client
    )
    last = managers_with_provider.provider.log[-1]
    assert len(refusals(managers_with_provider.provider)) == refused_before
    assert last.body["max_tokens"] >= 0.8 * (WINDOW - last.prompt_tokens)
    assert len(managers_with_provider.events_of(CompactionReceipt)) == receipts, (
        "the compaction is not a new one for the next process"
    )


async def test_a_recall_round_after_a_refusal_asks_for_the_remaining_window(
    managers_with_provider: ManagersWithProvider,
) -> None:
    client = greedy_client()
    await fill_window(managers_with_provider, client)
    await managers_with_provider.store.limits.forget_limits()
    manager = managers_with_provider.open(recall=True, background=False)
    client.add_user_message("What was the first entry?")
    turn = await prepare_request(manager, client.incoming(managers_with_provider.provider.url))
    refused = await post(managers_with_provider.provider, turn.outgoing.body)
    assert refused.status_code == 400
    lowered = await turn.recover(refused.status_code, refused.content)
    assert lowered is not None
    response = await post(managers_with_provider.provider, lowered.body)
    assert response.status_code == 200
    call = function_call("call_1", "recall", '{"id": "message:1"}')
    following = await turn.resume_after_recall(calls_reply(call))
    assert following is not None
    answer = await post(managers_with_provider.provider, following.body)
    assert answer.status_code == 200, answer.text
    first, second = managers_with_provider.provider.log[-2:]
    assert second.prompt_tokens > first.prompt_tokens
    assert second.body["max_tokens"] >= 0.8 * (WINDOW - second.prompt_tokens)


async def post(provider: Provider, body: bytes) -> httpx2.Response:
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    async with httpx2.AsyncClient(timeout=60) as http:
        return await http.post(
            f"{provider.url}/v1/messages",
            content=body,
            headers=headers,
        )


async def test_removes_the_oldest_of_too_many_images(tmp_path: Path) -> None:
    async with serve_model(tmp_path, "openai", 200_000, max_images=5) as gateways:
        ask = await chat_client(gateways, 1_000)
        messages: list[Any] = []
        for turn in range(14):
            url = f"data:image/png;base64,{'AAAA' * 50}{turn:04}"
            text = {"type": "text", "text": f"Picture {turn}"}
            image = {
                "type": "image_url",
                "image_url": {"url": url},
            }
            messages.append({"role": "user", "content": [text, image]})
            messages.append({"role": "assistant", "content": await ask(messages)})
        last = accepted_records(gateways.provider)[-1]
        assert "Picture 0" in str(last.body)
        assert str(last.body).count("data:image") <= 5
        assert f"{13:04}" in str(last.body)
        assert 1 <= len(refusals(gateways.provider)) <= 4
