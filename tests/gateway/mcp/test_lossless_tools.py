"""The lossless engine's tools for any MCP client: over HTTP, within the tenant, whatever arguments are given."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
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
from tests.gateway.mcp.mcp_client import (
    call_tool,
    fail_tool,
    make_thread,
    open_client,
)

CONFIG = parse_config(
    "{context: {engine: lossless}, compression: {background: false, protect_last_n: 2}}"
)
SECRET = "sk-proj-" + "Ab3dE6gH9jK2mN5pQ8rT1vX4" * 2
TURNS = 14


async def hold_long_conversation(store: Store, tenant: str) -> Conversation:
    model = ScriptedModel(lambda _: make_text(120, "answer"), window=8_000)
    conversation = await open_conversation(
        model,
        config=CONFIG,
        store=store,
        summarizer="journal",
        session=NewSession(tenant=tenant),
    )
    for number in range(TURNS):
        fact = f"{tenant}_{number:03d} stands on {shelf(number)}, key {SECRET}."
        await conversation.send(f"Turn {number}: {fact} {make_text(300, f'topic {number}')}")
    return conversation


def shelf(number: int) -> str:
    return f"shelf-{number * 7919:06x}"


def texts_shown(conversation: Conversation) -> str:
    return "\n".join(map(text_of, conversation.messages))


def nodes_of(conversation: Conversation) -> list[str]:
    return NODE.findall(texts_shown(conversation))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = open_store(tmp_path / "store.db")
    yield opened
    await opened.close()


@pytest.fixture
async def own_conversation(store: Store) -> AsyncIterator[Conversation]:
    conversation = await hold_long_conversation(store, "ann")
    yield conversation
    await conversation.close()


@pytest.fixture
async def foreign_conversation(store: Store) -> AsyncIterator[Conversation]:
    """A conversation of another tenant."""
    conversation = await hold_long_conversation(store, "bob")
    yield conversation
    await conversation.close()


@asynccontextmanager
async def serve_tools(store: Store, reach: LookupReach) -> AsyncIterator[Client]:
    server = make_server(LookupTools(store), reach)
    async with serve_http(server, "127.0.0.1", 0) as url, open_client(url) as client:
        yield client


async def test_searches_every_thread_of_the_tenant(
    store: Store, own_conversation: Conversation
) -> None:
    async with serve_tools(store, LookupReach("ann")) as ann:
        matches = await call_tool(ann, "lcm_grep", pattern="ann_003", role="user")
        assert f"stands on {shelf(3)}" in matches
        assert f"thread {own_conversation.id}" in matches
        assert SECRET not in matches
        node = nodes_of(own_conversation)[0]
        passage = await call_tool(ann, "expand", id=node, thread=own_conversation.id)
        assert passage.startswith(f"expand {node}: ")
        assert SECRET not in passage


async def test_a_confined_client_sees_only_its_own_thread(
    store: Store, own_conversation: Conversation
) -> None:
    other = await make_thread(store, "Another talk names marigold-12.", tenant="ann")
    message = f"message:{(await store.load_history(other))[0].id}"
    reach = LookupReach("ann", own_conversation.id, is_confined=True)
    async with serve_tools(store, reach) as client:
        output = await call_tool(client, "lcm_grep", pattern="marigold")
        assert "nothing was found" in output
        everywhere = {"pattern": "marigold", "scope": "all"}
        assert "marigold-12" not in await fail_tool(client, "lcm_grep", **everywhere)
        unknown = await call_tool(client, "lcm_expand", id=message)
        assert "do not try it again" in unknown
        passage = await call_tool(client, "lcm_expand", id=nodes_of(own_conversation)[0])
        assert "Turn 1:" in passage, "its own thread needs no name"


async def test_answers_alike_for_another_tenants_ids_and_invented_ones(
    store: Store, own_conversation: Conversation, foreign_conversation: Conversation
) -> None:
    output = await store.outputs.put_output(foreign_conversation.id, "the vault is in the cellar")
    ids = (
        nodes_of(foreign_conversation)[0],
        f"message:{(await store.load_history(foreign_conversation.id))[0].id}",
        output.id,
        "n0123456789ab",
        "message:999999999",
    )
    async with serve_tools(store, LookupReach("ann")) as ann:
        for node_id, tool in product(ids, ("lcm_expand", "lcm_describe")):
            text = await call_tool(
                ann,
                tool,
                id=node_id,
                thread=own_conversation.id,
            )
            assert "do not try it again" in text, (tool, node_id, text)
            assert "bob_" not in text
            assert "cellar" not in text
        for scope in ("all", "thread"):
            search = {
                "pattern": "bob_003",
                "scope": scope,
                "thread": own_conversation.id,
            }
            assert "nothing was found" in await call_tool(ann, "lcm_grep", **search)


async def test_refuses_invalid_arguments_in_a_sentence(
    store: Store, own_conversation: Conversation, foreign_conversation: Conversation
) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("lcm_grep", {}),
        ("lcm_grep", {"pattern": ["a"]}),
        ("lcm_grep", {"pattern": "x" * 100_000}),
        ("lcm_grep", {"pattern": "(", "mode": "regex"}),
        ("lcm_grep", {"pattern": "a", "limit": -1}),
        ("lcm_grep", {"pattern": "(a+)+$" * 20, "mode": "regex", "limit": -1}),
        ("lcm_grep", {"pattern": "a", "mode": "sql"}),
        ("lcm_grep", {"pattern": "a", "limit": 10**30}),
        ("lcm_grep", {"pattern": "a", "offset": True}),
        ("lcm_grep", {"pattern": "a", "tenant": "bob"}),
        ("lcm_grep", {"pattern": "a", "thread": foreign_conversation.id}),
        ("lcm_grep", {"pattern": "a", "thread": {"$ne": ""}}),
        ("lcm_describe", {"id": {"a": 1}}),
        ("lcm_describe", {"id": nodes_of(own_conversation)[0]}),
        ("lcm_expand", {"id": nodes_of(own_conversation)[0]}),
        ("lcm_expand", {"id": "../../etc/passwd", "thread": own_conversation.id}),
        ("lcm_expand", {"id": "message:1", "offset": "12"}),
        (
            "lcm_expand",
            {"id": nodes_of(foreign_conversation)[0], "thread": foreign_conversation.id},
        ),
        ("lcm_forget", {"id": "n1"}),
    ]
    async with serve_tools(store, LookupReach("ann")) as ann:
        for tool, arguments in calls:
            message = await fail_tool(ann, tool, **arguments)
            assert "bob_" not in message
