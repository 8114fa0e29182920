"""The lossless engine's tools for any MCP client: over HTTP, within the tenant, whatever arguments are given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mcp import Client

from everthread import open_conversation, open_store
from everthread.config import parse_config
from everthread.conversation.conversation import Conversation
from everthread.core.messages import text_of
from everthread.gateway.mcp_server import make_server, serve_http
from everthread.gateway.mcp_tools import LookupReach, LookupTools
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.testing import ScriptedModel
from tests.compaction.lossless.lossless_setup import NODE
from tests.conversation.conversation_setup import make_text
from tests.gateway.mcp.mcp_client import call_tool, make_thread, open_client

CONFIG = parse_config(
    "{context: {engine: lossless}, compression: {background: false, protect_last_n: 2}}"
)
SECRET = "sk-proj-" + "Ab3dE6gH9jK2mN5pQ8rT1vX4" * 2
TURNS = 14


async def long_talk(store: Store, tenant: str) -> Conversation:
    model = ScriptedModel(lambda _: make_text(120, "answer"), window=8_000)
    talk = await open_conversation(
        model,
        config=CONFIG,
        store=store,
        summarizer="journal",
        session=NewSession(tenant=tenant),
    )
    for number in range(TURNS):
        told = f"Turn {number}: {tenant}_{number:03d} stands on shelf-{number * 7919:06x}, key {SECRET}."
        await talk.send(f"{told} {make_text(300, f'topic {number}')}")
    return talk


def nodes_of(talk: Conversation) -> list[str]:
    return NODE.findall("\n".join(map(text_of, talk.messages)))


async def read_whole(made: Client, wanted: str, **more: Any) -> str:
    text = ""
    offset = 0
    while True:
        answer, failed = await call_tool(
            made, "lcm_expand", id=wanted, offset=offset, **more
        )
        assert not failed, answer
        assert len(answer) <= 6_500
        text += answer.partition("\n\n")[2].rpartition("\n\n[")[0]
        onward = re.search(r"go on with offset (\d+)\]$", answer)
        if onward is None:
            return text
        offset = int(onward[1])


async def test_everything_is_found_and_read_and_nothing_of_others(
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "store.db")
    mine = await long_talk(store, "ann")
    theirs = await long_talk(store, "bob")
    tools = LookupTools(store)
    server = make_server(tools, LookupReach("ann"))
    async with serve_http(server, "127.0.0.1", 0) as url, open_client(url) as ann:
        top = nodes_of(mine)
        whole = "".join([await read_whole(ann, node, thread=mine.id) for node in top])
        shown = "\n".join(map(text_of, mine.messages))
        found = ""
        for number in range(TURNS):
            found, _ = await call_tool(
                ann, "lcm_grep", pattern=f"ann_{number:03d}", role="user"
            )
            assert f"stands on shelf-{number * 7919:06x}" in found
            assert f"thread {mine.id}" in found, "without a thread all are searched"
            assert f"shelf-{number * 7919:06x}" in whole + shown
        assert SECRET not in whole + found
        about, _ = await call_tool(ann, "lcm_describe", id=top[0], thread=mine.id)
        assert about.startswith(f"lcm_describe {top[0]}: turns ")
        assert (await call_tool(ann, "expand", id=top[0], thread=mine.id))[
            0
        ].startswith(f"expand {top[0]}: ")
        await _refused(ann, mine, theirs, store)
    is_confined = make_server(tools, LookupReach("ann", mine.id, is_confined=True))
    async with (
        serve_http(is_confined, "127.0.0.1", 0) as url,
        open_client(url) as bound,
    ):
        other = await make_thread(
            store, "Ann's other talk names marigold-12.", tenant="ann"
        )
        assert (
            "nothing was found"
            in (await call_tool(bound, "lcm_grep", pattern="marigold"))[0]
        )
        said, failed = await call_tool(
            bound, "lcm_grep", pattern="marigold", scope="all"
        )
        assert failed
        assert "marigold-12" not in said
        number = (await store.history(other))[0].id
        assert (
            "do not try it again"
            in (await call_tool(bound, "lcm_expand", id=f"message:{number}"))[0]
        )
        assert "Turn 1:" in (await call_tool(bound, "lcm_expand", id=top[0]))[0], (
            "its own thread needs no name"
        )
    await mine.close()
    await theirs.close()
    await store.close()


async def _refused(
    ann: Client, mine: Conversation, theirs: Conversation, store: Store
) -> None:
    """Check that another tenant's ids are as unknown as made-up ones, and that senseless arguments get a sentence."""
    number = (await store.history(theirs.id))[0].id
    kept = await store.put_output(theirs.id, "the vault is in the cellar")
    for wanted in (
        nodes_of(theirs)[0],
        f"message:{number}",
        kept.id,
        "n0123456789ab",
        "message:999999999",
    ):
        for tool in ("lcm_expand", "lcm_describe"):
            said, _ = await call_tool(ann, tool, id=wanted, thread=mine.id)
            assert "do not try it again" in said, (tool, wanted, said)
            assert "bob_" not in said
            assert "cellar" not in said
    for scope in ("all", "thread"):
        assert (
            "nothing was found"
            in (
                await call_tool(
                    ann, "lcm_grep", pattern="bob_003", scope=scope, thread=mine.id
                )
            )[0]
        )
    hostile: list[tuple[str, dict[str, Any]]] = [
        ("lcm_grep", {}),
        ("lcm_grep", {"pattern": ["a"]}),
        ("lcm_grep", {"pattern": "x" * 100_000}),
        ("lcm_grep", {"pattern": "(", "mode": "regex"}),
        ("lcm_grep", {"pattern": "a", "limit": -1}),
        ("lcm_grep", {"pattern": "a", "tenant": "bob"}),
        ("lcm_grep", {"pattern": "a", "thread": theirs.id}),
        ("lcm_grep", {"pattern": "a", "thread": {"$ne": ""}}),
        ("lcm_describe", {"id": {"a": 1}}),
        ("lcm_describe", {"id": nodes_of(mine)[0]}),
        ("lcm_expand", {"id": nodes_of(mine)[0]}),
        ("lcm_expand", {"id": "../../etc/passwd", "thread": mine.id}),
        ("lcm_expand", {"id": "message:1", "offset": "12"}),
        ("lcm_expand", {"id": nodes_of(theirs)[0], "thread": theirs.id}),
        ("lcm_forget", {"id": "n1"}),
    ]
    for tool, arguments in hostile:
        said, failed = await call_tool(ann, tool, **arguments)
        assert failed, (tool, arguments, said)
        assert 0 < len(said) < 500
        assert "bob_" not in said
