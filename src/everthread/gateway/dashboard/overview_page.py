"""The overview of all threads, with figures, charts by day, tables, slow compactions and failures."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.core.text import count_noun
from everthread.core.utc_days import DAY_SECONDS, find_period_start, format_utc_day
from everthread.gateway.dashboard.charts import (
    HALF_PAGE_WIDTH,
    Chart,
    Line,
    Segment,
    draw_bar,
    draw_chart,
    make_cache_lines,
)
from everthread.gateway.dashboard.compaction_page import make_compaction_items
from everthread.gateway.dashboard.headlines import MIN_DOLLARS, describe_period
from everthread.gateway.dashboard.login import Viewer
from everthread.gateway.dashboard.page_text import format_money
from everthread.gateway.dashboard.savings import CostComparison
from everthread.gateway.dashboard.thread_costs import ThreadCosts
from everthread.gateway.dashboard.thread_list import translate_client_name
from everthread.store.usage_records import UsageRow

MAX_DAYS = 367
MAX_CLIENT_BARS = 8
"""Maximum clients that are shown, each with a bar."""


async def load_overview(costs: ThreadCosts, viewer: Viewer, days: int) -> dict[str, Any]:
    end_time = time.time() + 1
    start_time = find_period_start(end_time, days)
    tenant = viewer.tenant
    insights, clients, failures, records, learnt_windows = await asyncio.gather(
        costs.store.usage.load_insights(since=start_time, until=end_time, tenant=tenant),
        costs.store.overview.sum_usage_by(
            "client", since=start_time, until=end_time, tenant=tenant
        ),
        costs.store.state.sum_failures(since=start_time, tenant=tenant),
        costs.store.overview.list_recent_compactions(tenant=tenant, limit=5_000),
        costs.load_learnt_windows(),
    )
    savings = await costs.compare_period(records, learnt_windows, start_time)
    recent_records = [record for record in records if record.created >= start_time]
    slowest_compactions = sorted(
        make_compaction_items(recent_records), key=lambda item: -item.record.duration
    )[:8]
    groups = [("model", insights.by_model), ("client", clients)]
    if tenant is None:
        tenants = await costs.store.overview.sum_usage_by(
            "tenant", since=start_time, until=end_time
        )
        if len(tenants) > 1:
            groups.append(("tenant", tenants))
    groups.append(("day", insights.by_day[::-1][:31]))
    tables = []
    for kind, rows in groups:
        saved_by_key = savings.saved_by.get(kind, {})
        usage_rows = [_make_usage_row(row, saved_by_key.get(row.key, 0.0)) for row in rows]
        if usage_rows:
            tables.append((kind, usage_rows))
    return {
        "days": days,
        "headline": describe_period(insights, savings),
        "has_calls": bool(insights.total.calls or insights.compactions),
        "tables": tables,
        "slowest": slowest_compactions,
        "failures": [(failure, f"{count:,}") for failure, count in failures],
        "charts": draw_days(insights.by_day, savings, start_time),
        "outgrown": list_outgrown_calls_by_client(savings),
    }


def _make_usage_row(row: UsageRow, saved_dollars: float) -> tuple[str, ...]:
    share = row.cache_share
    is_priced = row.unpriced_calls < row.calls
    return (
        translate_client_name(row.key) if row.key else "–",
        f"{row.calls:,}",
        f"{row.prompt:,}",
        "–" if share is None else f"{share:.1%}",
        f"{row.output:,}",
        format_money(row.cost) if is_priced else "unknown",
        format_money(saved_dollars) if abs(saved_dollars) >= MIN_DOLLARS else "–",
    )


def draw_days(
    by_day: Sequence[UsageRow], savings: CostComparison, start_time: float
) -> list[tuple[str, str]]:
    """Draw the prompt tokens, dollars and cached share of each day. Return pairs of title and SVG; none for one day."""
    if len(by_day) < 2:
        return []
    days = _fill_days({row.key: row for row in by_day}, start_time)
    names = [row.key[5:] for row in days]
    charts = [_make_prompt_chart(days, names)]
    if any(row.cost for row in days):
        charts.append(_make_cost_chart(days, names, savings))
    if any(row.cache_read for row in days):
        charts.append(_make_share_chart([row for row in days if row.calls]))
    return [(chart.title, draw_chart(chart)) for chart in charts]


def _fill_days(row_by_day: Mapping[str, UsageRow], start_time: float) -> list[UsageRow]:
    """Return a row for every day from the first with calls to the last."""
    first_day = min(row_by_day)
    last_day = max(row_by_day)
    days = [format_utc_day(start_time + number * DAY_SECONDS) for number in range(MAX_DAYS)]
    return [row_by_day.get(day, UsageRow(day)) for day in days if first_day <= day <= last_day]


def _make_prompt_chart(days: Sequence[UsageRow], names: Sequence[str]) -> Chart:
    lines = make_cache_lines(
        read=[row.cache_read for row in days],
        written=[row.cache_write for row in days],
        uncached=[row.input for row in days],
    )
    total = sum(row.prompt for row in days)
    return Chart(
        "prompt-days",
        "Prompt tokens by day",
        f"{total:,} prompt tokens in {count_noun(len(days), 'day')}.",
        unit="tokens",
        lines=lines,
        form="columns",
        axis="day",
        names=names,
        width=HALF_PAGE_WIDTH,
    )


def _make_cost_chart(
    days: Sequence[UsageRow], names: Sequence[str], savings: CostComparison
) -> Chart:
    spent_dollars = [float(row.cost) for row in days]
    saved_dollars = [max(0.0, savings.saved_by["day"].get(row.key, 0.0)) for row in days]
    lines = [Line("spent", "a", spent_dollars)]
    if any(saved_dollars):
        lines.append(Line("saved by compaction", "saved", saved_dollars))
    return Chart(
        "cost-days",
        "Dollars by day",
        f"${sum(spent_dollars):,.2f} spent in {count_noun(len(days), 'day')}.",
        unit="$",
        lines=lines,
        form="columns",
        axis="day",
        names=names,
        width=HALF_PAGE_WIDTH,
    )


def _make_share_chart(days: Sequence[UsageRow]) -> Chart:
    shares = [100 * (row.cache_share or 0.0) for row in days]
    return Chart(
        "share-days",
        "Share of the prompts read from the cache",
        f"Between {min(shares):.0f} % and {max(shares):.0f} % of each day’s prompt tokens.",
        unit="%",
        lines=[Line("read from the cache", "read", shares)],
        axis="day",
        names=[row.key[5:] for row in days],
        width=HALF_PAGE_WIDTH,
    )


def list_outgrown_calls_by_client(savings: CostComparison) -> list[tuple[str, int, str]]:
    """Return each client with its number of calls beyond the window and a bar. The largest number comes first."""
    call_count_by_client = Counter(translate_client_name(call.client) for call in savings.outgrown)
    call_counts = call_count_by_client.most_common(MAX_CLIENT_BARS)
    return [
        (
            client,
            call_count,
            draw_bar(
                [Segment("a", client, call_count)], call_counts[0][1], f"{client}: {call_count:,}"
            ),
        )
        for client, call_count in call_counts
    ]
