"""What a key may do: its scopes, its tools, and nothing of another tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from everthread.core.types import ModelReply
from tests.chat_messages import call_reply
from tests.gateway.api.api_setup import ApiGateway, WaitingModel, error_of, open_api

UNKNOWN_THREAD = "0" * 32


@pytest.mark.parametrize(
    ("name", "keys", "tools", "has_tools"),
    [
        ("ann", True, False, False),
        ("amy", True, False, True),
        ("", False, False, False),
        ("", False, True, True),
        ("ann", True, True, False),
    ],
)
async def test_tools_need_the_scope_or_the_setting(
    name: str, keys: bool, tools: bool, has_tools: bool, store_url: str
) -> None:
    async with open_api(store_url, keys=keys, tools=tools) as api:
        await api.read_answer(await api.create_thread(name), "what can you do?", name)
        (request,) = api.model.requests
        offered = {tool["function"]["name"] for tool in request.tools}
        assert {"recall", "todo", "memory"} <= offered
        assert ("terminal" in offered) is has_tools
        assert ("read_file" in offered) is has_tools
        assert ("workspace" in str(request.system)) is has_tools


async def test_refuses_calls_that_need_approval(tmp_path: Path, store_url: str) -> None:
    script = iter(
        [
            call_reply(("terminal", {"command": f"touch {tmp_path / 'done'}"})),
            ModelReply({"role": "assistant", "content": "no"}, "stop"),
        ]
    )
    async with open_api(store_url, WaitingModel(lambda _: next(script))) as api:
        thread = await api.create_thread("amy")
        answer = await api.read_answer_text(thread, "do it", "amy")
        assert answer == "no"
        assert not (tmp_path / "done").exists()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/history"),
        ("GET", "/turns"),
        ("GET", "/turns/{turn}"),
        ("GET", "/turns/{turn}/events"),
        ("GET", "/usage"),
        ("GET", "/search?q=swordfish"),
        ("POST", "/messages"),
        ("POST", "/cancel"),
        ("POST", "/compress"),
        ("POST", "/undo"),
        ("POST", "/branch"),
    ],
)
async def test_answers_404_for_threads_of_another_tenant(
    method: str, path: str, api: ApiGateway
) -> None:
    thread = await api.create_thread()
    turn = (await api.send_message(thread, "the password of the vault is swordfish")).json()
    path = path.format(turn=turn["id"])
    body = {"content": "hi"} if path == "/messages" else {}
    theirs, unknown = [
        await api.client_of("bob").request(
            method,
            f"/api/threads/{one}{path}",
            json=body if method == "POST" else None,
        )
        for one in (thread, UNKNOWN_THREAD)
    ]
    assert theirs.status_code == unknown.status_code
    assert unknown.status_code == 404
    assert theirs.text == unknown.text


async def test_turns_memory_and_messages_stay_with_their_tenant(api: ApiGateway) -> None:
    thread = await api.create_thread()
    await api.read_answer(thread, "the password of the vault is swordfish")
    await api.read_answer(thread, "/memory add Ann likes heliotrope")
    turn = (await api.send_message(thread, "and more")).json()["id"]
    foreign = await api.create_thread("bob")
    bob = api.client_of("bob")
    path = f"/api/threads/{foreign}"
    for part in (f"/turns/{turn}", f"/turns/{turn}/events"):
        response = await bob.get(path + part)
        assert response.status_code == 404
    cancelled = await bob.post(f"{path}/cancel", json={"turn": turn})
    assert cancelled.status_code == 404
    response = await api.get("/api/search?q=swordfish", "bob")
    assert response["items"] == []
    listed = (await api.get("/api/threads", "bob"))["items"]
    ids = [item["id"] for item in listed]
    assert ids == [foreign]
    response = await api.get("/api/insights", "bob")
    assert response["total"]["calls"] == 0
    for line in ("/memory", "/search swordfish", f"/resume {thread}", "/sessions"):
        text = await api.read_answer_text(foreign, line, "bob")
        assert "heliotrope" not in text
        assert "vault" not in text
    branch = await api.client_of("ann").post(f"{path}/branch", json={})
    assert branch.status_code == 404


@pytest.mark.parametrize("path", ["/api/threads", "/api", "/api/openapi.json"])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("nobody", (401, "invalid_api_key")),
        ("pat", (403, "missing_scope")),
    ],
)
async def test_refuses_unknown_keys_and_keys_without_the_scope(
    path: str, name: str, error: tuple[int, str], api: ApiGateway
) -> None:
    answer = await api.client_of(name).get(path)
    assert error_of(answer) == error
    assert set(answer.json()["error"]) == {"code", "message"}
