"""Recognize the tools that only look up earlier messages."""

from __future__ import annotations

import pytest

from everthread.core.lookup_tools import (
    find_lookup_tools,
    is_lookup_answer,
    is_lookup_tool,
)

OURS = [
    "recall",
    "lcm_grep",
    "lcm_expand",
    "mcp__everthread__search",
    "everthread_expand",
    "everthread.status",
]
OURS += ["mcp__everthread__lcm_grep", "everthread-lcm_expand"]
OTHERS = [
    "search",
    "expand",
    "grep",
    "recall_order",
    "total_recall",
    "everthread",
    "neverthread_search",
    "lcm_",
    "",
]


@pytest.mark.parametrize("name", [*OURS, "MCP__Everthread__Search", "x__everthread_pin"])
def test_recognizes_our_tools_under_every_client_prefix(name: str) -> None:
    assert is_lookup_tool(name)


@pytest.mark.parametrize("name", OTHERS)
def test_rejects_other_tools(name: str) -> None:
    assert not is_lookup_tool(name)


def test_lists_the_tools_that_search_and_read() -> None:
    assert find_lookup_tools([*OURS, *OTHERS]) == (
        "everthread_expand",
        "mcp__everthread__search",
        "recall",
    )


def test_recognizes_lookup_answers_by_tool_and_size() -> None:
    assert is_lookup_answer("recall", "found")
    assert not is_lookup_answer("recall", "x" * 30_000), "no lookup answer is that long"
    assert not is_lookup_answer("read_file", "found")
