"""The store's tests with many more repetitions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from everthread.store.store import Store
from tests.store.killed_writers import crash_server, kill_talkers, share_threads
from tests.store.postgres_server import Server
from tests.store.reference_model import OPERATIONS, Model

pytestmark = pytest.mark.timeout(3 * 3600)


def test_thousand_kills(url: str, tmp_path: Path) -> None:
    assert kill_talkers(url, tmp_path, 1_000) > 500


def test_hundred_crashes_of_the_server(own_server: Server, tmp_path: Path) -> None:
    assert crash_server(own_server, tmp_path, 100) > 100


def test_eight_processes_share_threads(url: str, tmp_path: Path) -> None:
    assert share_threads(url, tmp_path, processes=8, amount=400) >= 8 * 2 * 400


@pytest.mark.parametrize("seed", range(20))
async def test_long_sequences_of_operations(store: Store, other_store: Store, seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - chance, not secrecy
    model = Model(store)
    await model.start(3, 0)
    for _ in range(200):
        await getattr(model, chance.choice(OPERATIONS))(chance.randrange(40), chance.randrange(40))
    await model.compare(store)
    for thread in model.threads:
        lines = await store.export(thread.id)
        await other_store.import_lines(lines)
        assert await other_store.export(thread.id) == lines
    await model.compare(other_store)
