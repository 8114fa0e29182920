"""Every test has an Everthread home of its own, and can have agents on a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.agent.agent_setup import AgentSetup, open_setup


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[AgentSetup]:
    async with open_setup(tmp_path) as opened:
        yield opened
