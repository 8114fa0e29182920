"""`/mcp` of the gateway, through the official client: under the caller's key, and within its tenant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import openai

from everthread.config import parse_config
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.factory import open_store
from everthread.factory.gateways import open_gateway
from everthread.gateway.access.authentication import Caller
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.mcp_server import ALWAYS_LOAD_KEY
from everthread.lab.provider import Provider, ServedModel
from everthread.store.store import Store
from tests.gateway.mcp.mcp_client import (
    call_tool,
    fail_tool,
    make_thread,
    open_client,
)

TOKEN = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


@dataclass
class TwoRequestAccount:
    """An account with two requests."""

    key: str
    used: ClassVar[Counter[str]] = Counter()

    def admit(self) -> None:
        self.used[self.key] += 1
        if self.key == "key-few" and self.used[self.key] > 2:
            raise RequestRefused(429, "requests_per_day_exceeded", "Enough.")

    def authorize(self, usage: CanonicalUsage, model: str) -> None:
        """Everything."""

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        """The requests that a model got."""


class TenantKeys:
    """The key `key-NAME` belongs to the tenant NAME; `key-proxy` may not read conversations."""

    async def authenticate(self, headers: Mapping[str, str]) -> Caller:
        key = headers.get("authorization", "").removeprefix("Bearer ")
        if not key.startswith("key-"):
            raise RequestRefused(401, "unknown_key", "Show a key.")
        scopes = {"proxy"} if key == "key-proxy" else {"proxy", "threads"}
        return Caller(
            key.removeprefix("key-"),
            key,
            frozenset(scopes),
            account=TwoRequestAccount(key) if key == "key-few" else None,
        )


@asynccontextmanager
async def gateway(folder: Path, *, keys: bool = True) -> AsyncIterator[tuple[Store, str]]:
    store = open_store(folder / "gateway.db")
    try:
        async with Provider([ServedModel("gpt-4o", 128_000)]) as provider:
            config = parse_config(
                f"gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}]}}"
            )
            async with open_gateway(
                config, store=store, authenticator=TenantKeys() if keys else None
            ) as served:
                yield store, served.url
    finally:
        await store.close()


def bearer(name: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}", **more}


async def test_refuses_a_body_without_end(tmp_path: Path, http: httpx2.AsyncClient) -> None:
    """The SDK would read a body of any size into memory, so the gateway limits it first."""

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(1_000):
            yield b" " * 65_536

    async with gateway(tmp_path) as (_, url):
        headers = bearer(
            "ann", **{"content-type": "application/json", "accept": "application/json"}
        )
        answer = await http.post(f"{url}/mcp", content=endless(), headers=headers)
    assert answer.status_code == 413


async def test_lists_its_tools_and_refuses_unknown_keys(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with gateway(tmp_path) as (_, url):
        async with open_client(f"{url}/mcp", bearer("ann")) as ann:
            tools = (await ann.list_tools()).tools
        unknown = await http.post(
            f"{url}/mcp",
            json={},
            headers={"authorization": "Bearer x"},
        )
    always_loaded = [tool.name for tool in tools if (tool.meta or {}).get(ALWAYS_LOAD_KEY)]
    lossless = {"lcm_grep", "lcm_describe", "lcm_expand"}
    others = {"search", "expand", "pin", "status", "state"}
    names = {tool.name for tool in tools}
    assert names == others | lossless
    assert set(always_loaded) == {"search", "expand"}
    assert unknown.status_code == 401


async def test_each_key_sees_only_its_own_tenant(tmp_path: Path) -> None:
    async with gateway(tmp_path) as (store, url):
        text = f"The vault is behind the mirror. GITHUB_TOKEN={TOKEN}"
        anns_thread = await make_thread(store, text, tenant="ann")
        theirs = await make_thread(store, "The vault is in the cellar.", tenant="bob")
        secret = f"message:{(await store.load_history(theirs))[0].id}"
        output = await store.outputs.put_output(theirs, "vault number nine")
        ways: list[dict[str, str]] = [
            {},
            {"mode": "regex"},
            {"scope": "all"},
            {"thread": anns_thread, "scope": "thread"},
        ]
        foreign: list[tuple[str, dict[str, str]]] = [
            ("expand", {"id": secret}),
            ("expand", {"id": output.id}),
            ("expand", {"id": "message:99999999"}),
            ("status", {"thread": theirs}),
            ("state", {"thread": theirs}),
            ("search", {"query": "vault", "thread": theirs}),
            ("pin", {"text": "mine now", "thread": theirs}),
            ("pin", {"id": secret, "thread": anns_thread}),
            ("pin", {"remove": output.id, "thread": anns_thread}),
        ]
        async with open_client(f"{url}/mcp", bearer("ann")) as ann:
            for way in ways:
                matches = await call_tool(
                    ann,
                    "search",
                    query="vault",
                    **way,
                )
                assert "behind the mirror" in matches
                assert "cellar" not in matches
                assert TOKEN not in matches
            matches = await call_tool(ann, "search", query="vault")
            hit = re.search(
                r"\[(message:\d+)\] user, turn 1, \d{4}-\d\d-\d\d \d\d:\d\d UTC, thread (\w+):",
                matches,
            )
            assert hit is not None
            assert hit[2] == anns_thread
            full_text = await call_tool(ann, "expand", id=hit[1])
            assert "behind the mirror" in full_text
            assert TOKEN not in full_text
            for tool, arguments in foreign:
                refused = await fail_tool(ann, tool, **arguments)
                assert "That is final" in refused
                assert "cellar" not in refused
            assert theirs not in await call_tool(ann, "status")


async def test_refuses_invalid_arguments_in_a_sentence(tmp_path: Path) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search", {}),
        ("search", {"query": 7}),
        ("search", {"query": "   "}),
        ("search", {"query": "x" * 5_000}),
        ("search", {"query": "x", "limit": 10**9}),
        ("search", {"query": "x", "offset": -1}),
        ("search", {"query": "x", "mode": "fuzzy"}),
        ("search", {"query": "(?:a{9999}){9999}", "mode": "regex"}),
        ("search", {"query": "x", "wat": 1}),
        ("expand", {"id": "../../etc/passwd"}),
        ("expand", {"id": ["message:1"]}),
        ("expand", {"id": "1", "limit": "many"}),
        ("expand", {"id": "compaction:1"}),
        ("pin", {}),
        ("pin", {"text": "a", "id": "1"}),
        ("pin", {"text": "no thread is named"}),
        ("status", {"thread": "\x00'; DROP TABLE sessions"}),
        ("drop", {}),
    ]
    async with gateway(tmp_path) as (store, url):
        await make_thread(store, "a" * 40_000 + "!", tenant="ann")
        async with open_client(f"{url}/mcp", bearer("ann")) as ann:
            for tool, arguments in calls:
                await fail_tool(ann, tool, **arguments)
            text = await call_tool(ann, "status")
            assert "40,001 characters" not in text
            passage = await call_tool(
                ann,
                "expand",
                id="1",
                limit=20_000,
            )
            assert len(passage) < 20_500


async def test_the_default_thread_is_that_of_the_clients_session(
    tmp_path: Path,
) -> None:
    session = {"x-everthread-session": "my-build"}
    question: Any = {"role": "user", "content": "The codeword is heliotrope-77."}
    async with gateway(tmp_path) as (store, url):
        async with openai.AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="key-ann",
            max_retries=0,
            default_headers=session,
        ) as client:
            await client.chat.completions.create(model="gpt-4o", messages=[question])
        await make_thread(store, "Another codeword is marigold-12.", tenant="ann")
        async with open_client(f"{url}/mcp", bearer("ann", **session)) as ann:
            output = await call_tool(ann, "search", query="codeword")
            assert "heliotrope-77" in output
            assert "marigold" not in output
            everywhere = await call_tool(
                ann,
                "search",
                query="codeword",
                scope="all",
            )
            assert "marigold" in everywhere
            await call_tool(ann, "pin", text="Keep heliotrope-77.")
            status = await call_tool(ann, "status")
            assert "2 messages" in status
            assert "1 calls" in status
            assert re.search(r"pinned as pin:[0-9a-f]{16}: Keep heliotrope-77\.", status)
        async with open_client(f"{url}/mcp", bearer("bob", **session)) as bob:
            message = await fail_tool(bob, "status")
            assert "heliotrope" not in message


async def test_without_keys_answers_only_post_requests_of_this_machine(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with gateway(tmp_path, keys=False) as (_, url):
        mcp = f"{url}/mcp"
        async with open_client(mcp) as client:
            text = await call_tool(client, "status")
            assert "no thread" in text
        response = await http.get(mcp)
        assert response.status_code == 405
        elsewhere = await http.post(mcp, json={}, headers={"host": "evil.example"})
        assert elsewhere.status_code == 403
        json_type = {"content-type": "application/json"}
        broken = await http.post(mcp, content=b"{" * 1000, headers=json_type)
        assert 400 <= broken.status_code < 500


async def test_reading_needs_a_scope_and_counts_as_a_request(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/list",
        "params": {},
    }

    async def ask(url: str, key: str) -> httpx2.Response:
        headers = bearer(key, accept="application/json, text/event-stream")
        return await http.post(f"{url}/mcp", json=call, headers=headers)

    async with gateway(tmp_path) as (_, url):
        refused = await ask(url, "proxy")
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "missing_scope"
        statuses = [(await ask(url, "few")).status_code for _ in range(3)]
    assert statuses[2] == 429
    assert 429 not in statuses[:2]
