"""The texts of the system prompt."""

from __future__ import annotations

import functools
from importlib import resources


@functools.cache
def load_prompt_text(name: str) -> str:
    """Load a text from `texts/`."""
    return (
        resources.files("everthread.agent")
        .joinpath("texts", f"{name}.txt")
        .read_text("utf-8")
        .strip()
    )
