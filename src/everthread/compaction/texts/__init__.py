"""Texts that stand in a context: markers of a summary, the note that a system prompt gains, how nodes are read."""

from __future__ import annotations

import functools
from importlib import resources


@functools.cache
def text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.txt").read_text("utf-8").strip()
