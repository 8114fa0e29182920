"""Every spelling of a path means the same to the gateway's checks and to the upstream."""

from __future__ import annotations

import logging
from itertools import product
from urllib.parse import unquote_to_bytes

import pytest

from everthread.config import parse_config
from everthread.factory.upstreams import add_keys, list_upstreams
from everthread.gateway.access.key_creation import issue_key
from everthread.gateway.monitoring.log_lines import JsonLines, TerminalLines, TextLines
from everthread.gateway.router import Upstream, normalize_path
from tests.gateway.authenticators import PROXY_KEYS
from tests.gateway.raw_http import (
    PassThroughManager,
    open_raw_gateway,
    open_raw_upstream,
    raw_gateway,
    send_get,
    send_post,
)


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        (b"/v1/messages", b"/v1/messages"),
        (b"/messages", b"/v1/messages"),
        (b"/v1/v1/messages", b"/v1/messages"),
        (b"/v1/v1/v1/chat/completions", b"/v1/chat/completions"),
        (b"//v1//responses", b"/v1/responses"),
        (b"/responses/resp_1/input_items", b"/v1/responses/resp_1/input_items"),
        (b"/v1/models/a%2fb", b"/v1/models/a%2fb"),
        (b"/v1/files/../models", b"/v1/models"),
        (b"/v1/%2e%2e/api/threads", b"/api/threads"),
        (b"/API/threads", b"/api/threads"),
        (b"//api/threads", b"/api/threads"),
        (b"/%61pi/Threads", b"/api/Threads"),
        (b"/Metrics", b"/metrics"),
        (b"/v1beta/models/x:generateContent", b"/v1beta/models/x:generateContent"),
        (b"/openai/deployments/x/", b"/openai/deployments/x/"),
        (b"/../..", b"/"),
        (b"/", b"/"),
        (b"*", b"/*"),
    ],
)
def test_normalizes_a_path(raw: bytes, normal: bytes) -> None:
    assert normalize_path(raw) == normal
    assert normalize_path(normal) == normal


async def test_treats_every_spelling_of_a_path_the_same() -> None:
    manager = PassThroughManager()
    async with raw_gateway(manager=manager) as (url, upstream):
        for path in (
            "/chat/completions",
            "//v1/chat/completions",
            "/v1/v1/chat/completions",
        ):
            response = await send_post(url, path)
            assert response.status == 200
        for spelling in ("/METRICS", "//metrics", "/v1/../metrics", "/%6detrics"):
            answer = await send_get(url, spelling)
            assert b"everthread_" in answer.body
    assert [request.line.split()[1] for request in upstream.received] == [
        b"/v1/chat/completions"
    ] * 3
    assert len(manager.prepared) == 3


async def test_a_gateway_key_in_any_place_or_spelling_reaches_no_upstream() -> None:
    token, _ = issue_key()
    key = token.encode()
    escaped = "".join(f"%{ord(character):02X}" for character in token)
    fields = (
        (b"Authorization", b"Bearer et-good"),
        (b"Cookie", b"a=1;everthread_x=y; key=" + key),
        (b"x-other", key),
    )
    paths = ("/v1/messages", "/v1/files", f"/v1/files/{token}/content")
    async with open_raw_upstream() as upstream:
        upstreams = [Upstream("only", upstream.url, api_key="sk-upstream")]
        async with open_raw_gateway(upstreams, authenticator=PROXY_KEYS) as (url, _):
            for path, spelling in product(paths, (token, token.replace("_", "%5f"), escaped)):
                target = f"{path}?key={spelling}&a=1"
                response = await send_post(url, target, b"{}", *fields)
                assert response.status == 200
    for request in upstream.received:
        sent = [unquote_to_bytes(request.line), *(value for _, value in request.headers)]
        assert key not in b"".join(sent)
        assert b"a=1" in request.line
        assert request.header_values["cookie"] == "a=1; key="


def test_a_path_cannot_forge_a_log_line() -> None:
    token, _ = issue_key()
    path = f"/v1/x\nINFO forged\x1b[2J/{token}/sk-proj-{token[16:]}{token[16:]}"
    record = logging.LogRecord(
        "everthread.gateway", logging.INFO, "", 0, "%s", (f"GET {path} 200",), None
    )
    record.fields = {
        "path": path,
        "status": 200,
        "seconds": 0.1,
    }
    for lines in (TextLines(), TerminalLines(), JsonLines()):
        line = lines.format(record)
        assert "\n" not in line
        assert "\x1b" not in line
        assert token[:30] not in line, "nor the beginning of one"
        assert token[16:40] not in line


async def test_routes_chatgpt_logins_and_keys_to_different_servers() -> None:
    async with open_raw_upstream() as keys, open_raw_upstream() as logins:
        upstreams = [
            Upstream("openai", keys.url, provider="openai"),
            Upstream("chatgpt", f"{logins.url}/backend-api/codex"),
        ]
        async with open_raw_gateway(upstreams) as (url, _):
            await send_post(
                url,
                "/v1/responses",
                b'{"model": "gpt-5"}',
                (b"chatgpt-account-id", b"account-1"),
            )
            await send_post(url, "/v1/responses", b'{"model": "gpt-5"}')
            await send_post(url, "/v1/messages", b'{"model": "claude-opus-5"}')
    lines = [request.line for request in logins.received]
    assert lines == [b"POST /backend-api/codex/responses HTTP/1.1"]
    assert logins.received[0].header_values["chatgpt-account-id"] == "account-1"
    assert [request.line.split()[1] for request in keys.received] == [
        b"/v1/responses",
        b"/v1/messages",
    ]


def test_a_gateway_with_its_own_keys_has_no_upstream_for_logins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    upstreams = list_upstreams(parse_config(""))
    names = [one.name for one in add_keys(upstreams, "keys")]
    assert names == ["openai", "anthropic"]
    names = [one.name for one in add_keys(upstreams, "passthrough")]
    assert names == [
        "openai",
        "anthropic",
        "chatgpt",
        "google",
    ]
    monkeypatch.setenv("GEMINI_API_KEY", "any")
    names = [one.name for one in add_keys(upstreams, "keys")]
    assert names == [
        "openai",
        "anthropic",
        "google",
    ]
