"""Caches over real HTTP: the cached tokens that clients are shown."""

from __future__ import annotations

from typing import Any

from everthread import apply_cache_control, normalize_usage
from everthread.core.caching.claude_cache_marks import mark_system
from everthread.core.types import ModelRequest
from everthread.lab.provider import Provider
from everthread.testing import SteppedClock
from everthread.wire import anthropic as wire
from tests.lab.official_clients import CLAUDE, GPT, Clients, open_clients

SYSTEM = "Keep to the rules of the house. " * 400
SYSTEM_MESSAGE: Any = {"role": "system", "content": SYSTEM}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "ls",
            "description": "Lists.",
            "parameters": {"type": "object"},
        },
    }
]


def turns(count: int) -> list[Any]:
    """Return a conversation with this many questions, all but the last one answered."""
    messages: list[Any] = []
    for number in range(count):
        messages += [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": f"Answer {number}."},
        ]
    return messages[:-1]


async def ask(clients: Clients, messages: list[Any], **changed: Any) -> Any:
    """As Everthread sends it: one mark on the system prompt, three at the end."""
    fields: dict[str, Any] = {"system": SYSTEM, "tools": TOOLS, "ttl": "5m", **changed}
    ttl = fields.pop("ttl")
    request = ModelRequest(
        CLAUDE,
        apply_cache_control(messages, ttl=ttl, native_anthropic=True),
        mark_system(fields.pop("system"), ttl=ttl),
        fields.pop("tools"),
        {"max_tokens": 100, **fields},
    )
    return (await clients.claude.messages.create(**wire.encode_request(request))).usage


async def test_each_turn_reads_the_previous_prompt() -> None:
    clock = SteppedClock()
    provider = Provider(clock=clock)

    async with open_clients(provider) as clients:
        first = await ask(clients, turns(1))
        assert first.cache_read_input_tokens == 0
        assert first.cache_creation_input_tokens > 1024
        assert first.cache_creation.ephemeral_5m_input_tokens == first.cache_creation_input_tokens
        written = first.cache_creation_input_tokens
        for count in range(2, 8):
            clock.advance(290)
            usage = await ask(clients, turns(count))
            assert usage.cache_read_input_tokens == written
            assert 0 < usage.cache_creation_input_tokens < 60
            written += usage.cache_creation_input_tokens
        clock.advance(301)
        assert (await ask(clients, turns(8))).cache_read_input_tokens == 0
    for record in provider.log:
        usage = record.canonical_usage
        assert usage.prompt_tokens == record.prompt_tokens
        assert (usage.cache_read_tokens, usage.cache_write_tokens) == (
            record.cached_tokens,
            record.written_tokens,
        )


async def test_changed_tools_or_system_prompt_miss_the_cache() -> None:

    async with open_clients(Provider()) as clients:
        await ask(clients, turns(3))
        other: list[Any] = [
            {"type": "function", "function": {**TOOLS[0]["function"], "name": "dir"}}
        ]
        assert (await ask(clients, turns(3), tools=other)).cache_read_input_tokens == 0
        assert (await ask(clients, turns(3), system=f"{SYSTEM}!")).cache_read_input_tokens == 0
        assert (await ask(clients, turns(3))).cache_read_input_tokens > 1024


async def test_reads_tools_and_system_prompt_after_a_compaction() -> None:
    async with open_clients(Provider()) as clients:
        before = await ask(clients, turns(6))
        compacted: list[Any] = [
            {"role": "user", "content": "[summary of what went before]"},
            *turns(6)[-2:],
        ]
        after = await ask(clients, compacted)
        again = await ask(
            clients,
            [
                *compacted,
                {"role": "assistant", "content": "A."},
                {"role": "user", "content": "B"},
            ],
        )
        assert 1024 < after.cache_read_input_tokens < before.cache_creation_input_tokens
        assert (
            again.cache_read_input_tokens
            == after.cache_read_input_tokens + after.cache_creation_input_tokens
        )


async def test_reports_writes_for_an_hour_apart() -> None:
    clock = SteppedClock()

    async with open_clients(Provider(clock=clock)) as clients:
        first = await ask(clients, turns(2), ttl="1h")
        assert (
            first.cache_creation.ephemeral_1h_input_tokens == first.cache_creation_input_tokens > 0
        )
        assert first.cache_creation.ephemeral_5m_input_tokens == 0
        clock.advance(3000)
        assert (await ask(clients, turns(3), ttl="1h")).cache_read_input_tokens > 0


async def test_caches_a_request_with_an_automatic_mark() -> None:
    async with open_clients(Provider()) as clients:
        first, second = [
            await clients.claude.messages.create(
                model=CLAUDE,
                max_tokens=9,
                system=SYSTEM,
                messages=turns(count),
                cache_control={"type": "ephemeral"},
            )
            for count in (2, 3)
        ]
    assert first.usage.cache_creation_input_tokens
    written = first.usage.cache_creation_input_tokens
    assert second.usage.cache_read_input_tokens == written
    assert second.usage.input_tokens < 10


async def test_caches_claude_over_chat_by_marks() -> None:
    model = "anthropic/claude-sonnet-5"
    async with open_clients(Provider({model: 200_000})) as clients:
        replies = [
            await clients.openai.chat.completions.create(
                model=model,
                messages=apply_cache_control([SYSTEM_MESSAGE, *turns(count)]),
            )
            for count in (2, 3)
        ]
    first, second = (normalize_usage(reply.usage.model_dump()) for reply in replies)
    assert first.cache_write_tokens > 1024
    assert second.cache_read_tokens == first.cache_write_tokens


async def test_caches_openai_chats_without_marks() -> None:
    async with open_clients(Provider({GPT: 400_000})) as clients:
        cached_tokens = []
        for count in (2, 3):
            reply = await clients.openai.chat.completions.create(
                model=GPT, messages=[SYSTEM_MESSAGE, *turns(count)]
            )
            cached_tokens.append(reply.usage.prompt_tokens_details.cached_tokens)
    assert not cached_tokens[0]
    assert cached_tokens[1] >= 1024
    assert cached_tokens[1] % 128 == 0


async def test_caches_openai_responses_without_marks() -> None:
    async with open_clients(Provider({GPT: 400_000})) as clients:
        first, second = [
            await clients.openai.responses.create(
                model=GPT, instructions=SYSTEM, input=turns(count)
            )
            for count in (2, 3)
        ]
    assert first.usage.input_tokens_details.cached_tokens < 1024
    assert second.usage.input_tokens_details.cached_tokens >= 1024
