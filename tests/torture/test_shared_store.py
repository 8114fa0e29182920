"""Several gateways on one store, with each request to another gateway: every message is stored once, in order."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everthread import open_store
from everthread.lab.provider import Provider
from everthread.store.store import Store
from tests.gateway.load_checks import History, count_compactions, load_histories
from tests.gateway.load_clients import MARK, LoadClient, NumberedAnswers, Sdk, served_models
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(1_800)
SEED = int(os.environ.get("EVERTHREAD_SEED", "7"))
CLIENTS = 6
TURNS = int(os.environ.get("EVERTHREAD_TURNS", "60"))
SPIN = "while True: pass"


@asynccontextmanager
async def busy_machine() -> AsyncIterator[None]:
    """Keep every core busy, so that processes see each other's changes late."""
    count = os.cpu_count() or 1
    spinning = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", SPIN) for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            await process.wait()


def round_robin(fleet: Fleet) -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: fleet.processes[next(numbers) % len(fleet.processes)][1]


def count_faults(stored: Sequence[History], wanted: History) -> Counter[str]:
    """Compare the stored threads of a client with the messages that it sent and received."""
    faults: Counter[str] = Counter()
    faults["spurious branches"] = len(stored) - 1
    longest = max(stored, key=len, default=[])
    counts = Counter(longest)
    faults["doubled"] = sum(count - 1 for count in counts.values())
    faults["lost"] = sum(message not in counts for message in wanted)
    places = {message: place for place, message in enumerate(wanted)}
    order = [places[message] for message in dict.fromkeys(longest) if message in places]
    faults["reordered"] = sum(later < earlier for earlier, later in itertools.pairwise(order))
    return +faults


async def count_all_faults(store: Store, clients: Sequence[LoadClient]) -> dict[str, int]:
    """Count all faults by kind. After a kill, an answer that never reached its client may end a separate thread."""
    by_client: dict[str, list[History]] = {}
    for history in (await load_histories(store)).values():
        by_client.setdefault(MARK.findall(history[0][1])[-1], []).append(history)
    faults: Counter[str] = Counter()
    for client in clients:
        wanted = [(message["role"], message["content"]) for message in client.history]
        stored = by_client.get(f"[c{client.number}-0]", [])
        if client.failures:
            stored = [
                history
                for history in stored
                if history == wanted or not _is_unheard(history, wanted)
            ]
        faults += count_faults(stored, wanted)
    return dict(faults)


def _is_unheard(history: History, wanted: History) -> bool:
    """Return whether a thread is the client's history and one answer that never reached the client."""
    return history[-1] not in wanted and history[:-1] == wanted[: len(history) - 1]


async def run_load(database: str, folder: Path, gateways: int, kills: int = 0) -> None:
    home = folder / "home"
    home.mkdir()
    async with Provider(served_models(6_000), NumberedAnswers()) as provider:
        (home / "config.yaml").write_text(
            f"store: {{url: '{database}'}}\n"
            f"gateway: {{native: {{enabled: false}}, upstreams: [{{name: lab, url: '{provider.url}'}}]}}\n"
        )
        fleet = Fleet(home)
        sdk = Sdk()
        await asyncio.gather(*(fleet.start() for _ in range(gateways)))
        clients = [
            LoadClient(number, round_robin(fleet), sdk, stream=number % 2 == 1, words=8)
            for number in range(CLIENTS)
        ]
        async with busy_machine():
            talks = [asyncio.create_task(client.send_turns(TURNS, 0.0, SEED)) for client in clients]
            chance = random.Random(SEED)  # noqa: S311 - chance, not secrecy
            for kill in range(kills):
                due = CLIENTS * TURNS * (kill + 1) // (kills + 1)
                while sum(len(client.history) for client in clients) // 2 < due:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                await fleet.kill(chance)
            await asyncio.gather(*talks)
        await fleet.close()
        await sdk.close()
    store = open_store(database)
    try:
        faults = await count_all_faults(store, clients)
        checked = (await store.check()).problems
        made = await count_compactions(store)
    finally:
        await store.close()
    failed = sum(sum(client.failures.values()) for client in clients)
    messages = sum(len(client.history) for client in clients)
    print(
        f"{gateways} gateways, {kills} kills: {messages} messages, {failed} attempts failed, {made} compactions"
    )
    assert faults == {}
    assert checked == ()
    assert made


async def test_two_gateways_on_one_file(tmp_path: Path) -> None:
    await run_load(f"sqlite:///{tmp_path}/store.db", tmp_path, 2)


@pytest.mark.parametrize(("gateways", "kills"), [(3, 3), (10, 20)])
async def test_killed_gateways_on_a_database_server(
    new_url: Callable[..., str], tmp_path: Path, gateways: int, kills: int
) -> None:
    await run_load(new_url("postgresql"), tmp_path, gateways, kills)
