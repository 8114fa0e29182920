"""Where the real transcripts are, on machines that have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("EVERTHREAD_DATA") or Path(__file__).parents[2] / "shared" / "data")


def shared_path(*parts: str) -> Path:
    """Return the path of a shared data file; skip the test if it is absent."""
    path = ROOT.joinpath(*parts)
    if not path.exists():
        pytest.skip(
            f"real material is absent: {path} (set EVERTHREAD_DATA to the folder that has it)"
        )
    return path
