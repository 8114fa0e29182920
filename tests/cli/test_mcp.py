"""`everthread mcp`, started as a client starts it, and over HTTP."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from everthread import open_store
from everthread.store.store import Store
from tests.cli.conftest import Command
from tests.gateway.mcp.mcp_client import call_tool, fail_tool, make_thread, open_client


async def make_store(folder: Path) -> tuple[str, str]:
    store: Store = open_store(folder / "store.db")
    try:
        return await make_thread(store, "The vault is behind the mirror."), await make_thread(
            store, "The vault is empty."
        )
    finally:
        await store.close()


async def test_a_confined_server_shows_one_thread_only(tmp_path: Path) -> None:
    thread, other_thread = await make_store(tmp_path)
    words = [
        "-m",
        "everthread",
        "mcp",
        "--store",
        str(tmp_path / "store.db"),
        "--thread",
        thread,
    ]
    started = StdioServerParameters(
        command=sys.executable,
        args=words,
        env={**os.environ},
    )
    async with Client(stdio_client(started)) as client:
        hits = await call_tool(client, "search", query="vault")
        assert "behind the mirror" in hits
        assert "empty" not in hits
        forbidden: list[tuple[str, dict[str, Any]]] = [
            ("search", {"query": "vault", "scope": "all"}),
            ("search", {"query": "vault", "thread": other_thread}),
            ("expand", {"id": "2"}),
            ("status", {"thread": other_thread}),
        ]
        for tool, arguments in forbidden:
            assert "empty" not in await fail_tool(client, tool, **arguments)
        assert f"Thread {thread}" in await call_tool(client, "status")


async def test_every_tenant_is_searched_unless_one_is_named(tmp_path: Path) -> None:
    store: Store = open_store(tmp_path / "store.db")
    theirs = await make_thread(store, "The vault is behind the mirror.", tenant="up_1")
    await make_thread(store, "Nothing else.")
    await store.close()
    words = ["-m", "everthread", "mcp", "--store", str(tmp_path / "store.db")]
    started = StdioServerParameters(
        command=sys.executable,
        args=words,
        env={**os.environ},
    )
    async with Client(stdio_client(started)) as client:
        for query in ("vault", "where is the vault now"):
            assert "behind the mirror" in await call_tool(client, "search", query=query)
        assert "behind the mirror" in await call_tool(
            client, "search", query="vault.*mirror", mode="regex"
        )
        assert "behind the mirror" in await call_tool(client, "expand", id="1", thread=theirs[:12])
        assert theirs in await call_tool(client, "status")
        nothing = await call_tool(client, "search", query="zeppelin")
        assert (
            "Searched: all messages and stored outputs of all threads. Do not repeat this search."
            in nothing
        )
    started = StdioServerParameters(
        command=sys.executable, args=[*words, "--tenant", "default"], env={**os.environ}
    )
    async with Client(stdio_client(started)) as client:
        nothing = await call_tool(client, "search", query="vault")
        assert "all threads of this tenant" in nothing
        assert "never" not in nothing


async def test_it_answers_over_http_on_this_machine(tmp_path: Path) -> None:
    await make_store(tmp_path)
    words = ["mcp", "--store", str(tmp_path / "store.db"), "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "everthread", *words], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr
    try:
        found = re.search(r"http://\S+/mcp", process.stderr.readline())
        assert found is not None

        async def run() -> None:
            async with open_client(found[0]) as client:
                hits = await call_tool(client, "search", query="vault")
                assert {"behind the mirror", "empty"} <= set(
                    re.findall("behind the mirror|empty", hits)
                )

        await run()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("0.0.0.0:8000", "this machine only"),
        ("here", "HOST:PORT"),
        ("127.0.0.1:x", "HOST:PORT"),
    ],
)
def test_a_bad_address_is_refused(everthread: Command, address: str, why: str) -> None:
    error = everthread.refuses(f"mcp --http {address}")
    assert why in error
    assert len(error.splitlines()) == 1


WITHOUT_SDK = """
import asyncio, sys
sys.modules["mcp"] = None
import httpx2
from everthread.config import parse_config
from everthread.factory.gateways import open_gateway


async def main():
    config = parse_config("gateway: {port: 0, upstreams: [{name: none, url: 'http://127.0.0.1:9'}]}")
    async with open_gateway(config) as gateway, httpx2.AsyncClient() as client:
        answer = await client.post(f"{gateway.url}/mcp", json={})
        print(answer.status_code, answer.json()["error"]["message"])


asyncio.run(main())
"""


def test_without_the_sdk_the_gateway_answers_mcp_itself(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDK],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "EVERTHREAD_HOME": str(tmp_path)},
    )
    assert ran.stdout.startswith("501 "), ran.stderr
    assert "pip install 'everthread[mcp]'" in ran.stdout
