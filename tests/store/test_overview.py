"""Figures for pages that show many threads."""

from __future__ import annotations

from decimal import Decimal

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage, ThreadFigures
from everthread.testing import SteppedClock
from tests.store.messages import (
    compact_session,
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_thread,
    tool_result,
)


async def test_thread_figures_sum_calls_and_compactions(store: Store, clock: SteppedClock) -> None:
    one = await numbered_thread(store, 6, tenant="a")
    two = await numbered_thread(store, 6, tenant="b")
    empty = await new_thread(store, tenant="a")
    await store.usage.record_usage(
        NewUsage(
            one,
            "m1",
            CanonicalUsage(100, 10, 50, 5),
            cost=Decimal("0.25"),
        )
    )
    await store.usage.record_usage(
        NewUsage(
            one,
            "m2",
            CanonicalUsage(10, 1),
            "auxiliary",
            cost=Decimal("0.5"),
        )
    )
    await store.usage.record_usage(NewUsage(two, "m3", CanonicalUsage(7, 1)))
    tip = await compact_session(store, one)
    figures = await store.overview.sum_threads([one, two, empty])
    assert figures == {
        one: ThreadFigures(
            one,
            calls=1,
            cost=Decimal("0.75"),
            prompt_tokens=165,
            cache_read_tokens=50,
            output_tokens=11,
            last_model="m1",
            last_prompt_tokens=155,
            compactions=1,
            last_compacted=clock.now,
        ),
        two: ThreadFigures(
            two,
            calls=1,
            unpriced_calls=1,
            prompt_tokens=7,
            output_tokens=1,
            last_model="m3",
            last_prompt_tokens=7,
        ),
    }
    calls = await store.usage.list_usage(one)
    assert [(call.model, call.task, call.usage.prompt_tokens, call.tenant) for call in calls] == [
        ("m1", "main", 155, "a"),
        ("m2", "auxiliary", 10, "a"),
    ]
    records = await store.overview.list_recent_compactions(tenant="a")
    assert [record.session for record in records] == [tip]
    assert await store.overview.list_recent_compactions(tenant="b") == []
    assert await store.overview.list_recent_compactions(threads=[two]) == []
    assert await store.overview.list_recent_compactions(threads=[]) == []
    sums = await store.overview.sum_usage_by("tenant", since=0, until=clock.now + 1)
    assert [(row.key, row.calls, row.prompt, row.cost) for row in sums] == [
        ("a", 2, 165, Decimal("0.75")),
        ("b", 1, 7, Decimal(0)),
    ]
    by_client = await store.overview.sum_usage_by(
        "client",
        since=0,
        until=clock.now + 1,
        tenant="a",
    )
    assert [(row.key, row.calls) for row in by_client] == [("", 2)]


async def test_the_heaviest_messages_and_tools(store: Store) -> None:
    thread = await new_thread(
        store,
        new_user_message("short"),
        new_user_message("x" * 4_000),
        tool_result("terminal", "y" * 800),
        tool_result("terminal", "z", tokens=9_000),
    )
    sizes = await store.overview.list_largest_messages(thread, limit=2)
    assert [size.tokens for size in sizes] == [
        9_000,
        (len('{"role":"user","content":""}') + 4_003) // 4,
    ]
    ((tool, count, tokens),) = await store.overview.list_tool_sizes(thread)
    assert tool == "terminal"
    assert count == 2
    assert tokens > 9_200


async def test_last_change_differs_after_every_change(store: Store, clock: SteppedClock) -> None:
    thread = await numbered_thread(store, 6, tenant="a")
    thread_changes = [await store.overview.load_change_marker(thread_id=thread)]
    tenant_changes = [await store.overview.load_change_marker(tenant="a")]

    async def compare_changes() -> None:
        thread_changes.append(await store.overview.load_change_marker(thread_id=thread))
        tenant_changes.append(await store.overview.load_change_marker(tenant="a"))

    assert await store.overview.load_change_marker(thread_id=thread) in thread_changes
    assert await store.overview.load_change_marker() in tenant_changes
    clock.now += 1
    await store.append(thread, numbered_messages(7, 7))
    await compare_changes()
    tip = await compact_session(store, thread)
    await compare_changes()
    await store.usage.record_usage(NewUsage(tip, "m", CanonicalUsage(1, 1)))
    await compare_changes()
    await store.undo(tip)
    await compare_changes()
    assert len(set(thread_changes)) == 5
    assert len(set(tenant_changes)) == 5


async def test_messages_of_a_session_are_summed_and_looked_up(
    store: Store, clock: SteppedClock
) -> None:
    thread = await new_thread(store, *numbered_messages(1, 6), tool_result("terminal", "x" * 400))
    ids = [message.id for message in await store.list_messages(thread)]
    tip = await compact_session(store, thread, words="in short")
    row = await store.overview.load_thread_row(thread)
    rows = await store.list_threads()
    assert row == rows[0]
    assert row.tip.id == tip
    assert row.message_count == 7
    assert row.compaction_count == 1
    sizes = {
        (kind, role, is_tool): tokens
        for kind, role, is_tool, tokens in await store.overview.list_context_sizes(tip)
    }
    assert sizes.keys() == {
        ("message", "user", False),
        ("message", "tool", True),
        ("summary", "user", False),
    }
    assert sizes["message", "tool", True] > 100
    assert len(await store.overview.list_context_sizes(tip, start=3)) == 1
    whole, shortened = await store.overview.find_unchanged_and_shortened_ids(tip, ids)
    assert whole == {ids[0], *ids[-2:]}
    assert shortened == set()
    assert [message.body["content"] for message in await store.overview.list_summaries(tip)] == [
        "in short"
    ]
