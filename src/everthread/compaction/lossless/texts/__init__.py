"""The texts around a thread's nodes."""

from __future__ import annotations

import functools
from importlib import resources


@functools.cache
def text(name: str) -> str:
    return resources.files(__name__).joinpath(f"{name}.txt").read_text("utf-8").strip()
