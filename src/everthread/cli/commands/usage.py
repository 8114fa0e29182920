"""`everthread usage [ID]`: tokens and cost, main and auxiliary calls apart."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.formats import shorten_id
from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import (
    JsonOption,
    SinceOption,
    StoreOption,
    TenantOption,
    UntilOption,
)
from everthread.cli.store_access import with_store
from everthread.cli.tables import print_table
from everthread.cli.times import format_age, format_iso, parse_time
from everthread.cli.usage_columns import COLUMN_VALUES, list_usage_values
from everthread.core.text import count_noun
from everthread.errors import InputError
from everthread.store.usage_records import make_usage_figures, make_usage_row, sum_calls
from everthread.thread.lookup.thread_usage import load_thread_usage

if TYPE_CHECKING:
    from everthread.store.store import Store
    from everthread.store.usage_records import UsageRecord, UsageRow


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
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
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
            insights = await store.usage.load_insights(
                since=start_time, until=end_time, tenant=tenant
            )
            task_rows = sorted(insights.by_task, key=lambda row: row.key != "main")
            return None, [*task_rows, replace(insights.total, key="all")], []
        thread_id = (await store.resolve(session_id, tenant=tenant)).thread
        rows, records = await _load_thread_rows(store, thread_id, start_time, end_time)
        return thread_id, rows, records

    thread_id, rows, records = with_store(store_url, load_usage, empty_if_missing=True)
    if as_json:
        calls_json = {"calls": [_call_as_json(record) for record in records]} if calls else {}
        sums = {row.key: make_usage_figures(row) for row in rows}
        print_json(
            {
                "thread": thread_id,
                "since": format_iso(start_time),
                "until": format_iso(end_time),
                "sums": sums,
            }
            | calls_json
        )
    else:
        _print_usage(thread_id, rows, records if calls else [], now)


async def _load_thread_rows(
    store: Store, thread_id: str, start_time: float, end_time: float
) -> tuple[list[UsageRow], list[UsageRecord]]:
    """Return the sums of a thread's usage in a period, and the records of the thread itself."""
    usage_by_part = await load_thread_usage(store, thread_id)
    records_by_part = {
        key: [call for call in records if start_time <= call.created < end_time]
        for key, records in usage_by_part.items()
    }
    rows = [sum_calls(key, records) for key, records in records_by_part.items() if records]
    return rows, [record for record in records_by_part["all"] if record.thread == thread_id]


DETAIL_COLUMNS = (
    "input",
    "cache read",
    "cache write",
    "output",
    "reasoning",
    "cache hits",
    "cost",
)


def _call_as_json(record: UsageRecord) -> dict[str, Any]:
    return {
        "session": record.session,
        "model": record.model,
        "task": record.task,
        "created": format_iso(record.created),
        "estimated": record.estimated,
    } | make_usage_figures(make_usage_row(record))


def _print_usage(
    thread_id: str | None, rows: list[UsageRow], records: list[UsageRecord], now: float
) -> None:
    if not any(row.calls for row in rows):
        print_text("no calls to a model are recorded")
        return
    title = "all threads" if thread_id is None else f"thread {shorten_id(thread_id)}"
    column_rows = [
        (name, *(COLUMN_VALUES[name](row) for row in rows)) for name in ("calls", *DETAIL_COLUMNS)
    ]
    print_table(title, ["", *(f"{row.key}>" for row in rows)], column_rows)
    total = rows[-1]
    if total.unpriced_calls:
        print_text(
            f"{total.unpriced_calls:,} of {count_noun(total.calls, 'call')} without a known price"
        )
    if records:
        call_rows = [
            (
                format_age(record.created, now),
                record.model,
                record.task,
                *list_usage_values(make_usage_row(record), DETAIL_COLUMNS),
            )
            for record in records
        ]
        print_table(
            "calls",
            ["when", "model…", "task", *(f"{name}>" for name in DETAIL_COLUMNS)],
            call_rows,
        )
        estimated_count = sum(record.estimated for record in records)
        if estimated_count:
            print_text(
                f"{estimated_count:,} of {count_noun(len(records), 'call')} estimated: nothing was reported for them"
            )
