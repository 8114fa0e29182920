"""Where the real transcripts are, on machines that have them."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(os.environ.get("EVERTHREAD_DATA") or Path(__file__).parents[2] / "shared" / "data")


def shared(*parts: str) -> Path | None:
    """The path of a shared data file, None where it is absent."""
    path = ROOT.joinpath(*parts)
    return path if path.exists() else None
