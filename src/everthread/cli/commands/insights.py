"""`everthread insights`: usage over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.formats import format_cost, format_share
from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import JsonOption, StoreOption, TenantOption, number_option
from everthread.cli.store_access import with_store
from everthread.cli.tables import print_bars, print_table
from everthread.cli.times import format_iso
from everthread.cli.usage_columns import list_usage_values
from everthread.core.text import count_noun
from everthread.core.utc_days import find_period_start
from everthread.store.usage_records import make_insights_figures, sum_usage

if TYPE_CHECKING:
    from everthread.store.usage_records import Insights, UsageRow


INSIGHT_COLUMNS = ("calls", "prompt", "cache hits", "output", "cost")
MAX_DAILY_BARS = 62
MAX_DAYS_WITH_WEEKLY_BARS = 400
"""The longest periods with one bar for each day, and for each week. Longer periods have one for each month."""


def insights(
    days: Annotated[
        int,
        number_option(minimum=1, maximum=3_660, help_text="Number of days, today included."),
    ] = 30,
    platform: Annotated[str | None, typer.Option(help="Only sessions of this platform.")] = None,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show usage and cost by day, model, platform, task and tool, and what compaction saved. Days are UTC."""
    end_time = time.time() + 1
    start_time = find_period_start(end_time, days)
    figures = with_store(
        store_url,
        lambda store: store.usage.load_insights(
            since=start_time, until=end_time, tenant=tenant, platform=platform
        ),
        empty_if_missing=True,
    )
    if as_json:
        print_json(
            make_insights_figures(figures)
            | {
                "lookups": figures.lookups,
                "days": days,
                "since": format_iso(start_time),
                "until": format_iso(end_time),
            }
        )
    else:
        _print_insights(figures, datetime.fromtimestamp(start_time, tz=UTC).date(), days)


def _print_insights(figures: Insights, first_day: date, days: int) -> None:
    print_text((f"{count_noun(days, 'day')} from {first_day} on", "bold"), " (UTC)")
    count_texts = (
        count_noun(figures.threads, "thread"),
        count_noun(figures.sessions, "session"),
        count_noun(figures.messages, "message"),
        count_noun(figures.compactions, "compaction"),
        count_noun(figures.tokens_saved, "token"),
    )
    print_text(f"{', '.join(count_texts)} saved")
    if figures.lookups:
        print_text(f"{count_noun(figures.lookups, 'lookup')} of what had left the context")
    total = figures.total
    if total.calls:
        print_text(
            f"{count_noun(total.calls, 'call')}, {total.prompt + total.output:,} tokens, cost {format_cost(total)}, "
            f"{format_share(total.cache_read, total.prompt)} of the prompts read from the cache\n"
        )
        unit, rows = sum_usage_by_period(figures.by_day, first_day, days)
        print_bars(
            f"tokens by {unit}",
            [(row.key, row.prompt + row.output, format_cost(row)) for row in rows],
        )
    else:
        print_text("no calls to a model are recorded")
    groups = {"model": figures.by_model, "platform": figures.by_platform, "task": figures.by_task}
    for name, group_rows in groups.items():
        if group_rows:
            sorted_rows = sorted(group_rows, key=lambda row: -(row.prompt + row.output))
            table_rows = [
                (row.key or "-", *list_usage_values(row, INSIGHT_COLUMNS)) for row in sorted_rows
            ]
            print_table(
                f"by {name}",
                [f"{name}…", *(f"{column}>" for column in INSIGHT_COLUMNS)],
                table_rows,
            )
    if figures.by_tool:
        rows_of_tools = [(row.tool, row.results, row.tokens) for row in figures.by_tool]
        print_table("by tool", ["tool…", "results>", "tokens>"], rows_of_tools)


def sum_usage_by_period(
    by_day: Sequence[UsageRow], first_day: date, days: int
) -> tuple[str, list[UsageRow]]:
    """Sum usage by day, or by week or month for many days, without gaps from the first use on."""
    unit, label = _choose_period(days)
    rows_by_day = {date.fromisoformat(row.key): row for row in by_day}
    end = first_day + timedelta(days)
    day = min(rows_by_day, default=first_day)
    rows_by_period: dict[str, list[UsageRow]] = {}
    while day < end:
        period_rows = rows_by_period.setdefault(label(day), [])
        period_rows += [rows_by_day[day]] if day in rows_by_day else []
        day += timedelta(1)
    return unit, [sum_usage(key, period_rows) for key, period_rows in rows_by_period.items()]


def _choose_period(days: int) -> tuple[str, Callable[[date], str]]:
    if days <= MAX_DAILY_BARS:
        return "day", lambda day: f"{day:%a %Y-%m-%d}"
    if days <= MAX_DAYS_WITH_WEEKLY_BARS:
        return "week", lambda day: f"{day - timedelta(day.weekday()):%Y-%m-%d}"
    return "month", lambda day: f"{day:%Y-%m}"
