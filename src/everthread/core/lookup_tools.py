"""Tools with which a model searches and reads earlier messages: their names, and their answers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from everthread.core.text import clip

_LOOKUP_TOOL_PATTERN = re.compile(
    r"(?:.*[^a-z0-9])?everthread[^a-z0-9]+(?:search|expand|status|state|pin|lcm_[a-z]{1,40})|recall|lcm_[a-z]{1,40}"
)
ANSWER_GIST_CHARS = 200
"""Characters to keep of an old answer."""
MAX_ANSWER_CHARS = 21_000
"""Everthread's answers are shorter. A longer answer comes from another tool of the same name."""


def is_lookup_tool(tool: str) -> bool:
    """Return whether a tool only looks up earlier messages: its arguments and answers are not findings."""
    return _LOOKUP_TOOL_PATTERN.fullmatch(tool.lower()) is not None


def is_lookup_answer(tool: str, text: str) -> bool:
    """Return whether a result answers a lookup. Such a result is never stored and cited."""
    return len(text) <= MAX_ANSWER_CHARS and is_lookup_tool(tool)


def shorten_answer(answer: str) -> str:
    """Return the start of an old answer's first line, which contains the question and the ids."""
    return clip(answer.lstrip().partition("\n")[0].rstrip(), ANSWER_GIST_CHARS)


def find_lookup_tools(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the tools with which a client can search and read earlier messages, without `lcm_…`."""
    own_tools = (name for name in names if is_lookup_tool(name) and "lcm_" not in name.lower())
    return tuple(
        sorted(name for name in own_tools if name.lower().endswith(("search", "expand", "recall")))
    )
