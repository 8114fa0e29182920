"""Find how much of a model's window a client uses."""

from __future__ import annotations

from everthread.lab.importers.claude_code import (
    DEFAULT_CLAUDE_WINDOW,
    LARGE_CLAUDE_WINDOW,
)
from everthread.providers.catalog import find_catalogue_window


def find_client_window(client: str, model: str, *, largest_prompt: int) -> int:
    """Return the tokens of the window that a client uses with a model.

    Claude Code uses 200,000 tokens of a larger window, unless the model's name asks for more (`[1m]`) or a prompt was
    larger.
    """
    window = find_catalogue_window(model).tokens
    if (
        client == "claude-code"
        and window == LARGE_CLAUDE_WINDOW
        and largest_prompt <= DEFAULT_CLAUDE_WINDOW
        and not model.endswith("[1m]")
    ):
        return DEFAULT_CLAUDE_WINDOW
    return window
