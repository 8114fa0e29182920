"""A bad request gets a JSON error with the right status; the OpenAPI document is complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from everthread.gateway.api.schemas import CreateThread, SendMessage
from tests.gateway.api.api_setup import ApiSetup, open_api

JSON = {"content-type": "application/json"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


async def test_wrong_requests(api: ApiSetup) -> None:
    thread = await api.thread()
    ann = api.of("ann")
    at = f"/api/threads/{thread}"
    deep = b'{"content":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    wrong: list[tuple[str, str, dict[str, Any], int]] = [
        ("POST", "/api/threads", {"content": b"{", "headers": JSON}, 400),
        ("POST", "/api/threads", {"content": b"[]", "headers": JSON}, 400),
        ("POST", "/api/threads", {"content": b"{}"}, 415),
        (
            "POST",
            "/api/threads",
            {"content": b"{}", "headers": {"content-type": "text/plain"}},
            415,
        ),
        ("POST", "/api/threads", {"json": {"titel": "?"}}, 400),
        ("POST", "/api/threads", {"json": {"title": 7}}, 400),
        ("POST", "/api/threads", {"json": {"metadata": {"a": 1}}}, 400),
        ("POST", f"{at}/messages", {"json": {}}, 400),
        ("POST", f"{at}/messages", {"json": {"content": "  "}}, 400),
        (
            "POST",
            f"{at}/messages",
            {"json": {"content": [{"type": "text", "text": "a", "x": 1}]}},
            400,
        ),
        (
            "POST",
            f"{at}/messages",
            {"json": {"content": [{"type": "tool_result"}]}},
            400,
        ),
        ("POST", f"{at}/messages", {"content": deep, "headers": JSON}, 400),
        ("POST", f"{at}/messages?wait=nan", {"json": {"content": "a"}}, 400),
        ("POST", f"{at}/messages?wait=1&wait=2", {"json": {"content": "a"}}, 400),
        (
            "POST",
            f"{at}/messages",
            {"json": {"content": "a"}, "headers": {"idempotency-key": "x" * 256}},
            400,
        ),
        ("POST", f"{at}/compress", {"json": {"focus": "a --preview b"}}, 400),
        ("POST", f"{at}/branch", {"json": {}}, 409),
        ("POST", f"{at}/branch", {"json": {"at_message": 10**12}}, 404),
        ("GET", f"{at}/history?view=half", {}, 400),
        ("GET", f"{at}/history?limit=0", {}, 400),
        ("GET", "/api/search", {}, 400),
        ("GET", "/api/threads?limit=ten", {}, 400),
        ("GET", "/api/threads/%00", {}, 404),
        ("GET", "/api/nothing", {}, 404),
        ("DELETE", "/api/threads", {}, 405),
    ]
    for method, path, more, status in wrong:
        answer = await ann.request(method, path, **more)
        assert answer.status_code == status, (method, path, answer.text)
        assert set(answer.json()["error"]) == {"code", "message"}
    assert api.model.begun == []


async def test_the_document_is_true(api: ApiSetup) -> None:
    shown = (await api.of("ann").get("/api/openapi.json")).json()
    assert shown["openapi"] == "3.1.0"
    text = json.dumps(shown)
    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named <= set(shown["components"]["schemas"])
    for path, operations in shown["paths"].items():
        real = path.format(thread="0" * 32, turn="0" * 32)
        for method, operation in operations.items():
            headers = JSON if method == "post" else {}
            answer = await api.of("ann").request(method.upper(), real, headers=headers)
            assert answer.status_code != 405
            assert str(answer.status_code) in operation["responses"], (
                method,
                path,
                answer.text,
            )
    schemas = shown["components"]["schemas"]
    for model in (CreateThread, SendMessage):
        for example in schemas[model.__name__]["examples"]:
            model.model_validate(example)


@settings(max_examples=2)
@given(bodies=st.lists(VALUES, min_size=30, max_size=30))
async def test_no_body_is_a_fault_of_ours(
    bodies: list[Any], tmp_path_factory: Any
) -> None:
    async def ask(setup: ApiSetup, thread: str) -> None:
        for body in bodies:
            raw = json.dumps(body).encode()
            for path in (
                "threads",
                f"threads/{thread}/messages?wait=0",
                f"threads/{thread}/branch",
            ):
                answer = await setup.of("ann").post(
                    f"/api/{path}", content=raw, headers=JSON
                )
                assert answer.status_code < 500, answer.text

    async with open_api(url_in(tmp_path_factory.mktemp("fuzz"))) as setup:
        await ask(setup, await setup.thread())
