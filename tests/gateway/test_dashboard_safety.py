"""The dashboard withstands strangers, other tenants, other sites, hostile text and large amounts of it."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.config import parse_config
from everthread.errors import ConfigError
from everthread.factory.gateways import open_gateway
from everthread.gateway.access.key_creation import issue_key
from everthread.gateway.dashboard.page_text import clean
from everthread.gateway.router import Upstream
from everthread.store.records import NewMessage, NewSession
from tests.chat_messages import calls_message, function_call
from tests.gateway.dashboard_setup import (
    Browser,
    Page,
    ServedDashboard,
    compact_thread,
    make_thread,
    make_turn,
    open_dashboard,
    read_page,
)
from tests.gateway.gateway_setup import CHAT_MODEL, HELLO, Gateways

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> \"'><svg/onload=alert(3)> {{7*7}} {% raw %} &lt;b&gt; "
    "</pre></details></li></main></body> javascript:alert(4)"
)
CONTROLS = "a\x00b\x1b[31mred\x7f\u202eevil\u2066\u200bnothing\x85\r\nend\ud800"
SECRET = "sk-proj-" + "a1B2c3D4e5F6g7H8" * 3
PAGES = 300_000
"""Bytes that no page exceeds."""


async def every_page(logged_in_browser: Browser, thread: str) -> list[Page]:
    first = await logged_in_browser.get(f"/dashboard/threads/{thread}")
    paths = [
        "/",
        "/?q=alert",
        "/dashboard/overview",
        *first.links("/messages/")[:3],
        *first.links("/compactions/")[:2],
    ]
    return [
        first,
        *[await logged_in_browser.get(path) for path in paths],
        await logged_in_browser.get(f"/dashboard/threads/{thread}/try"),
    ]


async def test_escapes_hostile_text_on_every_page(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    messages: list[Any] = [
        {"role": "user", "content": HOSTILE},
        calls_message(function_call("x", HOSTILE, f'{{"a": "{HOSTILE}'), text=CONTROLS),
        {
            "role": "tool",
            "tool_call_id": "x",
            "name": HOSTILE,
            "content": [{"type": "text", "text": HOSTILE}],
        },
        {"role": "user", "content": None},
        {
            "role": HOSTILE,
            "content": {"odd": HOSTILE},
        },
    ]
    thread = await make_thread(
        dashboard.store,
        title=HOSTILE,
        said=messages,
        turns=4,
    )
    await compact_thread(dashboard.store, thread)
    for page in await every_page(logged_in_browser, thread):
        assert page.status == 200
        assert not re.search(r"<(script|img|svg)[^>]*(alert|onerror|onload)", page.text)
        assert not any(
            name.startswith("on") or name == "style" for _, given in page.tags for name in given
        )
        assert all(
            given.get("src") or given.get("type") == "application/json"
            for given in page.elements("script")
        )
        assert not any(
            str(given.get("href")).startswith("javascript") for given in page.elements("a")
        )
        assert "49" not in page.visible_text.split("7*7")[-1][:3]
        assert not set("\x00\x1b\x7f\u202e\u2066\x85") & set(page.text)


def test_shows_special_characters_by_name() -> None:
    assert clean(CONTROLS) == "a␀b␛[31mred␡⟦U+202E⟧evil⟦U+2066⟧⟦U+200B⟧nothing⟦U+0085⟧\nend\ufffd"


async def test_hides_secrets_and_logs_each_reveal(
    caplog: pytest.LogCaptureFixture, dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    with caplog.at_level(logging.WARNING):
        messages: list[Any] = [
            {
                "role": "user",
                "content": f"{'x ' * 1_490}OPENAI_API_KEY={SECRET} and go on " + "y " * 99,
            }
        ]
        thread = await make_thread(
            dashboard.store,
            said=messages,
            turns=3,
            title=f"my key {SECRET}",
        )
        await compact_thread(dashboard.store, thread)
        for page in [
            *await every_page(logged_in_browser, thread),
            await logged_in_browser.get("/?q=OPENAI_API_KEY"),
        ]:
            assert SECRET[:20] not in page.text
        message = (await dashboard.store.load_history(thread, limit=1))[0]
        path = f"/dashboard/threads/{thread}/messages/{message.id}"
        hidden = await logged_in_browser.get(path)
        assert "[REDACTED]" in hidden.visible_text
        revealed = await logged_in_browser.post(f"{path}/reveal", hidden.form("/reveal"))
        assert SECRET in revealed.visible_text
        assert revealed.headers["cache-control"] == "no-store"
        response = await logged_in_browser.get(f"{path}/reveal")
        assert response.status == 404, "nothing is revealed by an address"

    assert "was revealed to this machine" in caplog.text
    assert SECRET not in caplog.text


async def test_a_login_link_works_once(tmp_path: Path) -> None:
    announced: list[str] = []

    async with open_dashboard(tmp_path, announce=announced.append) as dashboard:
        visitor = dashboard.browser()
        response = await visitor.get("/")
        assert "opens by a link" in response.visible_text
        assert len(announced) == 1, "who comes without one gets a fresh one printed"
        await visitor.get("/")
        assert len(announced) == 1, "but not every time"
        entered = await visitor.get(announced[0])
        cookie = entered.headers["set-cookie"]
        assert "HttpOnly; SameSite=Strict" in cookie
        response = await visitor.get("/")
        assert response.visible_text.find("Threads") > 0
        again = await dashboard.browser().get(announced[0])
        assert again.status == 403
        assert "set-cookie" not in again.headers
        response = await dashboard.browser().get("/dashboard/login?code=")
        assert response.status == 403
        form = (await visitor.get("/")).form("/logout")
        left = await visitor.post("/dashboard/logout", form)
        assert "Max-Age=0" in left.headers["set-cookie"]


@pytest.mark.parametrize("auth", ["none", "keys", "passthrough"])
async def test_refuses_every_page_without_a_login(tmp_path: Path, auth: Any) -> None:
    async with open_dashboard(tmp_path, auth=auth) as dashboard:
        visitor = dashboard.browser()
        thread = await make_thread(dashboard.store, title="Confidential")
        first = (await dashboard.store.load_history(thread, limit=1))[0]
        paths = [
            "/?q=ledger",
            "/dashboard/overview",
            f"/dashboard/threads/{thread}",
            "/dashboard/live",
            f"/dashboard/threads/{thread}/messages/{first.id}",
            f"/dashboard/threads/{thread}/try",
        ]
        for forged in ("", "x.y", "e30.00", "a" * 5_000, "é"):
            cookies = {"cookie": f"{dashboard.pages.login.cookie_name}={forged}".encode()}
            for path in paths:
                page = await visitor.get(path, headers=cookies)
                assert page.status in (200 if path.startswith("/?") else 401, 401)
                assert "ledger" not in page.visible_text.replace("q=ledger", "")
                assert "Confidential" not in page.text
        for change in ("pin", "undo", "branch", f"messages/{first.id}/reveal"):
            response = await visitor.post(f"/dashboard/threads/{thread}/{change}", {"text": "x"})
            assert response.status == 401
        response = await visitor.post("/dashboard/login", {"key": "et_0123456789ab_" + "x" * 43})
        assert response.status == 403


async def test_a_key_shows_its_tenant_until_it_is_revoked(
    tmp_path: Path,
) -> None:
    async with open_dashboard(tmp_path, auth="keys") as dashboard:
        visitor = dashboard.browser()
        ours = await make_thread(dashboard.store, tenant="a")
        theirs = await make_thread(dashboard.store, tenant="b", title="Secret plan")
        await compact_thread(dashboard.store, theirs)
        token, new = issue_key(tenant="a")
        await dashboard.store.keys.create_key(new)
        response = await visitor.post("/dashboard/login", {"key": f" {token} "})
        assert response.status == 200
        listed = await visitor.get("/")
        assert listed.links("/dashboard/threads/") == [f"/dashboard/threads/{ours}"]
        csrf = listed.form("/logout")
        first = (await dashboard.store.load_history(theirs, limit=1))[0]
        record = (await dashboard.store.list_compactions(theirs))[0]
        for path in (
            f"/dashboard/threads/{theirs}",
            f"/dashboard/threads/{theirs}/compactions/{record.id}",
            f"/dashboard/threads/{theirs}/messages/{first.id}",
            f"/dashboard/threads/{theirs}/try",
            f"/dashboard/threads/{ours}/messages/{first.id}",
            f"/dashboard/threads/{ours}/compactions/{record.id}",
            f"/dashboard/live?thread={theirs}",
        ):
            response = await visitor.get(path)
            assert response.status == 404, path
        for change in (
            "undo",
            "pin",
            "unpin",
            "branch",
            "try",
            f"messages/{first.id}/reveal",
        ):
            form = csrf | {
                "text": "mine",
                "compaction": str(record.id),
                "message": str(first.id),
            }
            response = await visitor.post(f"/dashboard/threads/{theirs}/{change}", form)
            assert response.status == 404, change
        response = await visitor.post(
            f"/dashboard/threads/{ours}/branch", csrf | {"message": str(first.id)}
        )
        assert response.status == 404
        response = await visitor.get("/?q=ledger")
        assert response.links("/threads/[0-9a-f]+$") == [f"/dashboard/threads/{ours}"]
        overview = await visitor.get("/dashboard/overview?days=366")
        assert "By tenant" not in overview.visible_text
        assert "Secret plan" not in overview.text
        await dashboard.store.keys.revoke_key(new.id)
        response = await visitor.get("/dashboard/overview")
        assert response.status == 401


async def test_the_operator_key_shows_every_tenant(tmp_path: Path) -> None:
    async with open_dashboard(
        tmp_path, auth="passthrough", operator_key="a-key-of-the-operator"
    ) as dashboard:
        visitor = dashboard.browser()
        for tenant in ("a", "b"):
            await make_thread(dashboard.store, tenant=tenant)
        response = await visitor.post("/dashboard/login", {"key": "wrong"})
        assert response.status == 403
        response = await visitor.post("/dashboard/login", {"key": "a-key-of-the-operator"})
        assert response.status == 200
        response = await visitor.get("/")
        assert len(response.links("/dashboard/threads/")) == 2


async def test_refuses_changes_from_foreign_pages(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store)
    path = f"/dashboard/threads/{thread}/pin"
    form = (await logged_in_browser.get(f"/dashboard/threads/{thread}")).form("/pin") | {
        "text": "x"
    }
    other = await dashboard.browser().log_in()
    theirs = (await other.get("/")).form("/logout")["csrf"]
    for token in ("", "0" * 64, theirs, "é"):
        response = await logged_in_browser.post(path, form | {"csrf": token})
        assert response.status == 403
    for headers in (
        {"origin": "https://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "null"},
    ):
        response = await logged_in_browser.post(path, form, headers=headers)
        assert response.status == 403
        response = await logged_in_browser.post("/dashboard/login", {"key": "x"}, headers=headers)
        assert response.status == 403
    response = await logged_in_browser.post(path, form, headers={"origin": "http://127.0.0.1"})
    assert response.status == 303


async def test_a_form_token_is_not_accepted_as_a_cookie(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    token = (await logged_in_browser.get("/")).form("/logout")["csrf"]
    [(name, value)] = logged_in_browser.http.cookies.items()
    claims = json.loads(base64.urlsafe_b64decode(value.partition(".")[0] + "=="))
    forged = f'{name}="csrf {claims["nonce"]}.{token}"'
    stranger = await dashboard.browser().get("/dashboard/overview", headers={"cookie": forged})
    assert stranger.status == 401


async def test_refuses_foreign_host_headers(logged_in_browser: Browser) -> None:
    for name in (
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example:80",
        "",
    ):
        answer = await logged_in_browser.http.get("/", headers={"host": name})
        assert answer.status_code == 403
        assert "Threads" not in answer.text
    for name in ("localhost:8484", "[::1]:80"):
        response = await logged_in_browser.http.get("/", headers={"host": name})
        assert response.status_code == 200


async def test_every_answer_has_a_strict_policy(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    stranger = await logged_in_browser.get("/")
    thread = await make_thread(dashboard.store)
    sheet = str((await logged_in_browser.get("/")).elements("link")[-1]["href"])
    for page in [
        stranger,
        *await every_page(logged_in_browser, thread),
        await logged_in_browser.get("/nowhere"),
        await logged_in_browser.get(sheet),
    ]:
        policy = page.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "same-origin"
    response = await logged_in_browser.get(sheet)
    assert response.headers["cache-control"].endswith("immutable")
    response = await logged_in_browser.get("/dashboard/static/x/style.css")
    assert response.status == 404
    response = await logged_in_browser.get("/dashboard/static/x/..%2fapp.py")
    assert response.status == 404


async def test_pages_stay_small_for_a_very_large_thread(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = (await dashboard.store.create_session(NewSession(title="long"))).id
    bodies = [body for number in range(500) for body in make_turn(number, words=200)]
    await dashboard.store.append(thread, [NewMessage(body) for body in bodies])
    huge: Any = {"role": "user", "content": "<b>" + "x" * 1_000_000}
    await dashboard.store.append(thread, [NewMessage(huge)])
    await compact_thread(dashboard.store, thread)
    pages = await every_page(logged_in_browser, thread)
    assert max(len(page.text.encode()) for page in pages) <= PAGES
    first = await logged_in_browser.get(f"/dashboard/threads/{thread}?page=1")
    assert "page 1 of 67" in first.visible_text
    last = (await dashboard.store.load_history(thread, start=2_000, limit=1))[0]
    last_part = await logged_in_browser.get(
        f"/dashboard/threads/{thread}/messages/{last.id}?start=900000"
    )
    assert len(last_part.text.encode()) <= PAGES
    assert "shown 900,000 to 1,000,000" in last_part.visible_text


async def test_lists_a_thousand_threads_page_by_page(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    await asyncio.gather(
        *(dashboard.store.create_session(NewSession(title=f"thread {n}")) for n in range(1_000))
    )
    first = await logged_in_browser.get("/")
    last = await logged_in_browser.get("/?page=20")
    assert len(first.links("/dashboard/threads/")) == 50
    assert len(last.links("/dashboard/threads/")) == 50
    assert len(first.text.encode()) <= PAGES
    assert last.links("page=21") == []
    response = await logged_in_browser.get("/?page=21")
    assert response.links("/dashboard/threads/") == []


def test_static_files_are_small() -> None:
    folder = files("everthread.gateway.dashboard") / "static"
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 200_000


async def test_the_gateway_serves_the_dashboard_at_its_root(gateways: Gateways) -> None:
    url = await gateways.start("keys")
    key = await gateways.create_key("acme")
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        response = await http.get("/")
        assert "Give a key of this gateway once" in read_page(response).visible_text
        response = await http.post("/", json={})
        assert response.status_code == 401, "only reading leads to the pages"
        response = await http.post("/dashboard/login", data={"key": key})
        assert response.status_code == 200
        response = await http.get("/")
        assert f"ANTHROPIC_BASE_URL={url}" in read_page(response).visible_text
        response = await http.get("/dashboard/overview")
        assert "No call in this period" in read_page(response).visible_text


async def test_the_cookie_of_the_dashboard_reaches_no_upstream(gateways: Gateways) -> None:
    url = await gateways.start("keys")
    key = await gateways.create_key("acme")
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        login = await http.post("/dashboard/login", data={"key": key})
        cookie = login.headers["set-cookie"].split(";")[0]
        headers = {"authorization": f"Bearer {key}", "cookie": f"a=1; {cookie}"}
        body = {"model": CHAT_MODEL, "messages": HELLO}
        response = await http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200
    assert gateways.provider.log[-1].headers["cookie"] == "a=1"
    [row] = await gateways.store.list_threads(tenant="acme")
    assert row.first.client == "python-httpx2", "a client is known by its own name"


async def test_a_gateway_may_have_no_dashboard(gateways: Gateways) -> None:
    url = await gateways.start("passthrough", key=None)
    async with httpx2.AsyncClient(base_url=url, timeout=60) as http:
        response = await http.get("/")
        assert "Its pages are off" in read_page(response).visible_text
    config = parse_config("gateway: {port: 0, dashboard: {enabled: false}}")
    upstreams = [Upstream("lab", gateways.provider.url)]
    async with open_gateway(config, store=gateways.store, upstreams=upstreams) as gateway:
        assert gateway.find_dashboard_url() is None
        async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
            response = await http.get("/")
            assert "text/html" not in response.headers.get("content-type", "")


async def test_refuses_a_short_operator_key(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGE_KEY", "short")
    config = parse_config("gateway: {port: 0, dashboard: {key_env: PAGE_KEY}}")
    upstreams = [Upstream("lab", gateways.provider.url)]
    with pytest.raises(ConfigError, match="fewer than 16 characters"):
        async with open_gateway(config, store=gateways.store, upstreams=upstreams):
            pass
