"""A compacted conversation whose client gets our MCP server in place of `recall`, or loses it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.thread.events import CompactionDone
from tests.gateway.manager_setup import (
    HistoryClient,
    ProviderSetup,
    numbered_text,
    open_manager_setup,
)


def tool(name: str) -> Any:
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object"}},
    }


WRAP = [tool("look")]
WRAP_MCP = [
    *WRAP,
    tool("mcp__everthread__expand"),
    tool("mcp__everthread__search"),
]
NAMED = {
    id(WRAP): "`recall`",
    id(WRAP_MCP): "`mcp__everthread__expand` and `mcp__everthread__search`",
}


async def talk_until_compacted(
    setup: ProviderSetup, client: HistoryClient, tools: list[Any]
) -> None:
    """Continue in another process, with these tools, until another compaction was made."""
    client.tools = tools
    manager = setup.manager(recall=True, background=False)
    before = len(setup.of(CompactionDone))
    for number in range(40):
        client.add_user_message(numbered_text(number, 200, "ledger"))
        await setup.send(manager, client)
        if len(setup.of(CompactionDone)) > before:
            return
    raise AssertionError("nothing was compacted")


@pytest.mark.parametrize("api", ["anthropic", "openai_chat"])
@pytest.mark.parametrize("tools", [(WRAP, WRAP_MCP), (WRAP_MCP, WRAP)])
async def test_other_reading_tools_keep_the_compaction(
    tmp_path: Path, api: Any, tools: tuple[list[Any], list[Any]]
) -> None:
    before, after = tools
    async with open_manager_setup(tmp_path, lambda _: "Noted.") as setup:
        client = HistoryClient(api)
        await talk_until_compacted(setup, client, before)
        await talk_until_compacted(setup, client, before)
        made = setup.of(CompactionDone)
        client.tools = after
        manager = setup.manager(recall=True, background=False)
        bodies = []
        for question in ("And now?", "And then?"):
            client.add_user_message(question)
            sent = (await setup.send(manager, client)).sent
            assert sent.headers["x-everthread-compactions"] == "2"
            bodies.append(sent.body.decode())
        assert setup.of(CompactionDone) == made, "nothing is compacted again"
        for body in bodies:
            assert f"with {NAMED[id(after)]}, by words" in body
            assert f"with {NAMED[id(before)]}, by words" not in body
        await talk_until_compacted(setup, client, after)
        await talk_until_compacted(setup, client, before)
        assert [event.count for event in setup.of(CompactionDone)] == [1, 2, 3, 4]
