"""The pages: threads, windows, calls and compactions, and the actions on them."""

from __future__ import annotations

import asyncio
import logging
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from everthread import open_conversation
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import ModelReply
from everthread.core.utc_days import DAY_SECONDS, format_utc_day
from everthread.gateway.dashboard.overview_page import draw_days
from everthread.gateway.dashboard.savings import CostComparison, compare_thread
from everthread.gateway.dashboard.summary_lines import split_summary
from everthread.gateway.dashboard.trial_page import (
    TrialRequest,
    TrialResult,
    TrialRun,
)
from everthread.store.records import CompactionRecord, LimitKey, NewCompaction
from everthread.store.rewrite_records import (
    ContextEntry,
    NewRewrite,
    ProxiedContext,
    Rewrite,
)
from everthread.store.usage_records import NewUsage, UsageRecord, UsageRow
from everthread.testing import ScriptedModel
from everthread.thread.caller.caller_request import Outcome
from tests.gateway.dashboard_setup import (
    MODEL,
    SUMMARY,
    Browser,
    ServedDashboard,
    compact_thread,
    make_thread,
    open_dashboard,
)
from tests.gateway.manager_setup import HistoryClient, Managers, prepare_request
from tests.store.links import extend, new_link


def test_a_prepared_compaction_counts_from_the_first_call_that_uses_it() -> None:
    prompts = (10_000, 60_000, 90_000, 20_000, 30_000)
    calls = [
        UsageRecord(
            id=at,
            session="t",
            thread="t",
            model="gpt-4o",
            task="main",
            usage=CanonicalUsage(input_tokens=prompt, output_tokens=10),
            cost=Decimal(1),
            estimated=False,
            created=float(at),
            tenant="default",
            client="agent",
        )
        for at, prompt in enumerate(prompts)
    ]
    compaction = CompactionRecord(
        1,
        "t",
        parent="s",
        session="s",
        created=0.5,
        reverted_at=None,
        record=NewCompaction(tokens_before=100_000, tokens_after=10_000),
    )
    comparison = compare_thread(
        calls,
        [compaction],
        find_prices=lambda *_: None,
        find_window=lambda _: 100_000,
        ttl=300,
    )
    assert comparison.outgrown == tuple(calls[3:])
    assert comparison.compared_count == 3


async def test_does_not_show_a_learnt_output_cap_as_the_window(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store)
    before = (await logged_in_browser.get(f"/dashboard/threads/{thread}")).visible_text
    await dashboard.store.limits.learn_limit(
        LimitKey("http://lab.test", MODEL), 4_321, source="stated", kind="output"
    )
    response = await logged_in_browser.get(f"/dashboard/threads/{thread}")
    assert response.visible_text == before
    await dashboard.store.limits.learn_limit(
        LimitKey("http://lab.test", MODEL), 54_321, source="stated"
    )
    response = await logged_in_browser.get(f"/dashboard/threads/{thread}")
    assert "54,321" in response.visible_text


async def test_shows_the_window_that_the_chat_used(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, window=128000) as dashboard:
        logged_in_browser = await dashboard.browser().log_in()
        model = ScriptedModel(["Noted.", "Noted."], window=16_000)
        async with open_conversation(model, store=dashboard.store) as conversation:
            await conversation.send("Keep the books.")
            page = (
                await logged_in_browser.get(f"/dashboard/threads/{conversation.id}")
            ).visible_text
            assert "of 16,000 tokens" in page
            assert "The window: 16,000 tokens (the model's own)." in page
            assert "as the test says" not in page
            response = await logged_in_browser.get("/")
            assert "of 16,000" in response.text

        await dashboard.store.limits.learn_limit(
            LimitKey(model.base_url, model.name),
            12_000,
            source="an error",
        )
        async with open_conversation(
            model, store=dashboard.store, resume=conversation.id
        ) as conversation:
            await conversation.send("And the ledger.")
            page = (
                await logged_in_browser.get(f"/dashboard/threads/{conversation.id}")
            ).visible_text
            assert "The window: 12,000 tokens, learnt from the provider." in page


async def test_shows_the_window_that_the_gateway_used(tmp_path: Path) -> None:
    async with open_dashboard(tmp_path, window=128000) as dashboard:
        logged_in_browser = await dashboard.browser().log_in()
        place = Managers(dashboard.store, window=16_000)
        manager = place.open()
        client = HistoryClient("openai_chat")
        client.add_user_message("Keep the books.")
        turn = await prepare_request(manager, client.incoming())
        answer = ModelReply({"role": "assistant", "content": "Noted."})
        usage = CanonicalUsage(input_tokens=40, output_tokens=2)
        await turn.record(Outcome(200, answer, usage))
        thread = (await turn.make_response_headers())["x-everthread-thread"]
        await manager.close()
        page = (await logged_in_browser.get(f"/dashboard/threads/{thread}")).visible_text
        assert "of 16,000 tokens" in page
        assert "The window: as the last call used it." in page


async def test_shows_every_page_of_an_empty_store(logged_in_browser: Browser) -> None:
    response = await logged_in_browser.get("/")
    assert "No conversation yet" in response.visible_text
    response = await logged_in_browser.get("/?q=apple")
    assert "Nothing was found" in response.visible_text
    overview = await logged_in_browser.get("/dashboard/overview")
    for page in (await logged_in_browser.get("/"), overview):
        assert "everthread wrap claude" in page.visible_text
        assert "everthread replay --latest" in page.visible_text
    for path in (
        "/dashboard/threads/nobody",
        "/dashboard/threads/nobody/compactions/1",
        "/dashboard/nowhere",
    ):
        response = await logged_in_browser.get(path)
        assert response.status == 404
    redirect = await logged_in_browser.http.get("/dashboard")
    assert redirect.headers["location"] == "/"


async def test_lists_and_finds_threads(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    first = await make_thread(dashboard.store, title="The ledger")
    other = await make_thread(dashboard.store, turns=1)
    await compact_thread(dashboard.store, first)
    listed = await logged_in_browser.get("/")
    assert set(listed.links("/dashboard/threads/")) == {
        f"/dashboard/threads/{first}",
        f"/dashboard/threads/{other}",
    }
    assert "The ledger" in listed.visible_text
    assert "Please mend src/ledger.py number 0" in listed.visible_text, (
        "without a title its first words name a thread"
    )
    assert "12.0k of 20k (60 %)" in listed.visible_text.replace("12k", "12.0k")
    results = await logged_in_browser.get("/?q=line3x7")
    assert results.links("/dashboard/threads/[0-9a-f]+$") == [f"/dashboard/threads/{first}"]
    assert "line3x7" in results.visible_text
    assert len(results.links("/messages/")) == 1
    assert re.search(r"before #\d+ \S.* #\d+ .*line3x7.*after #\d+ \S", results.visible_text), (
        results.visible_text
    )


async def test_shows_all_parts_of_a_thread(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store, title="The ledger")
    tip = await compact_thread(dashboard.store, thread)
    await dashboard.store.usage.record_usage(
        NewUsage(
            tip,
            MODEL,
            CanonicalUsage(4_000, 50),
            cost=Decimal("0.02"),
        )
    )
    page = await logged_in_browser.get(f"/dashboard/threads/{thread}")
    for words in (
        "System prompt",
        "Summary",
        "User’s words",
        "Recent conversation",
        "Tool results",
        "Free",
    ):
        assert words in page.visible_text
    assert "4,050 of 20,000 tokens, as the provider counted" in page.visible_text
    (chart,) = [given for given in page.elements("svg") if given.get("id") == "calls-chart"]
    assert chart["data-count"] == "9"
    assert '<g class="mark"><title>compaction: 9,000 to 3,000 tokens</title>' in page.text
    assert "9k → 3k tokens" in page.visible_text
    assert "compaction" in page.visible_text.split("Why the cache missed")[1].split("Heaviest")[0]
    assert (
        "pytest tests/test_part_7.py"
        in page.visible_text.split("Last outcome of each command")[1].split("Pinned")[0]
    )
    for fate in ("in view", "in the user’s words", "in the journal", "recallable"):
        assert fate in page.visible_text, fate
    assert page.text.count("<details id=") == len(
        [tag for tag in page.elements("li") if "left" in str(tag.get("class"))]
    )


async def test_shows_and_undoes_a_compaction(
    caplog: pytest.LogCaptureFixture, dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    with caplog.at_level(logging.WARNING):
        thread = await make_thread(dashboard.store)
        await compact_thread(dashboard.store, thread)
        (link,) = (await logged_in_browser.get(f"/dashboard/threads/{thread}")).links(
            "/compactions/"
        )
        page = await logged_in_browser.get(link)
        assert "Compaction 1: 9k → 3k tokens" in page.visible_text
        assert "24messages left the prompt" in page.visible_text.replace("\n", "")
        for words in (
            "Active Task",
            "What the User Said",
            "written by journal",
            "1 of them occur in no message",
            "Old tool results shortened",
        ):
            assert words in page.visible_text
        line = next(
            part for part in page.text.split("<li") if "tests/test_part_2.py</code>" in part
        )
        assert f"/dashboard/threads/{thread}/messages/" in line, (
            "a line of a summary names its source"
        )
        undone = await logged_in_browser.post(
            f"/dashboard/threads/{thread}/undo",
            page.form("/undo"),
            follow_redirects=True,
        )
        assert "The compaction was undone" in undone.visible_text
        session = await dashboard.store.load_session(thread)
        assert session.is_live
        response = await logged_in_browser.post(
            f"/dashboard/threads/{thread}/undo", page.form("/undo")
        )
        assert response.status == 409
        response = await logged_in_browser.get(link)
        assert "undo" not in str([given.get("action") for given in response.elements("form")])
        branched = await logged_in_browser.post(
            f"/dashboard/threads/{thread}/branch", page.form("/branch")
        )
        assert branched.status == 303
        branch = branched.headers["location"].split("/")[-1].split("?")[0]
        session = await dashboard.store.load_session(branch)
        assert session.kind == "branch"
        response = await logged_in_browser.get(branched.headers["location"])
        assert "the new branch" in response.visible_text

    assert "was undone by this machine" in caplog.text


async def test_refuses_to_change_a_thread_during_a_turn(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store)
    tip = await compact_thread(dashboard.store, thread)
    (path,) = (await logged_in_browser.get(f"/dashboard/threads/{thread}")).links("/compactions/")
    form = (await logged_in_browser.get(path)).form("/undo")
    lease = await dashboard.store.leases.acquire_lease(thread, "somebody", 60)
    assert lease is not None
    response = await logged_in_browser.post(f"/dashboard/threads/{thread}/undo", form)
    assert "a turn of this thread is running" in response.visible_text
    assert await dashboard.store.get_compression_tip(thread) == tip


async def test_pins_texts_and_messages(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store)
    form = (await logged_in_browser.get(f"/dashboard/threads/{thread}")).form("/pin")
    path = f"/dashboard/threads/{thread}/pin"
    pinned_page = await logged_in_browser.post(
        path, form | {"text": "Never touch the audit log."}, follow_redirects=True
    )
    assert "Pinned. Every later compaction" in pinned_page.visible_text
    pins = await dashboard.store.state.list_pins(thread)
    texts = [pin.text for pin in pins]
    assert texts == ["Never touch the audit log."]
    first = (await dashboard.store.load_history(thread, limit=1))[0]
    page = await logged_in_browser.get(f"/dashboard/threads/{thread}/messages/{first.id}")
    response = await logged_in_browser.post(path, page.form("/pin"))
    assert response.status == 303
    pins = await dashboard.store.state.list_pins(thread)
    assert len(pins) == 2
    thread_page = await logged_in_browser.get(f"/dashboard/threads/{thread}")
    response = await logged_in_browser.post(
        f"/dashboard/threads/{thread}/unpin", thread_page.form("/unpin")
    )
    assert response.status == 303
    pins = await dashboard.store.state.list_pins(thread)
    assert len(pins) == 1
    response = await logged_in_browser.post(path, form | {"text": " "})
    assert response.status == 409
    response = await logged_in_browser.post(path, form | {"text": "x" * 70_000})
    assert response.status == 413


async def test_shows_the_summary_that_replaces_the_beginning(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    for number in range(1, 5):
        await extend(
            dashboard.store,
            new_link(f"d{number}", f"d{number - 1}" if number > 1 else "", length=number),
        )
    rewrite = Rewrite(
        "t",
        "e",
        digest="d3",
        strength=0,
        replaced_count=3,
        loose_digest="s3",
        results="",
        thread="A",
        replacement=b'{"role":"user","content":"said d1"}',
    )
    compaction = NewCompaction(tokens_before=900, tokens_after=300, summary=SUMMARY)
    summary = ContextEntry(None, {"role": "user", "content": SUMMARY})
    context = ProxiedContext(
        [ContextEntry(0), summary, ContextEntry(3)],
        [1, 2],
        own_roles=["user"] * 4,
        inherited_count=0,
    )
    await dashboard.store.client_histories.commit_rewrite(
        NewRewrite(
            rewrite,
            compaction,
            context,
            scope="",
            digest="d4",
        )
    )
    page = await logged_in_browser.get("/dashboard/threads/A")
    assert [tag for tag in page.elements("span") if "view" in str(tag.get("class")).split()] != []
    fates = [
        str(tag["class"]).split()[1]
        for tag in page.elements("span")
        if str(tag.get("class")).startswith("tag ")
    ]
    assert fates == ["view", "recall", "recall", "view"]
    (link,) = page.links("/compactions/")
    opened = await logged_in_browser.get(link)
    assert "Undo this compaction" in opened.visible_text
    assert "2messages left the prompt" in opened.visible_text.replace("\n", "")


async def test_overview_sums_calls_tokens_and_costs(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store, tenant="a")
    tip = await compact_thread(dashboard.store, thread)
    for _ in range(3):
        used = CanonicalUsage(100, 50, 3_000)
        await dashboard.store.usage.record_usage(NewUsage(tip, MODEL, used, cost=Decimal("0.002")))
    other = await make_thread(dashboard.store, tenant="b", turns=1)
    await dashboard.store.usage.record_usage(
        NewUsage(other, "nobodys-model", CanonicalUsage(10, 10))
    )
    page = await logged_in_browser.get("/dashboard/overview?days=1")
    words = page.visible_text.replace("\n", "")
    assert "4 callsin 2 conversationsnone has outgrown its window yet" in words
    assert "stored, searchable1 compaction took 6k tokens" in words
    assert "with the whole history" in words
    for words in (
        "By model",
        "By client",
        "By tenant",
        "By day",
        "Slowest compactions",
        "nobodys-model",
    ):
        assert words in page.visible_text
    assert "1 call without a known price" in page.visible_text
    response = await logged_in_browser.get("/dashboard/overview?days=x")
    assert response.status == 200


async def test_overview_leads_with_calls_beyond_the_window(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store, turns=8)
    tip = await compact_thread(dashboard.store, thread)
    for _ in range(3):
        used = CanonicalUsage(18_000, 50)
        await dashboard.store.usage.record_usage(NewUsage(tip, "nobodys-model", used))
    used = CanonicalUsage(16_000, 50)
    await dashboard.store.usage.record_usage(NewUsage(tip, "nobodys-model", used))
    page = await logged_in_browser.get(f"/dashboard/threads/{thread}")
    words = page.visible_text.replace("\n", "")
    assert "1 callbeyond the windowof 12 in all" in words
    assert "24 left the prompt; search and recall find them" in words
    assert "saved" not in words.partition("What fills the window")[0]
    overview = await logged_in_browser.get("/dashboard/overview")
    words = overview.visible_text.replace("\n", "")
    assert "1 callbeyond the window1 conversation continued" in words
    assert "cli1" in words, "by client"
    assert "unknowncost4 calls without a known price" in words


async def test_lists_branches_under_their_conversation(
    dashboard: ServedDashboard, logged_in_browser: Browser
) -> None:
    thread = await make_thread(dashboard.store, turns=2, title="The `ledger` work")
    first = (await dashboard.store.load_history(thread))[1]
    branch = await dashboard.store.branch(thread, first.id)
    twig = await dashboard.store.branch(branch.id, first.id)
    page = await logged_in_browser.get("/")
    assert page.text.count('<ol class="branches">') == 1
    nested = page.text.partition('<ol class="branches">')[2].partition("</ol>")[0]
    assert branch.id in nested
    assert twig.id in nested
    shared = f"/dashboard/threads/{branch.id}/messages/{first.id}"
    assert shared in page.links(r"/messages/\d+$"), "where it left"
    response = await logged_in_browser.get(shared)
    assert response.status == 200
    assert thread in page.text.partition('<ol class="branches">')[0]
    assert "The <code>ledger</code> work" in page.text


def test_draws_days_without_gaps() -> None:
    since = 1_700_000_000.0 // DAY_SECONDS * DAY_SECONDS
    names = [format_utc_day(since + number * DAY_SECONDS) for number in (1, 4)]
    rows = [
        UsageRow(
            name,
            calls=2,
            input=100,
            cache_read=300,
            cost=Decimal(1),
        )
        for name in names
    ]
    savings = CostComparison(saved_by={"day": {names[0]: 0.5}})
    drawn = draw_days(rows, savings, since)
    titles, charts = zip(*drawn, strict=True)
    assert list(titles) == [
        "Prompt tokens by day",
        "Dollars by day",
        "Share of the prompts read from the cache",
    ]
    assert 'data-count="4"' in charts[0]
    assert "saved by compaction" in charts[1]
    assert 'data-count="2"' in charts[2]
    assert draw_days(rows[:1], savings, since) == []


async def test_trying_settings_changes_nothing(tmp_path: Path) -> None:
    trial_requests: list[TrialRequest] = []

    async def trial(request: TrialRequest) -> TrialResult:
        trial_requests.append(request)
        runs = [
            TrialRun(
                name,
                [100, 200, 300],
                compacted_calls=[2],
                cost=0.5,
                facts=(3, 2, 1),
            )
            for name in ("as configured", "with these")
        ]
        return TrialResult(
            [
                *runs,
                TrialRun(
                    "without",
                    [100],
                    compacted_calls=[],
                    cost=None,
                    was_refused=True,
                ),
            ],
            ["a note"],
        )

    async with open_dashboard(tmp_path, trial=trial) as dashboard:
        logged_in_browser = await dashboard.browser().log_in()
        thread = await make_thread(dashboard.store)
        form = (await logged_in_browser.get(f"/dashboard/threads/{thread}/try")).form("/try")
        assert form["threshold"] == "50"
        assert form["ratio"] == "20"
        page = await logged_in_browser.post(
            f"/dashboard/threads/{thread}/try",
            form | {"threshold": "30", "ratio": "999"},
        )
        assert trial_requests[0].threshold == 0.30
        assert trial_requests[0].ratio == 0.80
        assert len(trial_requests[0].messages) == 32
        for words in (
            "with these",
            "1, then refused",
            "$0.5000",
            "a note",
            "compression.threshold 0.30",
        ):
            assert words in page.visible_text
        tip = await dashboard.store.get_compression_tip(thread)
        assert tip == thread


async def test_sends_changes_to_an_open_page(dashboard: ServedDashboard) -> None:
    thread = await make_thread(dashboard.store, turns=1)
    browser = await dashboard.browser().log_in()
    request = browser.http.build_request("GET", f"/dashboard/live?thread={thread}")
    scope = {
        "type": "http",
        "method": "GET",
        "path": request.url.path,
        "query_string": request.url.query,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
    }
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    page = asyncio.create_task(
        dashboard.pages(scope, asyncio.Event().wait, sent.put)  # type: ignore[arg-type] # the browser stays
    )
    response = await sent.get()
    assert response["status"] == 200
    response = await sent.get()
    assert response["body"] == b"retry: 2000\n\n"
    await dashboard.store.usage.record_usage(NewUsage(thread, MODEL, CanonicalUsage(1, 1)))
    response = await sent.get()
    assert response["body"] == b"event: changed\ndata: yes\n\n"
    dashboard.pages.close()
    await page


def test_each_summary_line_links_to_its_message() -> None:
    sources = [
        (number, f"Please mend src/mod_{number}.py and keep to two decimals.")
        for number in range(1, 9)
    ]
    text = "[A SUMMARY of src/mod_3.py]\n## Active Task\nMend src/mod_3.py, two decimals.\n- nothing known here\n"
    marker, task = split_summary(text, sources)
    assert marker.lines[0].sources == ()
    assert [line.sources for line in task.lines] == [(3,), ()]
    list_items = [line.is_item for line in task.lines]
    assert list_items == [False, True]
