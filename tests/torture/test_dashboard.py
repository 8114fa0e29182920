"""The dashboard in a real browser: every page, wide and narrow, light and dark, live, safe, and accessible."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from everthread.config import parse_config
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.factory import open_store
from everthread.factory.dashboards import open_dashboard
from everthread.gateway.dashboard.page_routes import Dashboard
from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage
from tests.gateway.dashboard_setup import MODEL, compact_thread, make_thread, make_turn
from tests.gateway.gateway_setup import CLAUDE_MODEL, ask_claude, open_gateways
from tests.gateway.test_dashboard_safety import CONTROLS, HOSTILE
from tests.torture.chromium import Chromium, Tab, chromium, find_axe

LOOKS = [(1_280, False), (1_280, True), (400, False), (400, True)]
PAGE_BYTES = 300_000


@asynccontextmanager
async def run_dashboard(
    folder: Path,
) -> AsyncIterator[tuple[str, Dashboard, Store, Chromium]]:
    """Serve the pages of a store, and start a browser."""
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(chromium())
        store = open_store(folder / "pages.db")
        stack.push_async_callback(store.close)
        url, pages = await stack.enter_async_context(open_dashboard(parse_config(""), store))
        yield url, pages, store, browser


async def enter(browser: Chromium, url: str, pages: Dashboard) -> Tab:
    tab = await browser.tab()
    await tab.look(1_280)
    await tab.open(f"{url}{pages.login.make_login_link()}")
    await tab.until("location.pathname === '/'")
    return tab


async def expect_page(tab: Tab, address: str, folder: Path | None = None) -> None:
    """Check that a page loads without errors, fits the window's width, and runs no injected script."""
    for width, dark in LOOKS:
        await tab.look(width, dark=dark)
        await tab.open(address)
        assert await tab.run("document.documentElement.scrollWidth - innerWidth") <= 0, (
            address,
            width,
        )
        assert await tab.run("document.documentElement.dataset.ready") == "yes"
        assert await tab.run("window.hacked === undefined")
        assert (
            await tab.run("new Blob([document.documentElement.outerHTML]).size") < 1.2 * PAGE_BYTES
        )
        if folder is not None:
            await tab.picture(folder / f"{width}-{'dark' if dark else 'light'}.png")
    assert tab.complaints == [], address


async def thread_pages(store: Store, thread: str) -> list[str]:
    first = (await store.load_history(thread, limit=1))[0]
    records = await store.list_compactions(thread)
    return [
        f"/dashboard/threads/{thread}",
        f"/dashboard/threads/{thread}/messages/{first.id}",
        f"/dashboard/threads/{thread}/try",
        "/?q=ledger",
        *(f"/dashboard/threads/{thread}/compactions/{record.id}" for record in records[:1]),
    ]


async def test_pages_of_an_empty_store_and_of_one_thread(tmp_path: Path) -> None:
    async with run_dashboard(tmp_path) as (url, pages, store, browser):
        stranger = await browser.tab()
        await expect_page(stranger, url)
        tab = await enter(browser, url, pages)
        for path in ("/", "/?q=nothing", "/dashboard/overview"):
            await expect_page(tab, url + path)
        thread = await make_thread(store, title="The ledger")
        await compact_thread(store, thread)
        for path in ("/", "/dashboard/overview", *await thread_pages(store, thread)):
            await expect_page(tab, url + path)


async def test_pages_are_accessible(tmp_path: Path) -> None:
    """Check with axe-core, in light and dark colours."""
    axe = find_axe(tmp_path)
    async with run_dashboard(tmp_path) as (url, pages, store, browser):
        tab = await enter(browser, url, pages)
        thread = await make_thread(store, title="The ledger")
        await compact_thread(store, thread)
        for path in ("/", "/dashboard/overview", *await thread_pages(store, thread)):
            for width, dark in LOOKS:
                await tab.look(width, dark=dark)
                await tab.open(url + path)
                await tab.run(axe + ";0")
                found = await tab.run(
                    "axe.run().then((result) => JSON.stringify(result.violations))"
                )
                serious = [
                    (
                        one["id"],
                        one["nodes"][0]["html"][:200],
                        one["nodes"][0].get("failureSummary", "")[:300],
                    )
                    for one in json.loads(found)
                    if one["impact"] in ("serious", "critical")
                ]
                assert serious == [], (path, width, dark)


async def test_hostile_text_is_inert(tmp_path: Path) -> None:
    async with run_dashboard(tmp_path) as (url, pages, store, browser):
        tab = await enter(browser, url, pages)
        evil = HOSTILE.replace("alert(", "window.hacked=(")
        said: list[Any] = [
            {"role": "user", "content": evil},
            {
                "role": "user",
                "content": CONTROLS
                + "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 " * 50,
            },
            {"role": "user", "content": "x" * 1_000_000},
        ]
        thread = await make_thread(store, title=evil, said=said)
        await compact_thread(store, thread)
        huge = (await store.load_history(thread, start=2, limit=1))[0]
        for path in (
            "/",
            *await thread_pages(store, thread),
            f"/dashboard/threads/{thread}/messages/{huge.id}",
        ):
            await expect_page(tab, url + path)


async def test_large_store_stays_fast(tmp_path: Path) -> None:
    async with run_dashboard(tmp_path) as (url, pages, store, browser):
        async with httpx2.AsyncClient(base_url=url, timeout=300) as http:
            await http.get(pages.login.make_login_link())
            empty = await _first_byte(http, "/")
            thread = (
                await store.create_session(NewSession(title="A very long thread", model=MODEL))
            ).id
            for start in range(0, 2_500, 500):
                some = [
                    NewMessage(body)
                    for number in range(start, start + 500)
                    for body in make_turn(number)
                ]
                await store.append(thread, some)
            for number in range(2_500):
                used = CanonicalUsage(100, 50, min(9_000, 40 * number), 200)
                await store.usage.record_usage(NewUsage(thread, MODEL, used))
            for start in range(0, 5_000, 500):
                made = (
                    store.create_session(NewSession(title=f"thread {n}"))
                    for n in range(start, start + 500)
                )
                await asyncio.gather(*made)
            # A search indexes first: nothing else works meanwhile.
            await http.get("/?q=ledger")
            for path in (f"/dashboard/threads/{thread}", "/"):
                assert await _first_byte(http, path, times=1) <= 10 * empty, (
                    f"the first time: {path}"
                )
                assert await _first_byte(http, path) <= 10 * empty, path
                assert len((await http.get(path)).content) <= PAGE_BYTES
        tab = await enter(browser, url, pages)
        for path in (
            "/",
            "/?page=100",
            "/dashboard/overview",
            *await thread_pages(store, thread),
        ):
            await expect_page(tab, url + path)


async def _first_byte(http: httpx2.AsyncClient, path: str, times: int = 7) -> float:
    """Return the median CPU seconds of this process until an answer begins."""
    taken = []
    for _ in range(times):
        begun = time.process_time()
        async with http.stream("GET", path) as answer:
            pieces = answer.aiter_raw()
            await anext(pieces)
            taken.append(time.process_time() - begun)
            async for _piece in pieces:
                pass
    return statistics.median(taken)


async def test_undo_and_pin_on_the_page(
    tmp_path: Path,
) -> None:
    async with run_dashboard(tmp_path) as (url, pages, store, browser):
        tab = await enter(browser, url, pages)
        thread = await make_thread(store, title="The ledger")
        await compact_thread(store, thread)
        record = (await store.list_compactions(thread))[0]
        await tab.open(f"{url}/dashboard/threads/{thread}/compactions/{record.id}")
        await tab.submit("form[action$='/undo']")
        assert "The compaction was undone" in await tab.run("document.body.innerText")
        assert await store.get_compression_tip(thread) == thread
        await tab.run(
            "document.querySelector('textarea[name=text]').value = 'Never touch the audit log.'"
        )
        await tab.submit("form[action$='/pin']")
        assert [pin.text for pin in await store.state.list_pins(thread)] == [
            "Never touch the audit log."
        ]
        assert tab.complaints == []


async def test_running_conversation_is_shown_live(tmp_path: Path) -> None:
    async with chromium() as browser, open_gateways(tmp_path) as gateways:
        url = await gateways.start("keys")
        key = await gateways.create_key("acme", scopes=("proxy",))
        other = await gateways.create_key("others")
        tab = await browser.tab()
        theirs = await browser.tab()
        for page, shown in ((tab, key), (theirs, other)):
            await page.look(1_280)
            await page.open(url)
            await page.run(f"document.querySelector('#key').value = {json.dumps(shown)}")
            await page.submit("form[action$='/login']")
            await page.until(
                "location.pathname === '/' && document.querySelector('.live-state')?.dataset.on === 'yes'"
            )
        assert "No conversation yet" in await tab.run("document.body.innerText")
        client = gateways.anthropic_client(url, key)
        await ask_claude(client)
        await tab.until("document.querySelectorAll('.threads > li').length === 1")
        (thread,) = [row.first.id for row in await gateways.store.list_threads(tenant="acme")]
        await tab.open(f"{url}/dashboard/threads/{thread}")
        await tab.until("document.querySelector('.live-state').dataset.on === 'yes'")
        calls = "document.querySelector('#calls-chart')?.dataset.count"
        assert await tab.run(calls) == "1"
        said: Any = [{"role": "user", "content": "Hello"}]
        answer: Any = await client.messages.create(
            model=CLAUDE_MODEL, max_tokens=100, messages=said
        )
        words = answer.content[0].text
        said += [
            {"role": "assistant", "content": words},
            {"role": "user", "content": "And the ledger?"},
        ]
        await client.messages.create(model=CLAUDE_MODEL, max_tokens=100, messages=said)
        await tab.until(f"Number({calls}) >= 2")
        await theirs.open(f"{url}/dashboard/threads/{thread}")
        assert "There is no such page" in await theirs.run("document.body.innerText")
        await theirs.open(f"{url}/?q=ledger")
        assert "Nothing was found" in await theirs.run("document.body.innerText")
        assert [one for one in tab.complaints if "404" not in one] == []


async def test_keyboard_shortcuts(tmp_path: Path) -> None:
    async with run_dashboard(tmp_path) as (url, pages, store, browser):
        tab = await enter(browser, url, pages)
        for _ in range(3):
            await make_thread(store, turns=1)
        await tab.open(url)
        await tab.key("j")
        await tab.key("j")
        assert (
            await tab.run(
                "[...document.querySelectorAll('[data-item]')].indexOf(document.activeElement)"
            )
            == 1
        )
        await tab.run("document.activeElement.blur()")
        await tab.key("/")
        assert await tab.run("document.activeElement.id") == "q"


@pytest.mark.parametrize("path", ["/", "/dashboard/overview"])
async def test_pages_work_without_scripts(tmp_path: Path, path: str) -> None:
    async with run_dashboard(tmp_path) as (url, pages, store, browser):
        tab = await browser.tab()
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await tab.open(f"{url}{pages.login.make_login_link()}")
        thread = await make_thread(store, title="The ledger")
        await compact_thread(store, thread)
        await tab.open(url + path)
        shown = await tab.call("Runtime.evaluate", expression="1", returnByValue=True)
        assert shown is not None
        document = (await tab.call("DOM.getDocument", depth=-1))["root"]
        html = (await tab.call("DOM.getOuterHTML", nodeId=document["nodeId"]))["outerHTML"]
        assert ("The ledger" if path == "/" else "Slowest compactions") in html
