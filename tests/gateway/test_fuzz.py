"""Any request of a client: the gateway itself never answers 500, and decides every request."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.config import parse_config
from everthread.core.types import Api
from everthread.factory import open_store
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider
from tests.apis import PATHS
from tests.chat_messages import calls_message, function_call, result_message
from tests.gateway.load_clients import NAMES, served_models

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
ANY = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = (
    "role",
    "content",
    "type",
    "text",
    "tool_calls",
    "tool_call_id",
    "tool_use_id",
    "id",
    "name",
    "input",
    "arguments",
    "function",
    "output",
    "call_id",
    "thinking",
    "signature",
    "summary",
    "encrypted_content",
    "source",
    "image_url",
    "cache_control",
    "phase",
    "status",
)
WORDS = st.sampled_from(
    [
        "user",
        "assistant",
        "system",
        "tool",
        "developer",
        "text",
        "tool_use",
        "tool_result",
        "thinking",
        "image",
        "message",
        "function_call",
        "function_call_output",
        "reasoning",
        "input_text",
        "output_text",
        "item_reference",
        "call_1",
        "{}",
        "ephemeral",
    ]
)
PARTS = st.recursive(
    WORDS | SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5)
    ),
    max_leaves=10,
)
CHANGES = st.lists(
    st.tuples(st.integers(0, 10**6), PARTS | ANY | st.just(...)), min_size=0, max_size=4
)
"""Which place of a right body becomes what; an ellipsis takes it out."""
RIGHT: dict[Api, dict[str, Any]] = {
    "openai_chat": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look"},
                    {"type": "text", "text": "there."},
                ],
            },
            calls_message(function_call("call_1", "look")),
            result_message("call_1", "A mirror."),
            {"role": "user", "content": "And then?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "look",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "max_completion_tokens": 50,
        "stream": False,
        "stream_options": None,
    },
    "openai_responses": {
        "instructions": "Be brief.",
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "Look there."}],
            },
            {
                "type": "function_call",
                "call_id": "call_1",
                "name": "look",
                "arguments": "{}",
            },
            {
                "type": "function_call_output",
                "call_id": "call_1",
                "output": "A mirror.",
            },
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "A mirror."}],
            },
            {"role": "user", "content": "And then?"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "look",
                "parameters": {"type": "object"},
            }
        ],
        "max_output_tokens": 50,
        "stream": False,
        "previous_response_id": None,
        "context_management": None,
    },
    "anthropic": {
        "system": [
            {
                "type": "text",
                "text": "Be brief.",
                "cache_control": {"type": "ephemeral"},
            }
        ],
        "messages": [
            {"role": "user", "content": "Look there."},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Yes."},
                    {
                        "type": "tool_use",
                        "id": "call_1",
                        "name": "look",
                        "input": {},
                    },
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_1",
                        "content": [{"type": "text", "text": "A mirror."}],
                    },
                    {"type": "text", "text": "And then?"},
                ],
            },
        ],
        "tools": [
            {
                "name": "look",
                "input_schema": {"type": "object"},
            }
        ],
        "max_tokens": 50,
        "stream": False,
        "metadata": {"user_id": "u"},
    },
}


def list_places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a body with a key or an index in it."""
    items: Any = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [place for key, inner in items for place in [(value, key), *list_places(inner)]]


def changed_body(api: Api, changes: list[tuple[int, Any]]) -> dict[str, Any]:
    body = copy.deepcopy(RIGHT[api])
    for number, value in changes:
        places = list_places(body)
        if places:
            inside, key = places[number % len(places)]
            if value is ...:
                del inside[key]
            else:
                inside[key] = copy.deepcopy(value)
    return body


@asynccontextmanager
async def run_gateway(folder: Path) -> AsyncIterator[tuple[Provider, str]]:
    async with Provider(served_models(4_000)) as provider:
        config = parse_config(
            f"gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}]}}\n"
            f"store: {{url: 'sqlite:///{folder / 'gateway.db'}'}}"
        )
        async with open_gateway(config) as gateway:
            yield provider, gateway.url


def encode_body(body: Any, encoding: int) -> tuple[bytes, dict[str, str]]:
    """A body as bytes: whole, broken off, twice encoded, or with lone surrogates."""
    raw = json.dumps(body, ensure_ascii=encoding % 2 == 0).encode("utf-8", "surrogatepass")
    if encoding == 2:
        return raw[: len(raw) // 2], {}
    if encoding == 3:
        return gzip.compress(raw), {"content-encoding": "gzip"}
    if encoding == 4:
        return raw, {"content-encoding": "zstd"}
    return raw, {}


@settings(max_examples=3)
@given(
    asked=st.lists(
        st.tuples(CHANGES, st.integers(0, 20)),
        min_size=15,
        max_size=15,
    )
)
async def test_no_body_causes_an_internal_error(
    asked: list[tuple[Any, int]], tmp_path_factory: Any
) -> None:
    """The provider's refusals come back unchanged; the gateway's own are below 500."""
    async with (
        run_gateway(tmp_path_factory.mktemp("fuzz")) as (provider, url),
        httpx2.AsyncClient(timeout=60) as http,
    ):
        for changes, encoding in asked:
            for api, path in PATHS.items():
                raw, more = encode_body(
                    {"model": NAMES[api], **changed_body(api, changes)}, encoding
                )
                headers = {
                    "content-type": "application/json",
                    "x-api-key": "any",
                    **more,
                }
                before = len(provider.log)
                answer = await http.post(f"{url}{path}", content=raw, headers=headers)
                if answer.headers.get("request-id") == "req_lab":
                    assert len(provider.log) > before
                    assert answer.status_code == provider.log[-1].status
                else:
                    assert answer.status_code < 500, (changes, answer.text)
        metrics = (await http.get(f"{url}/metrics")).text
        assert 'failed_open_total{step="answered"' not in metrics


async def test_an_empty_request_does_not_keep_others_from_the_store(
    tmp_path: Path, http: httpx2.AsyncClient
) -> None:
    async with run_gateway(tmp_path) as (_, url):
        for messages in ([], [{"role": "user", "content": "Hello"}]):
            for api, path in PATHS.items():
                listed = "input" if api == "openai_responses" else "messages"
                body = {
                    "model": NAMES[api],
                    listed: messages,
                    "max_tokens": 50,
                }
                answer = await http.post(f"{url}{path}", json=body)
                assert answer.status_code == (200 if messages else 400), answer.text
    store = open_store(tmp_path / "gateway.db")
    try:
        # The same words are one thread.
        rows = await store.list_threads()
        message_counts = [row.message_count for row in rows]
        assert message_counts == [2]
    finally:
        await store.close()
