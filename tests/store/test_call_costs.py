"""Usage and cost of calls: every call once, sums exact, any period."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.errors import InputError, UnknownIdError
from everthread.store.records import NewSession
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage, UsageRecord, UsageRow
from everthread.testing import SteppedClock
from tests.store.messages import (
    compact_session,
    new_thread,
    new_user_message,
    numbered_thread,
    tool_result,
)

DAY = 86_400.0
COSTS = st.none() | st.integers(0, 10**15).map(lambda pico: Decimal(pico).scaleb(-12))


async def test_call_is_recorded_unchanged(store: Store, clock: SteppedClock) -> None:
    raw = {
        "input_tokens": 10,
        "cache_creation_input_tokens": 7,
        "cache_read_input_tokens": 5,
        "output_tokens": 3,
        "cache_creation": {"ephemeral_1h_input_tokens": 4},
        "odd": ["\0", "\ud800", 10**30],
    }
    usage = normalize_usage(raw)
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    clock.now += 7
    call: Any = {
        "session": tip,
        "model": "m",
        "usage": usage,
        "task": "auxiliary",
        "cost": Decimal("0.00000000012"),
        "estimated": True,
    }
    for _ in range(2):
        await store.usage.record_usage(NewUsage(**call, event="e"))
    [stored] = await store.usage.list_usage(thread)
    assert stored == UsageRecord(
        **call,
        id=stored.id,
        thread=thread,
        created=clock.now,
        tenant=stored.tenant,
        client=stored.client,
    )
    assert stored.usage.raw == raw
    assert stored.usage.cache_write_1h_tokens == 4


async def test_repeated_event_counts_once_in_its_thread(store: Store) -> None:
    one = await new_thread(store)
    two = await new_thread(store, tenant="b")
    for session in (one, one, two):
        await store.usage.record_usage(
            NewUsage(
                session,
                "m",
                CanonicalUsage(input_tokens=1),
                event="same",
            )
        )
    insights = await store.usage.load_insights(since=0, until=1e12)
    assert insights.total.calls == 2


@pytest.mark.parametrize("cost", [Decimal("NaN"), Decimal("Infinity"), Decimal(10) ** 12])
async def test_an_invalid_cost_is_refused(store: Store, thread: str, cost: Decimal) -> None:
    with pytest.raises(InputError):
        await store.usage.record_usage(NewUsage(thread, "m", CanonicalUsage(), cost=cost))
    with pytest.raises(InputError):
        await store.usage.record_usage(NewUsage(thread, "m", CanonicalUsage(input_tokens=10**20)))
    with pytest.raises(UnknownIdError):
        await store.usage.record_usage(NewUsage("nobody", "m", CanonicalUsage()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(costs=st.lists(COSTS, max_size=30))
async def test_sums_are_exact_and_unknown_prices_are_reported(
    store: Store, costs: list[Decimal | None]
) -> None:
    session = await store.create_session(NewSession(tenant=NewSession().id))
    for cost in costs:
        await store.usage.record_usage(
            NewUsage(
                session.id,
                "m",
                CanonicalUsage(output_tokens=1),
                cost=cost,
            )
        )
    total = (
        await store.usage.load_insights(
            since=0,
            until=1e12,
            tenant=session.tenant,
        )
    ).total
    assert total.cost == sum((cost for cost in costs if cost is not None), Decimal(0))
    assert total.calls == len(costs)
    assert total.unpriced_calls == costs.count(None)


async def busy_month(store: Store, clock: SteppedClock) -> list[dict[str, Any]]:
    """Calls over several days, tenants, platforms, models and tasks, as plain rows to count by hand."""
    rows: list[dict[str, Any]] = []
    start = clock.now = 1_700_006_400.0  # midnight
    for number in range(24):
        clock.now = start + number * DAY / 3
        tenant = "ab"[number % 2]
        platform = ("cli", "web", "")[number % 3]
        thread = await new_thread(store, tenant=tenant, platform=platform)
        await store.append(
            thread,
            [
                new_user_message("x", tokens=3),
                tool_result(f"tool{number % 2}", "out", tokens=number),
                new_user_message("no tokens"),
            ],
        )
        usage = CanonicalUsage(
            input_tokens=100 + number,
            output_tokens=10,
            cache_read_tokens=number * 7,
            cache_write_tokens=number % 5,
            reasoning_tokens=number % 4,
        )
        row: dict[str, Any] = {
            "at": clock.now,
            "tenant": tenant,
            "platform": platform,
            "model": f"m{number % 4}",
            "task": ("main", "auxiliary")[number % 5 == 0],
            "usage": usage,
            "cost": None if number % 6 == 0 else Decimal(number).scaleb(-5),
            "tool": number,
            "session": thread,
        }
        rows.append(row)
        await store.usage.record_usage(
            NewUsage(
                thread,
                row["model"],
                usage,
                row["task"],
                row["cost"],
            )
        )
        if number % 4 == 0:
            await compact_session(store, thread)
    return rows


def sum_rows(key: str, rows: list[dict[str, Any]]) -> UsageRow:
    used = [row["usage"] for row in rows]
    return UsageRow(
        key,
        len(rows),
        sum(u.input_tokens for u in used),
        sum(u.output_tokens for u in used),
        sum(u.cache_read_tokens for u in used),
        sum(u.cache_write_tokens for u in used),
        sum(u.reasoning_tokens for u in used),
        sum((row["cost"] or Decimal(0) for row in rows), Decimal(0)),
        sum(row["cost"] is None for row in rows),
    )


async def test_insights_equal_a_count_by_hand(store: Store, clock: SteppedClock) -> None:
    rows = await busy_month(store, clock)
    first = rows[0]["at"]
    last = rows[-1]["at"]
    periods = [
        (0.0, 1e12),
        (first, last),
        (first + DAY, first + 3 * DAY),
        (last + 1, 1e12),
        (first + 1, first + 2),
    ]
    for since, until in periods:
        for tenant in (None, "a", "nobody"):
            for platform in (None, "cli", ""):
                chosen = [
                    row
                    for row in rows
                    if since <= row["at"] < until
                    and tenant in (None, row["tenant"])
                    and platform in (None, row["platform"])
                ]
                found = await store.usage.load_insights(
                    since=since,
                    until=until,
                    tenant=tenant,
                    platform=platform,
                )
                assert found.total == sum_rows("total", chosen)
                for names, group in (
                    (found.by_model, "model"),
                    (found.by_platform, "platform"),
                    (found.by_task, "task"),
                ):
                    keys = sorted({row[group] for row in chosen})
                    assert names == [
                        sum_rows(key, [row for row in chosen if row[group] == key]) for key in keys
                    ]
                compacted = sum(row["tool"] % 4 == 0 for row in chosen)
                assert found.compactions == compacted
                assert found.tokens_saved == 60 * compacted
                assert found.threads == len(chosen)
                assert found.sessions == len(chosen) + compacted
                assert found.messages == 3 * len(chosen)
                tools = {row.tool: (row.results, row.tokens) for row in found.by_tool}
                for number in (0, 1):
                    used = [row["tool"] for row in chosen if row["tool"] % 2 == number]
                    assert tools.get(f"tool{number}", (0, 0)) == (len(used), sum(used))


async def test_a_compaction_that_was_undone_saved_nothing(store: Store) -> None:
    thread = await numbered_thread(store, 6)
    tip = await compact_session(store, thread)
    await compact_session(store, tip)
    await store.undo(thread)
    found = await store.usage.load_insights(since=0, until=1e12)
    assert found.compactions == 1
    assert found.tokens_saved == 60


async def test_days_are_utc_and_in_order(store: Store, thread: str, clock: SteppedClock) -> None:
    for moment in (86_400.0 * 365 - 0.001, 86_400.0 * 365, 1_700_000_000.0):
        await store.usage.record_usage(
            NewUsage(
                thread,
                "m",
                CanonicalUsage(input_tokens=1),
                created=moment,
            )
        )
    days = (await store.usage.load_insights(since=0, until=1e12)).by_day
    assert [(row.key, row.calls) for row in days] == [
        ("1970-12-31", 1),
        ("1971-01-01", 1),
        ("2023-11-14", 1),
    ]


async def test_computes_the_share_read_from_the_cache(store: Store, thread: str) -> None:
    insights = await store.usage.load_insights(since=0, until=1e12)
    assert insights.total.cache_share is None
    usage = CanonicalUsage(
        input_tokens=10,
        cache_read_tokens=30,
        cache_write_tokens=20,
    )
    await store.usage.record_usage(NewUsage(thread, "m", usage))
    insights = await store.usage.load_insights(since=0, until=1e12)
    assert insights.total.cache_share == 0.5
