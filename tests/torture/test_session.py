"""Five hundred turns with every kind of fault, for several seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.core.types import Api
from tests.conversation.http_setup import KEY
from tests.conversation.local_model import overflow_for_real, pass_the_window
from tests.conversation.soak import soak
from tests.providers.conftest import local_file

__all__ = ["local_file"]


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", range(100, 104))
async def test_five_hundred_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv(KEY, "sk-lab")
    done = await soak(tmp_path, seed=seed, turns=500)
    assert done.total() >= 500


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("api", ["openai_chat", "openai_responses", "anthropic"])
async def test_real_model_with_a_window_of_2048(tmp_path: Path, local_file: Path, api: Api) -> None:
    assert await pass_the_window(tmp_path, local_file, window=2_048, api=api) >= 2


@pytest.mark.timeout(1_800)
async def test_real_overflow_at_2048(tmp_path: Path, local_file: Path) -> None:
    assert await overflow_for_real(tmp_path, local_file, window=2_048) == 2_048
