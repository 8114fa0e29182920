"""The proxy under load: two minutes of faults, and killed processes. Nothing is lost or stored twice."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread import open_store
from everthread.core.messages import text_of
from everthread.core.types import ModelRequest
from everthread.lab.provider import Provider, ServedModel
from everthread.lab.provider.answers import RequestRecord
from everthread.lab.provider.faults import Fault
from tests.gateway.load_checks import count_compactions, find_problems, list_fail_open_metrics
from tests.gateway.load_clients import (
    MARK,
    NAMES,
    LoadClient,
    NumberedAnswers,
    Sdk,
    fault_plan,
    served_models,
)
from tests.gateway.test_workers import kill_worker
from tests.torture.fleet import Fleet

pytestmark = pytest.mark.timeout(1_800)
SEED = int(os.environ.get("EVERTHREAD_SEED", "7"))
WRITER = "gpt-4o-mini"
KILLS = 25


async def talk_until(
    is_over: Callable[[], bool], client: LoadClient, chance: random.Random
) -> None:
    while not is_over():
        await asyncio.sleep(chance.uniform(0, 1))
        await client.send_turn()


def in_seconds(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def memory(process: int) -> int:
    """Return a process's memory in MB."""
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) // 1024


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="there is no /proc to read memory from",
)
async def test_two_minutes_of_faults(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    async with Provider(
        served_models(6_000), NumberedAnswers(), faults=fault_plan(SEED)
    ) as provider:
        fleet = Fleet(home, "--upstream", f"lab={provider.url}")
        url = await fleet.start()
        served = fleet.processes[0][0].pid
        sdk = Sdk()
        clients = [
            LoadClient(number, lambda: url, sdk, stream=number // 3 % 2 == 1, words=20)
            for number in range(64)
        ]
        sizes: list[int] = []
        for _ in range(4):
            chances = [
                random.Random(f"{SEED} {client.number} {len(sizes)}")  # noqa: S311
                for client in clients
            ]
            await asyncio.gather(
                *(talk_until(in_seconds(30), *pair) for pair in zip(clients, chances, strict=True))
            )
            sizes.append(memory(served))
        await sdk.close()
        async with httpx2.AsyncClient(timeout=60) as http:
            metrics = (await http.get(f"{url}/metrics")).text
        await fleet.close()
        store = open_store(home / "everthread.db")
        try:
            assert await find_problems(store, provider.log, clients) == {}
            made = await count_compactions(store)
        finally:
            await store.close()
        turns = sum(len(client.history) // 2 for client in clients)
        print(
            f"64 clients: {turns} turns, {len(provider.log)} requests, {made} compactions, memory {sizes} MB"
        )
        assert list_fail_open_metrics(metrics) == []
        assert made >= 64
        assert sizes[-1] < 1.5 * sizes[1]


class SlowModel:
    """Stream and summarise slowly, so that kills interrupt both."""

    def __init__(self) -> None:
        self._numbered = NumberedAnswers()

    def __call__(self, request: ModelRequest) -> Fault:
        if request.model == WRITER:
            return Fault(
                "delay",
                reply="## Goal\nThe entries of the branch are settled one by one.",
                seconds=0.4,
            )
        return Fault("slow", reply=self._numbered(request), seconds=0.03)


def different_rewrites(log: Sequence[RequestRecord], clients: Sequence[LoadClient]) -> list[Any]:
    """Return the beginnings for which not every process sent the same bytes."""
    known = {message["content"] for client in clients for message in client.history}
    sent: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for record in log:
        if record.request is None or record.model == WRITER:
            continue
        texts = [text_of(message) for message in record.request.messages]
        ours = [
            at for at, text in enumerate(texts) if text not in known and not MARK.search(text[-20:])
        ]
        if ours:
            sent[texts[ours[-1] + 1]].add(tuple(texts[: ours[-1] + 1]))
    return [(start[-20:], len(heads)) for start, heads in sent.items() if len(heads) > 1]


def count_broken_answers(log: Sequence[RequestRecord]) -> tuple[int, int]:
    """Count the answers and the summaries that a kill interrupted."""
    gone = [record.model == WRITER for record in log if "gone" in record.events]
    return gone.count(False), gone.count(True)


async def test_killed_gateways_lose_nothing(new_url: Callable[..., str], tmp_path: Path) -> None:
    database = new_url("postgresql")
    home = tmp_path / "home"
    home.mkdir()
    served = [*served_models(6_000), ServedModel(WRITER, 128_000)]
    async with Provider(served, SlowModel()) as provider:
        (home / "config.yaml").write_text(
            f"store: {{url: '{database}'}}\n"
            f"auxiliary: {{compression: {{provider: custom, base_url: '{provider.url}/v1', model: {WRITER}}}}}\n"
            f"gateway: {{native: {{enabled: false}}, upstreams: [{{name: lab, url: '{provider.url}'}}]}}\n"
        )
        fleet = Fleet(home)
        sdk = Sdk()
        await asyncio.gather(*(fleet.start() for _ in range(3)))
        chance = random.Random(SEED)  # noqa: S311 - chance, not secrecy
        clients = [
            LoadClient(
                number,
                lambda: chance.choice(fleet.processes)[1],
                sdk,
                stream=number % 4 > 0,
                words=30,
            )
            for number in range(12)
        ]
        kills = 0

        def is_over() -> bool:
            """Return whether enough has happened, however long it took: on a busy machine a process starts slowly."""
            return kills >= KILLS and all(count_broken_answers(provider.log))

        talks = [asyncio.create_task(talk_until(is_over, client, chance)) for client in clients]
        while not all(talk.done() for talk in talks):
            await asyncio.sleep(chance.uniform(0.5, 2))
            await fleet.kill(chance)
            kills += 1
        await asyncio.gather(*talks)
        answers, summaries = count_broken_answers(provider.log)
        await fleet.close()
        await sdk.close()
        store = open_store(database)
        try:
            main = [record for record in provider.log if record.model in NAMES.values()]
            wrong = await find_problems(
                store,
                main,
                clients,
                allows_unread_answers=True,
                max_lost_usages=kills * len(clients),
            )
            made = await count_compactions(store)
        finally:
            await store.close()
        print(
            f"{kills} kills met {answers} answers and {summaries} summaries in the middle; {len(main)} requests, "
            f"{sum(len(client.history) for client in clients) // 2} turns, {made} compactions"
        )
        assert wrong == {}
        assert different_rewrites(main, clients) == []


async def test_killed_worker_on_either_database(
    kind: str, new_url: Callable[..., str], tmp_path: Path
) -> None:
    assert await kill_worker(new_url(kind), tmp_path)
