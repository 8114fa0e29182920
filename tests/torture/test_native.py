"""Killed gateways under load: nothing is lost, stored twice or asked twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread import open_store
from everthread.core.messages import text_of
from everthread.core.types import ModelRequest
from everthread.lab.provider import Provider, ServedModel
from everthread.store.store import Store
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(1_800)
PROCESSES = 3
THREADS = 4
MESSAGES = 12
KILLS = 8
JSON = {"content-type": "application/json"}


async def send_turn(
    fleet: Fleet,
    http: httpx2.AsyncClient,
    thread: str,
    text: str,
    chance: random.Random,
) -> str:
    """Return the end of a turn for a client that retries with the same key at any gateway."""
    while True:
        _, url = chance.choice(fleet.processes)
        with suppress(httpx2.TransportError, ValueError):
            answer = await http.post(
                f"{url}/api/threads/{thread}/messages",
                json={"content": text},
                headers={"idempotency-key": text},
            )
            body: Any = answer.json()
            turn = body.get("turn") or body
            if turn.get("state") in ("answered", "interrupted"):
                return str(turn["state"])
        await asyncio.sleep(0.1)


async def hold_conversation(
    fleet: Fleet, http: httpx2.AsyncClient, thread: str, seed: int
) -> Counter[str]:
    chance = random.Random(seed)  # noqa: S311 - chance, not secrecy
    states = [
        await send_turn(fleet, http, thread, f"{thread[:6]}-{number}", chance)
        for number in range(MESSAGES)
    ]
    return Counter(states)


async def assert_threads(store: Store, provider: Provider, threads: list[str]) -> None:
    asked = Counter(
        text_of(
            next(
                message
                for message in reversed(record.request.messages)
                if message["role"] == "user"
            )
        )
        for record in provider.log
        if record.request is not None
    )
    for thread in threads:
        history = await store.load_history(thread)
        said = [text_of(item.body) for item in history if item.body["role"] == "user"]
        assert said == [f"{thread[:6]}-{number}" for number in range(MESSAGES)]
        assert [item.body["role"] for item in history] == [
            "user",
            "assistant",
        ] * MESSAGES
        turns = {
            turn.message["content"]: turn
            for turn in await store.turns.list_turns(thread, limit=1_000)
        }
        assert sorted(turns) == sorted(said)
        for place, text in enumerate(said):
            assert asked[text] <= 1, f"{text} was asked for {asked[text]} times"
            answer = text_of(history[2 * place + 1].body)
            assert turns[text].state == (
                "answered" if answer == f"re: {text}" else "interrupted"
            ), (text, answer)
    assert (await store.check()).problems == ()


async def test_killed_gateways_lose_nothing(
    new_url: Callable[..., str], kind: str, tmp_path: Path
) -> None:
    async def answer(request: ModelRequest) -> str:
        await asyncio.sleep(0.3)
        return f"re: {text_of(request.messages[-1])}"

    url = new_url(kind)
    home = tmp_path / "home"
    home.mkdir()
    async with Provider([ServedModel("gpt-4o", 60_000)], answer) as provider:
        (home / "config.yaml").write_text(
            f"model: {{default: gpt-4o, provider: custom, base_url: '{provider.url}/v1', context_length: 60000}}\n"
            f"store: {{url: '{url}'}}\n"
            f"gateway: {{upstreams: [{{name: lab, url: '{provider.url}'}}],\n"
            "  native: {lease_seconds: 2, poll_seconds: 0.1}}\n"
        )
        fleet = Fleet(home)
        await asyncio.gather(*(fleet.start() for _ in range(PROCESSES)))
        chance = random.Random(7)  # noqa: S311 - chance, not secrecy
        async with httpx2.AsyncClient(timeout=60) as http:
            made = [
                await http.post(f"{fleet.processes[0][1]}/api/threads", json={})
                for _ in range(THREADS)
            ]
            threads = [str(one.json()["id"]) for one in made]
            talks = [
                asyncio.create_task(hold_conversation(fleet, http, thread, seed))
                for seed, thread in enumerate(threads)
            ]
            for _ in range(KILLS):
                await asyncio.sleep(chance.uniform(0.3, 1.5))
                await fleet.kill(chance)
            counts = sum(await asyncio.gather(*talks), Counter())
        await fleet.close()
        store = open_store(url)
        try:
            await assert_threads(store, provider, threads)
        finally:
            await store.close()
        assert counts["answered"] + counts["interrupted"] == THREADS * MESSAGES
        assert counts["interrupted"] >= 1, "no kill met a turn: the test shows nothing"
