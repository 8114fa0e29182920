"""Forty turns of everything that goes wrong; five hundred are in `make torture`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversation.http_setup import KEY
from tests.conversation.soak import soak


async def test_loses_and_duplicates_nothing_despite_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-lab")
    done = await soak(tmp_path, seed=1, turns=40)
    assert (
        sum(
            done[kind]
            for kind in (
                "send",
                "stream",
                "tools",
                "cancel",
                "compress",
                "undo",
                "restart",
            )
        )
        == 40
    )
