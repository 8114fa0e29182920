"""`everthread usage [ID]`: tokens and cost, main and auxiliary calls apart; `everthread insights`: usage over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import (
    format_cost,
    format_share,
    print_bars,
    print_json,
    print_table,
    print_text,
    shorten_id,
)
from everthread.cli.shared_options import (
    AsJson,
    SinceOption,
    StoreUrl,
    Tenant,
    UntilOption,
    number_option,
)
from everthread.cli.store_access import with_store
from everthread.cli.times import DAY_SECONDS, format_age, format_iso, parse_time
from everthread.core.messages import count_noun
from everthread.errors import InputError
from everthread.store.usage_records import make_usage_figures, make_usage_row, sum_usage
from everthread.thread.lookup.thread_usage import load_thread_usage

if TYPE_CHECKING:
    from everthread.store.store import Store
    from everthread.store.usage_records import Insights, UsageRecord, UsageRow


SessionIdArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="A session's id or its first characters. Default: all threads.",
    ),
]
CallsOption = Annotated[
    bool,
    typer.Option("--calls", help="Every call of the thread, not only the sums."),
]


def usage(
    session_id: SessionIdArgument = None,
    calls: CallsOption = False,
    since: SinceOption = None,
    until: UntilOption = None,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the tokens and the cost of a thread, or of all."""
    if calls and session_id is None:
        raise InputError("--calls lists the calls of one thread: give its id")
    now = time.time()
    start_time = parse_time(since, now) or 0.0
    end_time = parse_time(until, now) or now + 1

    async def load_usage(
        store: Store,
    ) -> tuple[str | None, list[UsageRow], list[UsageRecord]]:
        if session_id is None:
            insights = await store.insights(
                since=start_time, until=end_time, tenant=tenant
            )
            by_task = sorted(insights.by_task, key=lambda row: row.key != "main")
            return None, [*by_task, replace(insights.total, key="all")], []
        thread = (await store.resolve(session_id, tenant=tenant)).thread
        rows, records = await _load_thread_rows(store, thread, start_time, end_time)
        return thread, rows, records

    thread, rows, records = with_store(store_url, load_usage, empty_if_missing=True)
    if as_json:
        calls_json = (
            {"calls": [_call_as_json(record) for record in records]} if calls else {}
        )
        sums = {row.key: make_usage_figures(row) for row in rows}
        print_json(
            {
                "thread": thread,
                "since": format_iso(start_time),
                "until": format_iso(end_time),
                "sums": sums,
            }
            | calls_json
        )
    else:
        _print_usage(thread, rows, records if calls else [], now)


async def _load_thread_rows(
    store: Store, thread: str, start_time: float, end_time: float
) -> tuple[list[UsageRow], list[UsageRecord]]:
    """Return the sums of a thread's usage in a period, and the records of the thread itself."""
    usage_by_part = await load_thread_usage(store, thread)
    records_by_part = {
        key: [call for call in records if start_time <= call.created < end_time]
        for key, records in usage_by_part.items()
    }
    rows = [
        sum_usage(key, list(map(make_usage_row, records)))
        for key, records in records_by_part.items()
        if records
    ]
    return rows, [
        record for record in records_by_part["all"] if record.thread == thread
    ]


COLUMN_VALUES: dict[str, Callable[[UsageRow], object]] = {
    "calls": lambda row: row.calls,
    "prompt": lambda row: row.prompt,
    "input": lambda row: row.input,
    "cache read": lambda row: row.cache_read,
    "cache write": lambda row: row.cache_write,
    "output": lambda row: row.output,
    "reasoning": lambda row: row.reasoning,
    "cache hits": lambda row: format_share(row.cache_read, row.prompt),
    "cost": format_cost,
}
DETAIL_COLUMNS = (
    "input",
    "cache read",
    "cache write",
    "output",
    "reasoning",
    "cache hits",
    "cost",
)
INSIGHT_COLUMNS = ("calls", "prompt", "cache hits", "output", "cost")


def _list_values(row: UsageRow, names: Sequence[str]) -> list[object]:
    return [COLUMN_VALUES[name](row) for name in names]


def _call_as_json(record: UsageRecord) -> dict[str, Any]:
    return {
        "session": record.session,
        "model": record.model,
        "task": record.task,
        "created": format_iso(record.created),
        "estimated": record.estimated,
    } | make_usage_figures(make_usage_row(record))


def _print_usage(
    thread: str | None, rows: list[UsageRow], records: list[UsageRecord], now: float
) -> None:
    if not any(row.calls for row in rows):
        print_text("no calls to a model are recorded")
        return
    title = "all threads" if thread is None else f"thread {shorten_id(thread)}"
    lines = [
        (name, *(COLUMN_VALUES[name](row) for row in rows))
        for name in ("calls", *DETAIL_COLUMNS)
    ]
    print_table(title, ["", *(f"{row.key}>" for row in rows)], lines)
    total = rows[-1]
    if total.unpriced_calls:
        print_text(
            f"{total.unpriced_calls:,} of {count_noun(total.calls, 'call')} without a known price"
        )
    if records:
        table = [
            (
                format_age(record.created, now),
                record.model,
                record.task,
                *_list_values(make_usage_row(record), DETAIL_COLUMNS),
            )
            for record in records
        ]
        print_table(
            "calls",
            ["when", "model…", "task", *(f"{name}>" for name in DETAIL_COLUMNS)],
            table,
        )
        estimated = sum(record.estimated for record in records)
        if estimated:
            print_text(
                f"{estimated:,} of {count_noun(len(records), 'call')} estimated: nothing was reported for them"
            )


MAX_DAILY_BARS = 62
MAX_DAYS_WITH_WEEKLY_BARS = 400
"""The longest periods with one bar for each day, and for each week. Longer periods have one for each month."""
COUNT_FIELDS = (
    "threads",
    "sessions",
    "messages",
    "compactions",
    "tokens_saved",
    "lookups",
)


def insights(
    days: Annotated[
        int,
        number_option(
            minimum=1, maximum=3_660, help_text="Number of days, today included."
        ),
    ] = 30,
    platform: Annotated[
        str | None, typer.Option(help="Only sessions of this platform.")
    ] = None,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show usage and cost by day, model, platform, task and tool, and what compaction saved. Days are UTC."""
    end_time = time.time() + 1
    start_time = (end_time // DAY_SECONDS - days + 1) * DAY_SECONDS
    figures = with_store(
        store_url,
        lambda store: store.insights(
            since=start_time, until=end_time, tenant=tenant, platform=platform
        ),
        empty_if_missing=True,
    )
    if as_json:
        print_json(
            _insights_as_json(figures)
            | {
                "days": days,
                "since": format_iso(start_time),
                "until": format_iso(end_time),
            }
        )
    else:
        _print_insights(
            figures, datetime.fromtimestamp(start_time, tz=UTC).date(), days
        )


def _insights_as_json(figures: Insights) -> dict[str, Any]:
    tables = {
        name: {row.key: make_usage_figures(row) for row in getattr(figures, name)}
        for name in ("by_day", "by_model", "by_platform", "by_task")
    }
    tools = {
        row.tool: {"results": row.results, "tokens": row.tokens}
        for row in figures.by_tool
    }
    counts_json = {name: getattr(figures, name) for name in COUNT_FIELDS}
    return {
        "total": make_usage_figures(figures.total),
        **counts_json,
        **tables,
        "by_tool": tools,
    }


def _print_insights(figures: Insights, first_day: date, days: int) -> None:
    print_text((f"{count_noun(days, 'day')} from {first_day} on", "bold"), " (UTC)")
    counts_texts = [
        count_noun(getattr(figures, f"{noun}s"), noun)
        for noun in ("thread", "session", "message", "compaction")
    ]
    print_text(
        f"{', '.join(counts_texts)}, {count_noun(figures.tokens_saved, 'token')} saved"
    )
    if figures.lookups:
        print_text(
            f"{count_noun(figures.lookups, 'lookup')} of what had left the context"
        )
    total = figures.total
    if total.calls:
        print_text(
            f"{count_noun(total.calls, 'call')}, {total.prompt + total.output:,} tokens, cost {format_cost(total)}, "
            f"{format_share(total.cache_read, total.prompt)} of the prompts read from the cache\n"
        )
        unit, rows = group_by_period(figures.by_day, first_day, days)
        print_bars(
            f"tokens by {unit}",
            [(row.key, row.prompt + row.output, format_cost(row)) for row in rows],
        )
    else:
        print_text("no calls to a model are recorded")
    for name in ("model", "platform", "task"):
        group_rows: list[UsageRow] = getattr(figures, f"by_{name}")
        if group_rows:
            by_size = sorted(group_rows, key=lambda row: -(row.prompt + row.output))
            table = [
                (row.key or "-", *_list_values(row, INSIGHT_COLUMNS)) for row in by_size
            ]
            print_table(
                f"by {name}",
                [f"{name}…", *(f"{column}>" for column in INSIGHT_COLUMNS)],
                table,
            )
    if figures.by_tool:
        rows_of_tools = [(row.tool, row.results, row.tokens) for row in figures.by_tool]
        print_table("by tool", ["tool…", "results>", "tokens>"], rows_of_tools)


def group_by_period(
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
    return unit, [
        sum_usage(key, period_rows) for key, period_rows in rows_by_period.items()
    ]


def _choose_period(days: int) -> tuple[str, Callable[[date], str]]:
    if days <= MAX_DAILY_BARS:
        return "day", lambda day: f"{day:%a %Y-%m-%d}"
    if days <= MAX_DAYS_WITH_WEEKLY_BARS:
        return "week", lambda day: f"{day - timedelta(day.weekday()):%Y-%m-%d}"
    return "month", lambda day: f"{day:%Y-%m}"
