"""Only listed web pages may use the gateway, and only under its own host names."""

from __future__ import annotations

import json

import pytest

from everthread.config import parse_config
from everthread.errors import ConfigError
from everthread.gateway.router import Upstream
from everthread.gateway.site_policy import SitePolicy
from tests.apis import CHAT_PATH
from tests.gateway.authenticators import PROXY_KEYS
from tests.gateway.raw_http import (
    JSON,
    fixed_answer,
    open_raw_gateway,
    open_raw_upstream,
    raw_gateway,
    send_bytes,
    send_get,
    send_post,
)

FILES = "/v1/files"
JOBS = "/v1/fine_tuning/jobs"
OPEN = [
    *JSON,
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-credentials", b"true"),
]
"""An upstream that lets every page read its answers."""
APP = "https://app.example"


async def test_refuses_requests_of_other_web_pages() -> None:
    """A form-like POST needs no preflight, but must not be sent with the operator's key."""
    async with open_raw_upstream(fixed_answer(200, OPEN, b"{}")) as upstream:
        upstreams = [Upstream("only", upstream.url, api_key="sk-operator")]
        async with open_raw_gateway(upstreams) as (url, _):
            for path in (
                CHAT_PATH,
                FILES,
                JOBS,
                "/mcp",
                "/api/threads",
                "/metrics",
                "/healthz",
            ):
                for page in (
                    [(b"Origin", b"https://evil.example")],
                    [(b"Origin", b"null")],
                    [(b"Origin", b"http://localhost:3000")],
                    [(b"Sec-Fetch-Site", b"cross-site")],
                    [(b"Sec-Fetch-Site", b"same-site")],
                    [(b"Sec-Fetch-Site", b"none"), (b"Sec-Fetch-Site", b"cross-site")],
                    [
                        (b"Origin", b"http://127.0.0.1"),
                        (b"Origin", b"https://evil.example"),
                    ],
                ):
                    answer = await send_post(
                        url, path, b"{}", (b"content-type", b"text/plain"), *page
                    )
                    assert answer.status == 403
                    assert b"gateway.allowed_origins" in answer.body
                    assert "access-control-allow-origin" not in answer.header_values
        assert upstream.received == []


async def test_accepts_programs_and_its_own_pages() -> None:
    async with raw_gateway(fixed_answer(200, OPEN, b"{}")) as (url, upstream):
        form = (b"content-type", b"multipart/form-data; boundary=x")
        for page in (
            [],
            [(b"Origin", b"http://127.0.0.1")],
            [(b"Origin", b"https://127.0.0.1"), (b"Sec-Fetch-Site", b"same-origin")],
            [(b"Sec-Fetch-Site", b"none")],
        ):
            answer = await send_post(
                url,
                FILES,
                b"--x--",
                form,
                *page,
            )
            assert answer.status == 200
            assert not [name for name in answer.header_values if name.startswith("access-control-")]
        assert len(upstream.received) == 4


@pytest.mark.parametrize(
    ("listed", "origin", "allowed"),
    [
        (APP, APP, True),
        (APP, "https://app.example.evil", False),
        (APP, "http://app.example", False),
        (APP, "https://app.example:8443", False),
        ("null", "null", True),
        ("app://obsidian.md", "app://obsidian.md", True),
        ("app://obsidian.md", "app://other", False),
        ("chrome-extension://*", "chrome-extension://abcdef", True),
        ("chrome-extension://*", "moz-extension://abcdef", False),
    ],
)
async def test_answers_cors_requests_of_listed_origins_only(
    listed: str, origin: str, *, allowed: bool
) -> None:
    preflight = (
        f"OPTIONS {CHAT_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: {origin}\r\nSec-Fetch-Site: cross-site\r\n"
        "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization, x-a\r\n"
        "Access-Control-Request-Private-Network: true\r\n\r\n"
    ).encode()
    sites = SitePolicy((listed,))
    async with open_raw_upstream(fixed_answer(200, OPEN, b"{}")) as upstream:
        for authenticator in (None, PROXY_KEYS):  # a preflight carries no key
            async with open_raw_gateway(
                upstream.url,
                sites=sites,
                authenticator=authenticator,
            ) as (
                url,
                _,
            ):
                preflight_response = await send_bytes(url, preflight)
                fields = (
                    (b"Origin", origin.encode()),
                    (b"Authorization", b"Bearer et-good"),
                )
                answer = await send_post(
                    url, CHAT_PATH, b"{}", *fields, (b"Sec-Fetch-Site", b"cross-site")
                )
            assert (preflight_response.status, answer.status) == (
                (204, 200) if allowed else (403, 403)
            )
            if allowed:
                for response in (preflight_response, answer):
                    values = [
                        value
                        for name, value in response.headers
                        if name == b"access-control-allow-origin"
                    ]
                    assert values == [origin.encode()]
                    assert "origin" in response.header_values["vary"]
                assert (
                    preflight_response.header_values["access-control-allow-headers"]
                    == "authorization, x-a"
                )
                assert (
                    preflight_response.header_values["access-control-allow-private-network"]
                    == "true"
                )
                assert "access-control-allow-credentials" not in answer.header_values
        assert len(upstream.received) == (2 if allowed else 0)


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("localhost:8484", True),
        ("127.0.0.1", True),
        ("[::1]:8484", True),
        ("192.0.2.7:8484", True),
        ("gateway.example:8484", True),
        ("GATEWAY.example", True),
        ("evil.localhost", False),
        ("evil.example", False),
        ("gateway.example.evil", False),
        ("", False),
        ("localhost, evil.example", False),
    ],
)
async def test_answers_under_listed_host_names_and_addresses_only(host: str, *, fine: bool) -> None:
    sites = SitePolicy(allowed_hosts=("gateway.example",))
    async with raw_gateway(sites=sites) as (url, upstream):
        answer = await send_get(url, "/v1/models", host=host)
        second_host = (b"Host", host.encode())
        twice = await send_get(url, "/v1/models", second_host, host="localhost")
        assert twice.status == 403
        assert len(upstream.received) == fine
    assert answer.status == (200 if fine else 403)
    if not fine:
        assert "gateway.allowed_hosts" in json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/models", 200),
        ("/metrics", 403),
        ("/healthz", 200),
    ],
)
async def test_with_keys_the_host_name_matters_only_for_the_gateways_own_pages(
    path: str, status: int
) -> None:
    async with raw_gateway(authenticator=PROXY_KEYS) as (url, _):
        key = (b"Authorization", b"Bearer et-good")
        answer = await send_get(url, path, key, host="proxy.corp.example")
    assert answer.status == status


@pytest.mark.parametrize(
    ("setting", "fine"),
    [
        (
            "allowed_origins: ['https://app.example', 'null', 'app://x', 'moz-extension://*']",
            True,
        ),
        ("allowed_origins: ['https://app.example/']", False),
        ("allowed_origins: ['https://*']", False),
        ("allowed_origins: ['*']", False),
        ("allowed_origins: [app.example]", False),
        ("allowed_hosts: [gateway.example]", True),
        ("allowed_hosts: ['gateway.example:8484']", False),
        ("allowed_hosts: ['*']", False),
    ],
)
def test_validates_the_settings(setting: str, *, fine: bool) -> None:
    if fine:
        parse_config(f"gateway: {{{setting}}}")
    else:
        with pytest.raises(ConfigError, match=r"gateway\.allowed_"):
            parse_config(f"gateway: {{{setting}}}")
