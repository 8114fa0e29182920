"""A compacted conversation whose client gets our MCP server in place of `recall`, or loses it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everthread.thread.events import CompactionDone
from tests.gateway.manager_setup import (
    HistoryClient,
    ManagersWithProvider,
    numbered_text,
    open_managers_with_provider,
    prepare_request,
)


def tool(name: str) -> Any:
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object"},
        },
    }


def deferred_tool(name: str) -> Any:
    definition = {
        "name": name,
        "input_schema": {"type": "object"},
    }
    return {**definition, "defer_loading": True}


def system_message(text: str, *blocks: Any) -> Any:
    return {
        "role": "system",
        "content": [{"type": "text", "text": text}, *blocks],
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
    managers_with_provider: ManagersWithProvider, client: HistoryClient, tools: list[Any]
) -> None:
    """Continue in another process, with these tools, until another compaction was made."""
    client.tools = tools
    manager = managers_with_provider.open(recall=True, background=False)
    before = len(managers_with_provider.events_of(CompactionDone))
    for number in range(40):
        client.add_user_message(numbered_text(number, 200, "ledger"))
        await managers_with_provider.send(manager, client)
        if len(managers_with_provider.events_of(CompactionDone)) > before:
            return
    raise AssertionError("nothing was compacted")


@pytest.mark.parametrize("api", ["anthropic", "openai_chat"])
@pytest.mark.parametrize(
    "tools",
    [
        (WRAP, WRAP_MCP),
        (WRAP_MCP, WRAP),
    ],
)
async def test_changed_reading_tools_keep_the_compaction(
    tmp_path: Path, api: Any, tools: tuple[list[Any], list[Any]]
) -> None:
    before, after = tools
    async with open_managers_with_provider(tmp_path, lambda _: "Noted.") as managers_with_provider:
        client = HistoryClient(api)
        await talk_until_compacted(managers_with_provider, client, before)
        await talk_until_compacted(managers_with_provider, client, before)
        compactions = managers_with_provider.events_of(CompactionDone)
        client.tools = after
        manager = managers_with_provider.open(recall=True, background=False)
        bodies = []
        for question in ("And now?", "And then?"):
            client.add_user_message(question)
            sent = (await managers_with_provider.send(manager, client)).sent
            assert sent.headers["x-everthread-compactions"] == "2"
            bodies.append(sent.body.decode())
        assert managers_with_provider.events_of(CompactionDone) == compactions, (
            "nothing is compacted again"
        )
        for body in bodies:
            assert f"with {NAMED[id(after)]}, by words" in body
            assert f"with {NAMED[id(before)]}, by words" not in body
        await talk_until_compacted(managers_with_provider, client, after)
        await talk_until_compacted(managers_with_provider, client, before)
        counts = [event.count for event in managers_with_provider.events_of(CompactionDone)]
        assert counts == [1, 2, 3, 4]


READERS = ("mcp__everthread__expand", "mcp__everthread__search")
ATTACHED = system_message(
    "The following tools just became available and are ready to use:\n" + "\n".join(READERS),
    *(
        {
            "type": "tool_addition",
            "tool": {"type": "tool_reference", "name": name},
        }
        for name in READERS
    ),
)
DETACHED_BY_WORDS = system_message(
    "The following deferred tools are no longer available. Do not search for them:\n"
    + "\n".join((*READERS, "mcp__everthread__pin"))
    + "\n\nThe following MCP servers have disconnected:\neverthread"
)
DETACHED_BY_BLOCKS = system_message(
    "Some tools are gone.",
    *(
        {
            "type": "tool_removal",
            "tool": {"type": "tool_reference", "name": name},
        }
        for name in READERS
    ),
)
DETACHED_IN_PART = system_message(
    f"The following deferred tools are no longer available:\n{READERS[0]}"
)
MENTIONED = {"role": "user", "content": f"{READERS[1]} is no longer available?"}


@pytest.mark.parametrize(
    ("notices", "is_offered"),
    [
        ([ATTACHED], False),
        ([ATTACHED, DETACHED_BY_WORDS], True),
        ([ATTACHED, DETACHED_BY_BLOCKS], True),
        ([ATTACHED, DETACHED_BY_WORDS, ATTACHED], False),
        ([ATTACHED, DETACHED_IN_PART], False),
        ([ATTACHED, MENTIONED], False),
        ([], False),
    ],
    ids=["on", "words", "blocks", "on again", "in part", "mentioned", "no notice"],
)
async def test_offers_recall_again_when_the_mcp_server_is_detached(
    tmp_path: Path, notices: list[Any], *, is_offered: bool
) -> None:
    """As Claude Code does it: the history refers to the deferred definitions, so they are sent for good."""
    async with open_managers_with_provider(tmp_path, lambda _: "Noted.") as managers_with_provider:
        client = HistoryClient("anthropic")
        client.extra = {"tools": [deferred_tool(name) for name in READERS]}
        await talk_until_compacted(managers_with_provider, client, [])
        for notice in notices:
            client.messages.append(notice)
            if notice["role"] == "system":
                client.add_user_message("Go on.")
        if not notices or notices[-1]["role"] == "system":
            client.add_user_message("What came before?")
        manager = managers_with_provider.open(recall=True, background=False)
        turn = await prepare_request(manager, client.incoming())
        assert turn.outgoing.offers_recall is is_offered
        body = turn.outgoing.body.decode()
        assert ("with `recall`, by words" in body) is is_offered
        named = "with `mcp__everthread__expand` and `mcp__everthread__search`, by"
        assert (named in body) is not is_offered
