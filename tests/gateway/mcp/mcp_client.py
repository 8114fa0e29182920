"""A client of the official SDK, and threads for it to look into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store


@asynccontextmanager
async def open_client(url: str, headers: Mapping[str, str] | None = None) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers=dict(headers or {}), timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        yield client


async def call_tool(client: Client, tool: str, **arguments: Any) -> str:
    """Return the text of a tool's result."""
    text, has_failed = await _call(client, tool, arguments)
    assert not has_failed, (tool, arguments, text)
    return text


async def fail_tool(client: Client, tool: str, **arguments: Any) -> str:
    """Return the short text with which a tool refuses its arguments."""
    text, has_failed = await _call(client, tool, arguments)
    assert has_failed, (tool, arguments, text)
    assert 0 < len(text) < 500
    return text


async def _call(client: Client, tool: str, arguments: dict[str, Any]) -> tuple[str, bool]:
    answer: Any = await client.call_tool(tool, arguments)
    return "".join(part.text for part in answer.content), bool(answer.is_error)


async def make_thread(store: Store, *texts: str, tenant: str = "default") -> str:
    session = await store.create_session(NewSession(tenant=tenant))
    bodies: list[Any] = [{"role": "user", "content": text} for text in texts]
    await store.append(session.id, [NewMessage(body) for body in bodies])
    return session.thread
