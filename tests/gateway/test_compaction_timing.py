"""Rewriting when it pays: early after a pause longer than the provider's cache, reported in a header."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.gateway.managed.manager import ProxyManager
from everthread.testing import SteppedClock
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.events import Planned
from everthread.thread.policy.compaction_policy import WINDOW_TOKENS_PER_CALL
from tests.chat_messages import calls_reply, function_call
from tests.gateway.manager_setup import (
    NAMES,
    HistoryClient,
    ManagersWithProvider,
    open_managers_with_provider,
    prepare_request,
    text_of_tokens,
    thread_of,
    tokens_of,
)

TTL = 300.0
MODEL_WITH_CACHE_OPTIONS = "gpt-5.6"


@pytest.fixture
async def managers_with_provider(tmp_path: Path) -> AsyncIterator[ManagersWithProvider]:
    async with open_managers_with_provider(
        tmp_path,
        lambda _: text_of_tokens(60, "answer"),
        names=[*NAMES.values(), MODEL_WITH_CACHE_OPTIONS],
    ) as opened:
        yield opened


def make_client() -> HistoryClient:
    return HistoryClient("anthropic", extra={"max_tokens": 400})


async def fill_window(
    managers_with_provider: ManagersWithProvider,
    manager: ProxyManager,
    client: HistoryClient,
    share: float,
) -> int:
    """Send turns until the prompt has this share of the threshold; return its tokens."""
    tokens = 0
    while tokens < share * managers_with_provider.window / 2:
        client.add_user_message(f"Note this: {text_of_tokens(200, 'ledger')}")
        exchange = await managers_with_provider.send(manager, client)
        tokens = tokens_of(exchange.sent).after
        assert exchange.sent.headers["x-everthread-compactions"] == "0"
    return tokens


async def test_after_a_long_pause_compacts_below_the_threshold(
    managers_with_provider: ManagersWithProvider,
) -> None:
    wall = SteppedClock(1_760_000_000.0)
    client = make_client()
    manager = managers_with_provider.open(wall_clock=wall, background=False)
    await fill_window(
        managers_with_provider,
        manager,
        client=client,
        share=0.7,
    )
    wall.advance(TTL - 10)
    client.add_user_message("Still there?")
    soon = await managers_with_provider.send(manager, client)
    assert soon.sent.headers["x-everthread-compactions"] == "0"
    assert "x-everthread-plan" not in soon.sent.headers
    wall.advance(TTL + 10)
    client.add_user_message("Back again.")
    late = await managers_with_provider.send(manager, client)
    assert late.sent.headers["x-everthread-compactions"] == "1"
    assert "the cache is cold: 310 s passed" in late.sent.headers["x-everthread-plan"]
    tokens = tokens_of(late.sent)
    assert tokens.after < tokens.before < managers_with_provider.window / 2
    (record,) = await managers_with_provider.store.list_compactions(thread_of(late.sent))
    assert record.record.reason == "cold-cache"
    assert record.record.figures["decision"] == late.sent.headers["x-everthread-plan"]

    client.add_user_message("And on.")
    other = await managers_with_provider.send(
        managers_with_provider.open(wall_clock=wall, background=False), client
    )
    assert other.sent.headers["x-everthread-compactions"] == "1", "in every process, from then on"


@pytest.mark.parametrize(("ttl", "compactions"), [("30m", "1"), ("12h", "0")])
async def test_a_cache_that_the_client_keeps_for_half_a_day_outlives_a_pause(
    managers_with_provider: ManagersWithProvider, ttl: str, compactions: str
) -> None:
    wall = SteppedClock(1_760_000_000.0)
    cache_options = {"prompt_cache_options": {"ttl": ttl}}
    client = HistoryClient(
        "openai_responses",
        extra=cache_options,
        model=MODEL_WITH_CACHE_OPTIONS,
    )
    manager = managers_with_provider.open(wall_clock=wall, background=False)
    await fill_window(
        managers_with_provider,
        manager,
        client=client,
        share=0.7,
    )
    wall.advance(6 * 3_600)
    client.add_user_message("Back again.")
    late = await managers_with_provider.send(manager, client)
    assert late.sent.headers["x-everthread-compactions"] == compactions


class ManualTimer:
    """The idle timer that was set last; a test lets it ring."""

    def __init__(self) -> None:
        self.then: Callable[[], None] | None = None
        self.seconds = 0.0

    def __call__(self, seconds: float, then: Callable[[], None]) -> ManualTimer:
        self.seconds = seconds
        self.then = then
        return self

    def cancel(self) -> None:
        self.then = None


async def test_an_idle_thread_is_compacted_before_its_cache_expires(
    managers_with_provider: ManagersWithProvider,
) -> None:
    wall = SteppedClock(1_760_000_000.0)
    alarm = ManualTimer()
    client = make_client()
    manager = managers_with_provider.open(
        wall_clock=wall,
        background=False,
        compact_when_idle=True,
        timer=alarm,
    )
    await fill_window(
        managers_with_provider,
        manager,
        client=client,
        share=0.7,
    )
    assert alarm.then is not None
    assert alarm.seconds == 0.8 * TTL
    wall.advance(alarm.seconds)
    alarm.then()
    await manager.threads.wait_for_background_work()
    client.add_user_message("Back again.")
    late = await managers_with_provider.send(manager, client)
    assert late.sent.headers["x-everthread-compactions"] == "1"
    (record,) = await managers_with_provider.store.list_compactions(thread_of(late.sent))
    assert record.record.reason == "idle"


async def test_without_the_setting_no_idle_timer_is_set(
    managers_with_provider: ManagersWithProvider,
) -> None:
    alarm = ManualTimer()
    client = make_client()
    manager = managers_with_provider.open(background=False, timer=alarm)
    await fill_window(
        managers_with_provider,
        manager,
        client=client,
        share=0.7,
    )
    assert alarm.then is None


async def test_another_process_knows_how_long_ago_the_last_rewrite_was(
    tmp_path: Path,
) -> None:
    """Twenty messages are kept, so that it leaves much more than a tail and a summary: the next one is soon due."""
    async with open_managers_with_provider(
        tmp_path, lambda _: text_of_tokens(1_200, "answer"), window=40_000
    ) as managers_with_provider:
        client = HistoryClient("anthropic", extra={"max_tokens": 4_000})
        rewritten: list[int] = []
        while len(rewritten) < 2:
            manager = managers_with_provider.open(cache_marks=True, background=False)
            client.add_user_message("Note this.")
            sent = (await managers_with_provider.send(manager, client)).sent
            if int(sent.headers["x-everthread-compactions"]) > len(rewritten):
                rewritten.append(len(client.messages))
        assert (rewritten[1] - rewritten[0]) // 2 >= 40_000 // WINDOW_TOKENS_PER_CALL


async def test_reports_a_postponed_compaction_once(
    managers_with_provider: ManagersWithProvider,
) -> None:
    wall = SteppedClock(1_760_000_000.0)
    manager = managers_with_provider.open(wall_clock=wall, background=False)
    client = make_client()
    await fill_window(managers_with_provider, manager, client, 0.9)
    call_count = 0
    while not managers_with_provider.events_of(Planned) or call_count < 3:
        reply = calls_reply(function_call(f"c{call_count}", "read"))
        client.add_reply(reply)
        client.messages.append(
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": f"c{call_count}",
                        "content": text_of_tokens(150, f"page {call_count}"),
                    }
                ],
            }
        )
        await managers_with_provider.send(manager, client)
        call_count += 1
    assert [plan.timing for plan in managers_with_provider.events_of(Planned)] == ["later"]


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5"])
@pytest.mark.parametrize(("window", "least"), [(12_000, 8), (64_000, 20)])
async def test_compactions_are_many_calls_apart(
    managers_with_provider: ManagersWithProvider, model: str, window: int, least: int
) -> None:
    """Whatever the model's cache costs: at 12,000 tokens every third call of gpt-4o compacted."""
    result = {12_000: 220, 64_000: 700}[window]

    managers_with_provider.window = window
    manager = managers_with_provider.open()
    client = HistoryClient("openai_chat", extra={"model": model})
    client.add_user_message("Read all of it.")
    compacted: list[int] = []
    for number in range(6 * least):
        turn = await prepare_request(manager, client.incoming())
        if turn.outgoing.headers.get("x-everthread-receipt"):
            compacted.append(number)
        tokens = int(turn.outgoing.headers.get("x-everthread-tokens", "300/300").split("/")[1])
        reply = calls_reply(function_call(f"c{number}", "read"))
        await turn.record(
            Outcome(200, reply, CanonicalUsage(input_tokens=tokens, output_tokens=20))
        )
        await manager.threads.wait_for_background_work()
        client.add_reply(reply)
        client.add_result(f"c{number}", text_of_tokens(result, f"page {number}"))
    assert len(compacted) >= 2
    assert min(later - earlier for earlier, later in pairwise(compacted)) >= least
