"""`everthread usage [ID]`: what calls used and cost, main and auxiliary apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.options import AsJson, Since, StoreUrl, Tenant, Until, ago, iso, read_time, with_store
from everthread.cli.output import console, money, print_json, print_table, share, short
from everthread.core.messages import counted
from everthread.errors import InputError
from everthread.store.sql.usage import sum_usage, usage_figures, usage_row

if TYPE_CHECKING:
    from everthread.store.models import UsageRecord, UsageRow
    from everthread.store.store import Store


def usage(
    session_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="A session's id, or how it begins. Default: all threads.")
    ] = None,
    calls: Annotated[bool, typer.Option("--calls", help="Every call of the thread, not only the sums.")] = False,
    since: Since = None,
    until: Until = None,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the tokens and the cost of a thread, or of all."""
    if calls and session_id is None:
        raise InputError("--calls lists the calls of one thread: give its id")
    now = time.time()
    first, last = read_time(since, now) or 0.0, read_time(until, now) or now + 1

    async def work(opened: Store) -> tuple[str | None, list[UsageRow], list[UsageRecord]]:
        if session_id is None:
            found = await opened.insights(since=first, until=last, tenant=tenant)
            by_task = sorted(found.by_task, key=lambda row: row.key != "main")
            return None, [*by_task, replace(found.total, key="all")], []
        thread = (await opened.resolve(session_id, tenant=tenant)).thread
        own = [record for record in await opened.usage(thread) if first <= record.created < last]
        theirs = [
            record
            for other in await opened.subagents(thread)
            for record in await opened.usage(other)
            if first <= record.created < last
        ]
        parts = {task: [record for record in own if record.task == task] for task in ("main", "auxiliary")}
        parts |= {"subagents": theirs, "all": [*own, *theirs]}
        return thread, [sum_usage(key, list(map(usage_row, part))) for key, part in parts.items() if part], own

    thread, rows, records = with_store(store, work, or_empty=True)
    if as_json:
        listed = {"calls": [_plain_call(record) for record in records]} if calls else {}
        sums = {row.key: usage_figures(row) for row in rows}
        print_json({"thread": thread, "since": iso(first), "until": iso(last), "sums": sums} | listed)
    else:
        _print(thread, rows, records if calls else [], now)


def cost_text(row: UsageRow) -> str:
    """A sum that lacks a price says so, with what is known of it."""
    if not row.unpriced:
        return money(row.cost) if row.calls else "-"
    return "unknown" if row.unpriced == row.calls else f"{money(row.cost)} + unknown"


BUCKETS: dict[str, Callable[[UsageRow], object]] = {
    "input": lambda row: row.input,
    "cache read": lambda row: row.cache_read,
    "cache write": lambda row: row.cache_write,
    "output": lambda row: row.output,
    "reasoning": lambda row: row.reasoning,
    "cache hits": lambda row: share(row.cache_read, row.prompt),
    "cost": cost_text,
}
LINES: dict[str, Callable[[UsageRow], object]] = {"calls": lambda row: row.calls, **BUCKETS}


def _plain_call(record: UsageRecord) -> dict[str, Any]:
    return {
        "session": record.session,
        "model": record.model,
        "task": record.task,
        "created": iso(record.created),
        "estimated": record.estimated,
    } | usage_figures(usage_row(record))


def _print(thread: str | None, rows: list[UsageRow], records: list[UsageRecord], now: float) -> None:
    if not any(row.calls for row in rows):
        console.print("no calls to a model are recorded")
        return
    title = "all threads" if thread is None else f"thread {short(thread)}"
    lines = [(name, *(cell_of(row) for row in rows)) for name, cell_of in LINES.items()]
    print_table(title, ["", *(f"{row.key}>" for row in rows)], lines)
    total = rows[-1]
    if total.unpriced:
        console.print(f"{total.unpriced:,} of {counted(total.calls, 'call')} without a known price")
    if records:
        calls = [(record, usage_row(record)) for record in records]
        table = [
            (ago(record.created, now), record.model, record.task, *(cell_of(row) for cell_of in BUCKETS.values()))
            for record, row in calls
        ]
        print_table("calls", ["when", "model…", "task", *(f"{name}>" for name in BUCKETS)], table)
        estimated = sum(record.estimated for record in records)
        if estimated:
            console.print(f"{estimated:,} of {counted(len(records), 'call')} estimated: nothing was reported for them")
