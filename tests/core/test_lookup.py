"""Which tools do nothing but look things up."""

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


@pytest.mark.parametrize(
    "name", [*OURS, "MCP__Everthread__Search", "x__everthread_pin"]
)
def test_our_tools_are_known_however_a_client_calls_them(name: str) -> None:
    assert is_lookup_tool(name)


@pytest.mark.parametrize("name", OTHERS)
def test_other_tools_are_not_ours(name: str) -> None:
    assert not is_lookup_tool(name)


def test_what_a_client_can_search_and_read_with() -> None:
    assert find_lookup_tools([*OURS, *OTHERS]) == (
        "everthread_expand",
        "mcp__everthread__search",
        "recall",
    )


def test_an_answer_of_a_lookup_is_known_by_its_tool_and_its_size() -> None:
    assert is_lookup_answer("recall", "found")
    assert not is_lookup_answer("recall", "x" * 30_000), "none of ours is so long"
    assert not is_lookup_answer("read_file", "found")
