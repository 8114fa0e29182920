"""Five hundred turns of everything that goes wrong, for several seeds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.session.served import KEY
from tests.session.soak import soak


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(100, 104))
def test_a_long_soak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setenv(KEY, "sk-lab")
    asyncio.run(soak(tmp_path, seed=seed, turns=500))
