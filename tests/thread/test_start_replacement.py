"""The start of a client's history, replaced: its stored results name the tool that reads them."""

from __future__ import annotations

import json
from typing import Any

from everthread.core.tool_outputs import make_persisted_block
from everthread.thread.caller.start_replacement import (
    mention_reading_tool,
    rename_reading_tools,
)
from tests.chat_messages import result_message

RECALL: Any = {
    "type": "function",
    "function": {"name": "recall"},
}
BLOCK = make_persisted_block("line\n" * 500, preview_chars=40)


def test_a_stored_result_names_only_a_tool_that_the_client_has() -> None:
    own: Any = {
        "role": "tool",
        "content": BLOCK,
    }
    replacement = [own, result_message("a", BLOCK)]
    named = mention_reading_tool(replacement, [own], [RECALL])
    assert named[0] == own
    assert "call recall with id" in named[1]["content"]
    unnamed = mention_reading_tool(replacement, [own], None)
    assert "read_file" not in unnamed[1]["content"]


def test_a_stored_result_names_the_tool_that_came_later() -> None:
    [named] = mention_reading_tool([result_message("a", BLOCK)], [], [RECALL])
    stored = json.dumps(named)
    text = rename_reading_tools(
        stored,
        ["recall"],
        ["mcp__notes__expand"],
    )
    assert "call mcp__notes__expand with id" in text
    assert (
        rename_reading_tools(
            text,
            ["mcp__notes__expand"],
            ["recall"],
        )
        == stored
    )
    assert (
        rename_reading_tools(
            text,
            ["mcp__notes__search"],
            ["recall"],
        )
        == text
    )
