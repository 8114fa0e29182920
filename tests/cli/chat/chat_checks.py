"""What a chat stored and sent."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from everthread.core.types import ModelRequest
from everthread.lab.provider import Provider
from everthread.store.store import Store
from tests.cli.conftest import RunOnStore

PROMPT = "› "


LONG = "word " * 200


def wait_for_pid_file(file: Path) -> list[int]:
    """Wait for the process ids that a command writes to a file."""
    for _ in range(500):
        if file.exists() and (pids := file.read_text("utf-8").split()):
            return [int(pid) for pid in pids]
        time.sleep(0.02)
    raise AssertionError(f"nothing was written to {file}")


def last_thread(run_on_store: RunOnStore) -> tuple[str, list[Any]]:
    """Return the newest thread and its context for the model."""

    async def read(store: Store) -> tuple[str, list[Any]]:
        (row, *_) = await store.list_threads(limit=1)
        return row.first.id, [stored.body for stored in await store.list_messages(row.tip.id)]

    return run_on_store(read)


def received_request(provider: Provider, at: int = -1) -> ModelRequest:
    """Return one received request."""
    request = provider.log[at].request
    assert request is not None
    return request
