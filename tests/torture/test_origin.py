"""A hostile page of an upstream, in a real browser with an open dashboard: it can run and read nothing."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from everthread.config import parse_config
from everthread.factory import open_store
from everthread.factory.gateways import open_gateway
from everthread.gateway.router import Upstream
from tests.gateway.raw_http import fixed_answer, open_raw_upstream
from tests.torture.chromium import chromium

EVIL = b"""<!doctype html><title>still</title><body><p id=here>here</p>
<script>
document.title = "ran";
fetch("/").then(page => page.text()).then(text => { document.title = "read " + text.length; });
</script>
<img src=x onerror="document.title = 'ran'"><iframe src="/" name=inner></iframe>
<form id=form method=post action="/dashboard/logout"><button>x</button></form>"""
COOKIE = (b"set-cookie", b"everthread_planted=1; Path=/")


@pytest.mark.parametrize(
    "kind",
    [b"text/html", b"text/plain", b"image/svg+xml", b"application/xhtml+xml", b""],
)
async def test_upstream_page_runs_nothing_in_the_origin_of_the_dashboard(
    kind: bytes, tmp_path: Path
) -> None:
    headers = [(b"content-type", kind), COOKIE] if kind else [COOKIE]
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(chromium())
        upstream = await stack.enter_async_context(
            open_raw_upstream(fixed_answer(200, headers, EVIL))
        )
        store = open_store(tmp_path / "s.db")
        stack.push_async_callback(store.close)
        config = parse_config("gateway: {port: 0}")
        opened = open_gateway(
            config, auth="none", store=store, upstreams=[Upstream("evil", upstream.url)]
        )
        gateway = await stack.enter_async_context(opened)
        tab = await browser.tab()
        await tab.open(gateway.find_dashboard_url() or "")
        await tab.until("location.pathname === '/'")
        for path in ("/v1/models/x", "/v1/files/page.html", "/anything"):
            await tab.open(f"{gateway.url}{path}")
            assert await tab.run("document.title") in ("still", ""), "no script of it ran"
            assert await tab.run("self.origin") == "null", "it has no origin, least of all ours"
            assert (
                await tab.run("try { document.cookie } catch (error) { error.name }")
                == "SecurityError"
            )
        assert "anything" in str(upstream.received[-1].line)
        await tab.open(f"{gateway.url}/")
        assert "everthread_planted" not in await tab.run("document.cookie")
