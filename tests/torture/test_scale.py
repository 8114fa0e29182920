"""Ten gateways on one PostgreSQL, all killed and restarted; then many threads and requests in one process.

Nothing is lost, stored twice or mixed up between clients. A daily limit is exceeded by at most the requests in flight.
A revoked key is refused within five seconds. A process does not grow.

"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from everthread import open_store
from everthread.core.types import ModelRequest
from everthread.core.utc_days import format_utc_day
from everthread.gateway.access.key_creation import issue_key
from everthread.lab.provider import Provider
from everthread.lab.provider.faults import Fault
from everthread.store.key_records import KeyLimits
from tests.gateway.load_checks import count_compactions, find_problems
from tests.gateway.load_clients import LoadClient, NumberedAnswers, Sdk, served_models
from tests.gateway.test_process_memory import (
    MB,
    idle_threads,
    many_requests,
    start_gateway,
)
from tests.store.postgres_server import Server
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(3_600)
SEED = int(os.environ.get("EVERTHREAD_SEED", "7"))
GATEWAYS = int(os.environ.get("EVERTHREAD_GATEWAYS", "10"))
CLIENTS = 24
SECONDS = float(os.environ.get("EVERTHREAD_SECONDS", "90"))
REVOKED_SECONDS = 5.0


class SlowModel:
    """Stream slowly, so that kills interrupt answers."""

    def __init__(self) -> None:
        self._numbered = NumberedAnswers()

    def __call__(self, request: ModelRequest) -> Fault:
        return Fault("slow", reply=self._numbered(request), seconds=0.02)


def write_config(home: Path, database: str, provider: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "config.yaml").write_text(
        f"store: {{url: '{database}'}}\n"
        "compression: {economics: false}\n"
        f"gateway: {{auth: keys, native: {{enabled: false}}, upstreams: [{{name: lab, url: '{provider}'}}]}}\n",
        "utf-8",
    )


async def talk_until(end: float, client: LoadClient, chance: random.Random) -> None:
    while time.monotonic() < end:
        await asyncio.sleep(chance.uniform(0, 0.5))
        await client.send_turn()


def _is_of_an_outage(problem: str) -> bool:
    """Return whether an outage of the database explains a failure.

    Meanwhile unknown keys are refused and compacted requests are sent whole.
    """
    return "keys_unavailable" in problem or "too long" in problem or "context length" in problem


async def test_ten_gateways_with_kills(own_server: Server, tmp_path: Path) -> None:
    home = tmp_path / "home"
    database = own_server.url()
    chance = random.Random(SEED)  # noqa: S311 - chance, not secrecy
    store = open_store(database)
    token, key = issue_key(scopes=("proxy",))
    await store.keys.create_key(key)
    async with Provider(served_models(6_000), SlowModel()) as provider:
        write_config(home, database, provider.url)
        fleet = Fleet(home)
        sdk = Sdk(key=token)
        await asyncio.gather(*(fleet.start() for _ in range(GATEWAYS)))
        clients = [
            LoadClient(
                number,
                lambda: chance.choice(fleet.processes)[1],
                sdk,
                stream=True,
                words=30,
            )
            for number in range(CLIENTS)
        ]
        end = time.monotonic() + SECONDS
        talks = [asyncio.create_task(talk_until(end, client, chance)) for client in clients]
        kills = restarts = 0
        while not all(talk.done() for talk in talks):
            await asyncio.sleep(chance.uniform(0.5, 3))
            if chance.random() < 0.3:
                await asyncio.to_thread(own_server.crash)
                await asyncio.to_thread(own_server.start)
                restarts += 1
            else:
                await fleet.kill(chance)
                kills += 1
        await asyncio.gather(*talks)
        for client in clients:
            await client.send_turn()
            client.unexpected_errors = [
                problem for problem in client.unexpected_errors if not _is_of_an_outage(problem)
            ]
        await fleet.close()
        await sdk.close()
        try:
            lost = (kills + restarts) * CLIENTS
            wrong = await find_problems(
                store, provider.log, clients, allows_unread_answers=True, max_lost_usages=lost
            )
            wrong["wrong requests"] = [
                one for one in wrong.pop("wrong requests", []) if not _is_of_an_outage(one[1])
            ]
            made = await count_compactions(store)
            (used,) = [
                one.use_of_day
                for one in await store.keys.list_keys(format_utc_day(time.time()))
                if one.key.id == key.id
            ]
        finally:
            await store.close()
    turns = sum(len(client.history) // 2 for client in clients)
    failures = sum((client.failures for client in clients), Counter[str]())
    print(
        f"{GATEWAYS} gateways, {kills} kills, {restarts} restarts of the database; {turns} turns, {made} compactions, "
        f"{used.requests} requests counted for the key, {len(provider.log)} made; failures {dict(failures)}"
    )
    assert not any(wrong.values()), wrong
    assert made
    # A gateway writes what it counted after a tenth of a second: a kill loses no more than its clients did meanwhile.
    assert used.requests >= len(provider.log) - lost


async def test_limit_is_exceeded_by_at_most_the_requests_in_flight(
    new_url: Callable[..., str], tmp_path: Path
) -> None:
    """Send with one key to all gateways at once, without pauses: the worst case for a limit."""
    home = tmp_path / "home"
    database = new_url("postgresql")
    limit = 400
    store = open_store(database)
    token, key = issue_key(scopes=("proxy",), limits=KeyLimits(requests=limit))
    await store.keys.create_key(key)
    answered: Counter[int] = Counter()
    async with Provider(served_models(128_000), NumberedAnswers()) as provider:
        write_config(home, database, provider.url)
        fleet = Fleet(home)
        await asyncio.gather(*(fleet.start() for _ in range(GATEWAYS)))

        async def ask(url: str, number: int) -> None:
            async with httpx2.AsyncClient(timeout=60) as client:
                while True:
                    message = {
                        "role": "user",
                        "content": f"Client {number}, request {sum(answered.values())}",
                    }
                    answer = await client.post(
                        f"{url}/v1/chat/completions",
                        content=json.dumps({"model": "gpt-4o", "messages": [message]}),
                        headers={
                            "authorization": f"Bearer {token}",
                            "content-type": "application/json",
                        },
                    )
                    answered[answer.status_code] += 1
                    if answer.status_code == 429:
                        return

        urls = [url for _, url in fleet.processes]
        await asyncio.gather(
            *(ask(urls[number % GATEWAYS], number) for number in range(2 * GATEWAYS))
        )
        await store.keys.revoke_key(key.id)
        revoked = time.monotonic()
        alive = set(urls)
        async with httpx2.AsyncClient(timeout=60) as client:
            while alive:
                for url in list(alive):
                    answer = await client.get(
                        f"{url}/metrics", headers={"authorization": f"Bearer {token}"}
                    )
                    if answer.status_code == 401:
                        alive.discard(url)
                assert not alive or time.monotonic() - revoked < 2 * REVOKED_SECONDS
        took = time.monotonic() - revoked
        await fleet.close()
        await store.close()
    over = answered[200] - limit
    print(
        f"{answered[200]} of {limit} requests were let in by {GATEWAYS} gateways; the key was dead after {took:.1f} s"
    )
    assert 0 <= over <= 20 * GATEWAYS, "what ten processes let in before they hear of each other"
    assert took <= REVOKED_SECONDS


async def test_ten_thousand_idle_threads_need_no_memory(tmp_path: Path) -> None:
    with ExitStack() as stack:
        server = await asyncio.to_thread(start_gateway, stack, tmp_path)
        sizes = await idle_threads(server, 10_000)
    print(f"10,000 sleeping threads: {[size // MB for size in sizes]} MB")
    assert sizes[-1] - sizes[2] < 64 * MB, "what is remembered is full by then"


async def test_memory_does_not_grow_in_a_hundred_thousand_requests(
    tmp_path: Path,
) -> None:
    with ExitStack() as stack:
        server = await asyncio.to_thread(start_gateway, stack, tmp_path)
        sizes = await many_requests(server, 100_000)
    print(f"100,000 requests: {[size // MB for size in sizes]} MB")
    assert sizes[-1] - sizes[2] < 32 * MB
