"""A bad request gets a JSON error with the right status; the OpenAPI document is complete."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.gateway.api.schemas import CreateThread, SendMessage
from tests.gateway.api.api_setup import ApiGateway, open_api

JSON = {"content-type": "application/json"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


MESSAGES = "/api/threads/{thread}/messages"
COMPRESS = "/api/threads/{thread}/compress"
BRANCH = "/api/threads/{thread}/branch"
HISTORY = "/api/threads/{thread}/history"
DEEP_LIST = b'{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/threads", b"{", 400),
        ("/api/threads", b"[]", 400),
        ("/api/threads", b'{"titel": "?"}', 400),
        ("/api/threads", b'{"title": 7}', 400),
        ("/api/threads", b'{"metadata": {"a": 1}}', 400),
        (MESSAGES, b"{}", 400),
        (MESSAGES, b'{"content": "  "}', 400),
        (MESSAGES, b'{"content": [{"type": "text", "text": "a", "x": 1}]}', 400),
        (MESSAGES, b'{"content": [{"type": "tool_result"}]}', 400),
        (MESSAGES, DEEP_LIST, 400),
        (f"{MESSAGES}?wait=nan", b'{"content": "a"}', 400),
        (f"{MESSAGES}?wait=1&wait=2", b'{"content": "a"}', 400),
        (COMPRESS, b'{"focus": "a --preview b"}', 400),
        (BRANCH, b"{}", 409),
        (BRANCH, b'{"at_message": 1000000000000}', 404),
    ],
)
async def test_refuses_invalid_bodies_with_a_json_error(
    path: str, body: bytes, status: int, api: ApiGateway
) -> None:
    path = path.format(thread=await api.create_thread())
    answer = await api.client_of("ann").post(path, content=body, headers=JSON)
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"code", "message"}
    assert api.model.started == []


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/api/threads", {}, 415),
        ("POST", "/api/threads", {"content-type": "text/plain"}, 415),
        ("POST", MESSAGES, {**JSON, "idempotency-key": "x" * 256}, 400),
        ("GET", f"{HISTORY}?view=half", {}, 400),
        ("GET", f"{HISTORY}?limit=0", {}, 400),
        ("GET", "/api/search", {}, 400),
        ("GET", "/api/threads?limit=ten", {}, 400),
        ("GET", "/api/threads/%00", {}, 404),
        ("GET", "/api/nothing", {}, 404),
        ("DELETE", "/api/threads", {}, 405),
    ],
)
async def test_refuses_invalid_methods_paths_and_headers(
    method: str, path: str, headers: dict[str, str], status: int, api: ApiGateway
) -> None:
    path = path.format(thread=await api.create_thread())
    body = b'{"content": "a"}' if path.endswith("/messages") else b"{}"
    answer = await api.client_of("ann").request(
        method,
        path,
        content=body,
        headers=headers,
    )
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"code", "message"}


async def test_the_openapi_document_matches_the_answers(api: ApiGateway) -> None:
    document = (await api.client_of("ann").get("/api/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named <= set(document["components"]["schemas"])
    for path, operations in document["paths"].items():
        real = path.format(thread="0" * 32, turn="0" * 32)
        for method, operation in operations.items():
            headers = JSON if method == "post" else {}
            answer = await api.client_of("ann").request(method.upper(), real, headers=headers)
            assert answer.status_code != 405
            assert str(answer.status_code) in operation["responses"], (
                method,
                path,
                answer.text,
            )
    schemas = document["components"]["schemas"]
    for model in (CreateThread, SendMessage):
        for example in schemas[model.__name__]["examples"]:
            model.model_validate(example)


@settings(max_examples=2)
@given(bodies=st.lists(VALUES, min_size=30, max_size=30))
async def test_no_body_causes_an_internal_error(
    bodies: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'store.db'}"
    async with open_api(url) as api:
        thread = await api.create_thread()
        paths = (
            "/api/threads",
            f"/api/threads/{thread}/messages?wait=0",
            f"/api/threads/{thread}/branch",
        )
        for body, path in itertools.product(bodies, paths):
            raw = json.dumps(body).encode()
            answer = await api.client_of("ann").post(path, content=raw, headers=JSON)
            assert answer.status_code < 500, answer.text
