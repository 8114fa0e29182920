"""Rewriting when it pays: early after a pause that outlived the provider's cache, and told in a header."""

from __future__ import annotations

from pathlib import Path

from everthread.gateway.management.manager import ProxyManager
from everthread.testing import SteppedClock
from tests.gateway.clients import Client, Gate, ask, gate, thread_of, words

TTL = 300.0


async def fill(place: Gate, manager: ProxyManager, client: Client, share: float) -> int:
    """Turns until the prompt has this share of the threshold; how many tokens it has then."""
    assert place.provider is not None
    tokens = 0
    while tokens < share * place.window / 2:
        client.says(f"Note this: {words(200, 'ledger')}")
        exchange = await ask(manager, client, place.provider)
        tokens = int(exchange.sent.headers["x-everthread-tokens"].split("/")[1])
        assert exchange.sent.headers["x-everthread-compactions"] == "0"
    return tokens


async def test_after_a_long_pause_the_history_is_rewritten_below_the_threshold(tmp_path: Path) -> None:
    wall = SteppedClock(1_760_000_000.0)
    async with gate(tmp_path, lambda _: words(60, "answer")) as place:
        assert place.provider is not None
        client = Client("anthropic", extra={"max_tokens": 400})
        manager = place.manager(wall=wall, background=False)
        await fill(place, manager, client, 0.7)
        wall.advance(TTL - 10)
        client.says("Still there?")
        soon = await ask(manager, client, place.provider)
        assert soon.sent.headers["x-everthread-compactions"] == "0"
        assert "x-everthread-plan" not in soon.sent.headers
        wall.advance(TTL + 10)
        client.says("Back again.")
        late = await ask(manager, client, place.provider)
        assert late.sent.headers["x-everthread-compactions"] == "1"
        assert "the cache is cold: 310 s passed" in late.sent.headers["x-everthread-plan"]
        before, after = map(int, late.sent.headers["x-everthread-tokens"].split("/"))
        assert after < before < place.window / 2
        (record,) = await place.store.compactions(thread_of(late.sent))
        assert record.record.reason == "cold-cache"
        assert record.record.figures["decision"] == late.sent.headers["x-everthread-plan"]

        client.says("And on.")
        other = await ask(place.manager(wall=wall, background=False), client, place.provider)
        assert other.sent.headers["x-everthread-compactions"] == "1", "in every process, from then on"


async def test_switched_off_only_the_threshold_counts(tmp_path: Path) -> None:
    wall = SteppedClock(1_760_000_000.0)
    async with gate(tmp_path, lambda _: words(60, "answer")) as place:
        assert place.provider is not None
        client = Client("anthropic", extra={"max_tokens": 400})
        manager = place.manager(wall=wall, economics=False)
        await fill(place, manager, client, 0.7)
        wall.advance(2 * TTL)
        client.says("Back again.")
        exchange = await ask(manager, client, place.provider)
        assert exchange.sent.headers["x-everthread-compactions"] == "0"


async def test_what_the_last_rewrite_left_counts_when_the_next_is_weighed(tmp_path: Path) -> None:
    """Twenty messages are kept, so that it leaves much more than a tail and a summary: soon again would cost more."""
    async with gate(tmp_path, lambda _: words(1_200, "answer"), window=40_000) as place:
        assert place.provider is not None
        client = Client("anthropic", extra={"max_tokens": 4_000})
        manager = place.manager(markers=True, background=False)
        made, waited = 0, 0
        for turn in range(100):
            client.says(f"Note {turn}.")
            sent = (await ask(manager, client, place.provider)).sent
            made = int(sent.headers["x-everthread-compactions"])
            if made == 1 and turn % 3 == 0:
                manager = place.manager(markers=True, background=False)  # another process goes on with what is known
            waited += made == 1 and "not worth it yet" in sent.headers.get("x-everthread-plan", "")
            if made == 2:
                break
        assert made == 2
        assert waited > 5
