"""Every test has an Everthread home of its own, and can have agents on a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.agent_setup import Agents, open_agents


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
async def agents(tmp_path: Path) -> AsyncIterator[Agents]:
    async with open_agents(tmp_path) as opened:
        yield opened
