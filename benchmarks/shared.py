"""Find the real transcripts, on machines that have them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

HALVES = ("tuned on", "told on")
ROOT = Path(os.environ.get("EVERTHREAD_DATA") or Path(__file__).parents[2] / "shared" / "data")


def find_shared(*parts: str) -> Path | None:
    """Return the path of a shared data file; None if it is absent."""
    path = ROOT.joinpath(*parts)
    return path if path.exists() else None


def half_of(text: str) -> str:
    """Return one of two halves by the text's hash, the same on every machine.

    "tuned on" may be looked at and learnt from; "told on" is only measured. All of it had been seen before the split.
    """
    return HALVES[hashlib.sha256(text.encode()).digest()[0] % 2]
