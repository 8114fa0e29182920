"""Figures for pages that show many threads."""

from __future__ import annotations

from decimal import Decimal

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage
from tests.store.conftest import Clock
from tests.store.messages import (
    compact_session,
    new_thread,
    numbered_messages,
    numbered_thread,
    tool_result,
    user_message,
)


async def test_thread_figures_sum_calls_and_compactions(
    store: Store, clock: Clock
) -> None:
    one = await numbered_thread(store, 6, tenant="a")
    two = await numbered_thread(store, 6, tenant="b")
    empty = await new_thread(store, tenant="a")
    await store.record_usage(
        NewUsage(one, "m1", CanonicalUsage(100, 10, 50, 5), cost=Decimal("0.25"))
    )
    await store.record_usage(
        NewUsage(one, "m2", CanonicalUsage(10, 1), "auxiliary", cost=Decimal("0.5"))
    )
    await store.record_usage(NewUsage(two, "m3", CanonicalUsage(7, 1)))
    tip = await compact_session(store, one)
    found = await store.thread_figures([one, two, empty])
    first = found[one]
    assert (first.calls, first.cost, first.last_prompt_tokens, first.last_model) == (
        1,
        Decimal("0.75"),
        155,
        "m1",
    )
    assert (first.compactions, first.last_compacted) == (1, clock.now)
    assert (found[two].cost, found[two].unpriced_calls) == (None, 1)
    assert empty not in found
    calls = await store.call_rows([one])
    assert [(call.model, call.task, call.prompt, call.tenant) for call in calls] == [
        ("m1", "main", 155, "a"),
        ("m2", "auxiliary", 10, "a"),
    ]
    records = await store.recent_compactions(tenant="a")
    assert [record.session for record in records] == [tip]
    assert await store.recent_compactions(tenant="b") == []
    assert await store.recent_compactions(threads=[two]) == []
    assert await store.recent_compactions(threads=[]) == []
    sums = await store.sum_usage_by("tenant", since=0, until=clock.now + 1)
    assert [(row.key, row.calls, row.prompt, row.cost) for row in sums] == [
        ("a", 2, 165, Decimal("0.75")),
        ("b", 1, 7, Decimal(0)),
    ]
    by_client = await store.sum_usage_by(
        "client", since=0, until=clock.now + 1, tenant="a"
    )
    assert [(row.key, row.calls) for row in by_client] == [("", 2)]


async def test_the_heaviest_messages_and_tools(store: Store) -> None:
    thread = await new_thread(
        store,
        user_message("short"),
        user_message("x" * 4_000),
        tool_result("terminal", "y" * 800),
        tool_result("terminal", "z", tokens=9_000),
    )
    sizes = await store.heaviest_messages(thread, limit=2)
    assert [size.tokens for size in sizes] == [
        9_000,
        (len('{"role":"user","content":""}') + 4_003) // 4,
    ]
    ((tool, count, tokens),) = await store.tool_sizes(thread)
    assert (tool, count) == ("terminal", 2)
    assert tokens > 9_200


async def test_last_change_differs_after_every_change(
    store: Store, clock: Clock
) -> None:
    thread = await numbered_thread(store, 6, tenant="a")
    seen = {await store.last_change(thread=thread)}
    listed = {await store.last_change(tenant="a"), await store.last_change()}
    assert await store.last_change(thread=thread) in seen
    clock.now += 1
    await store.append(thread, numbered_messages(7, 7))
    seen.add(await store.last_change(thread=thread))
    listed.add(await store.last_change(tenant="a"))
    tip = await compact_session(store, thread)
    seen.add(await store.last_change(thread=thread))
    await store.record_usage(NewUsage(tip, "m", CanonicalUsage(1, 1)))
    seen.add(await store.last_change(thread=thread))
    await store.undo(tip)
    seen.add(await store.last_change(thread=thread))
    listed.add(await store.last_change(tenant="a"))
    assert len(seen) == 5
    assert len(listed) == 3


async def test_messages_of_a_session_are_summed_and_looked_up(
    store: Store, clock: Clock
) -> None:
    thread = await new_thread(
        store, *numbered_messages(1, 6), tool_result("terminal", "x" * 400)
    )
    ids = [message.id for message in await store.messages(thread)]
    tip = await compact_session(store, thread, words="in short")
    row = await store.thread_row(thread)
    assert (row.first.id, row.tip.id, row.messages, row.compactions) == (
        thread,
        tip,
        7,
        1,
    )
    sizes = {
        (kind, role, is_tool): tokens
        for kind, role, is_tool, tokens in await store.context_sizes(tip)
    }
    assert sizes.keys() == {
        ("message", "user", False),
        ("message", "tool", True),
        ("summary", "user", False),
    }
    assert sizes["message", "tool", True] > 100
    assert len(await store.context_sizes(tip, start=3)) == 1
    whole, shortened = await store.shown_messages(tip, ids)
    assert (whole, shortened) == ({ids[0], *ids[-2:]}, set())
    assert [
        message.body["content"] for message in await store.session_summaries(tip)
    ] == ["in short"]
