"""64 clients before a provider with faults: each gets its answers, and the store has each word and each token once."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import httpx2

from everthread.config import parse_config
from everthread.factory import open_store
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider
from tests.gateway.load_checks import count_compactions, find_problems, list_fail_open_metrics
from tests.gateway.load_clients import LoadClient, NumberedAnswers, Sdk, fault_plan, served_models

CLIENTS = 64
TURNS = 3
WORDS = 40
SECONDS = 10
WINDOW = 4_000
SEED = int(os.environ.get("EVERTHREAD_SEED", "7"))


async def test_stores_every_turn_under_load_and_faults(tmp_path: Path) -> None:
    async with Provider(
        served_models(WINDOW), NumberedAnswers(), faults=fault_plan(SEED)
    ) as provider:
        config = parse_config(
            f"gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}]}}\n"
            "compression: {economics: false}\n"
            f"store: {{url: 'sqlite:///{tmp_path / 'gateway.db'}'}}"
        )
        async with open_gateway(config) as gateway:
            sdk = Sdk()
            clients = [
                LoadClient(
                    number,
                    lambda: gateway.url,
                    sdk,
                    stream=number // 3 % 2 == 1,
                    words=WORDS,
                )
                for number in range(CLIENTS)
            ]
            await asyncio.gather(
                *(client.send_turns(TURNS, SECONDS / TURNS, SEED) for client in clients)
            )
            await sdk.close()
            async with httpx2.AsyncClient(timeout=60) as http:
                metrics = (await http.get(f"{gateway.url}/metrics")).text
        assert list_fail_open_metrics(metrics) == []
        assert "everthread_in_flight 0" in metrics
        store = open_store(tmp_path / "gateway.db")
        try:
            problems = await find_problems(store, provider.log, clients)
            assert problems == {}
            assert await count_compactions(store) >= CLIENTS // 4
        finally:
            await store.close()
        assert Counter(record.fault for record in provider.log).keys() >= {
            "",
            "rate_limit",
            "server_error",
            "reset",
        }
