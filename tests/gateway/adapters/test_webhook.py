"""The signed webhook: who cannot sign, came late, is unknown or names another callback gets nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.gateway.adapters.signing import SIGNATURE, TIMESTAMP, check, signed_headers
from everthread.gateway.adapters.webhook import allowed
from everthread.gateway.errors import Refused
from tests.gateway.adapters.services import Callbacks, bridged, serving, until
from tests.gateway.api.house import Waiting

SECRET = "both sides know it"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRM_SECRET", SECRET)


def settings(url: str, **more: Any) -> str:
    one = {"name": "crm", "secret_env": "CRM_SECRET", "senders": ["ann", "bob"], "callbacks": [f"{url}/back/"], **more}
    return f"{{webhooks: [{json.dumps(one)}]}}"


async def post(http: httpx2.AsyncClient, event: str, text: str, *, at: float | None = None, **more: Any) -> Any:
    body = json.dumps({"event": event, "chat": "room", "sender": "ann", "text": text, **more}).encode()
    headers = signed_headers(SECRET, time.time() if at is None else at, body)
    return await http.post("/hooks/crm", content=body, headers=headers)


async def test_a_signed_message_is_answered_once_at_the_callback(tmp_path: Path) -> None:
    crm = Callbacks(statuses=[503])
    async with (
        serving(crm.routes) as url,
        bridged(tmp_path, settings(url)) as here,
        httpx2.AsyncClient(base_url=here.url) as http,
    ):
        first = await post(http, "e1", "Hello", callback=f"{url}/back/here")
        again = await post(http, "e1", "Hello", callback=f"{url}/back/here")
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json() == again.json()
        second = await post(http, "e2", "More")
        other = await post(http, "e1", "Hi", chat="another", sender="bob")
        assert second.json()["thread"] == first.json()["thread"] != other.json()["thread"]
        await until(lambda: len(crm.got) == 3)
        for headers, body in crm.got:
            check(SECRET, headers, body, time.time())
        told = {(item["chat"], item["event"]): item for item in (json.loads(body) for _, body in crm.got)}
        assert told["room", "e1"]["text"] == "re: Hello"
        assert told["room", "e2"]["text"] == "re: More"
        assert told["another", "e1"]["text"] == "re: Hi"
        assert told["room", "e1"] | first.json() == told["room", "e1"]
        assert sorted(here.model.begun) == ["Hello", "Hi", "More"]
        moved = await post(http, "e3", "/new")
        await until(lambda: len(crm.got) == 4)
        replayed = await post(http, "e1", "Hello")
        assert replayed.json()["turn"] == first.json()["turn"], "also after the chat moved to another thread"
        fresh = await post(http, "e4", "Anew")
        assert fresh.json()["thread"] not in (moved.json()["thread"], other.json()["thread"])


async def test_nobody_else_is_let_in(tmp_path: Path) -> None:
    crm = Callbacks()
    async with (
        serving(crm.routes) as url,
        bridged(tmp_path, settings(url)) as here,
        httpx2.AsyncClient(base_url=here.url) as http,
    ):
        now = time.time()
        body = json.dumps({"event": "x", "chat": "room", "sender": "ann", "text": "Hello"}).encode()
        good = signed_headers(SECRET, now, body)
        forged: list[tuple[bytes, dict[str, str]]] = [
            (body, {}),
            (body + b" ", good),
            (body, {**good, SIGNATURE: good[SIGNATURE][:-1] + "z"}),
            (body, {**good, TIMESTAMP: str(int(now) - 1)}),
            (body, signed_headers("another secret", now, body)),
            (body, signed_headers(SECRET, now - 301, body)),
            (body, signed_headers(SECRET, now + 301, body)),
            (body, {**good, TIMESTAMP: "soon"}),
        ]
        for content, headers in forged:
            refused = await http.post("/hooks/crm", content=content, headers=headers)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_signature"
        denied: list[tuple[int, dict[str, Any]]] = [
            (403, {"sender": "mallory"}),
            (403, {"callback": "http://evil.example/back/"}),
            (403, {"callback": f"{url}/elsewhere"}),
            (403, {"callback": f"{url}/back/../admin"}),
            (400, {"chat": ""}),
            (400, {"chat": 5}),
            (400, {"extra": True}),
        ]
        for status, more in denied:
            refused = await post(http, "x", "Hello", **more)
            assert (refused.status_code, more) == (status, more)
        big = b"x" * 1_000_001
        assert (await http.post("/hooks/crm", content=big, headers=good)).status_code == 413
        assert not crm.got
        assert not here.model.begun
        assert await here.store.list_threads() == []


async def test_too_many_waiting_messages_are_told_to_come_again(tmp_path: Path) -> None:
    crm = Callbacks(statuses=[404])
    model = Waiting()
    gate = model.hold("0")
    async with (
        serving(crm.routes) as url,
        bridged(tmp_path, settings(url), model) as here,
        httpx2.AsyncClient(base_url=here.url) as http,
    ):
        assert (await post(http, "0", "0")).status_code == 202
        await model.until("0")
        answers = [await post(http, str(n), str(n)) for n in range(1, 6)]
        full = [answer for answer in answers if answer.status_code == 429]
        assert full
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in full)
        gate.set()
        taken = len(answers) - len(full)
        await until(lambda: len(crm.got) == taken)
        events = [json.loads(body)["event"] for _, body in crm.got]
        assert events == sorted(events), "in order; the first was refused for good, the next ones arrive"


def test_only_what_was_allowed_is_called() -> None:
    known = ["https://crm.example/hooks/", "https://one.example/exact"]
    for url in ("https://crm.example/hooks/", "https://crm.example/hooks/a/b?c=d", "https://one.example/exact?x=1"):
        assert allowed(url, known)
    for url in (
        "http://crm.example/hooks/",
        "https://crm.example:8443/hooks/",
        "https://crm.example/hooks",
        "https://crm.example.evil.test/hooks/",
        "https://user:pw@crm.example/hooks/",
        "https://crm.example/hooks/../admin",
        "https://crm.example/hooks/%2e%2e/admin",
        "https://one.example/exact/more",
        "https://[bad/hooks/",
        "file:///etc/passwd",
        "",
    ):
        assert not allowed(url, known), url


def test_a_signature_counts_for_five_minutes() -> None:
    body = b"{}"
    headers = signed_headers("s", 1_000, body)
    for now in (701, 1_000, 1_300):
        check("s", headers, body, now)
    for now in (699, 1_301):
        with pytest.raises(Refused):
            check("s", headers, body, now)
