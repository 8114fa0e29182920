"""`everthread insights --days 30`: where tokens and money went."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.commands.usage import cost_text
from everthread.cli.options import DAY, AsJson, StoreUrl, Tenant, iso, number_option, with_store
from everthread.cli.output import console, print_bars, print_json, print_table, share
from everthread.core.messages import counted
from everthread.store.sql.usage import sum_usage, usage_figures

if TYPE_CHECKING:
    from everthread.store.models import Insights, UsageRow
    from everthread.store.store import Store


MOST_DAYS, MOST_WEEKS = 62, 400
"""Up to so many days a bar is a day, up to so many a week, beyond a month."""
COLUMNS: dict[str, Callable[[UsageRow], object]] = {
    "calls": lambda row: row.calls,
    "prompt": lambda row: row.prompt,
    "cache hits": lambda row: share(row.cache_read, row.prompt),
    "output": lambda row: row.output,
    "cost": cost_text,
}
COUNTS = ("threads", "sessions", "messages", "compactions", "tokens_saved", "lookups")


def insights(
    days: Annotated[int, number_option(least=1, most=3_660, text="So many days, today included.")] = 30,
    platform: Annotated[str | None, typer.Option(help="Only sessions of this platform.")] = None,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show usage and cost by day, model, platform, task and tool, and what compaction saved. Days are UTC."""
    until = time.time() + 1
    since = (until // DAY - days + 1) * DAY

    async def work(opened: Store) -> Insights:
        return await opened.insights(since=since, until=until, tenant=tenant, platform=platform)

    found = with_store(store, work, or_empty=True)
    if as_json:
        print_json(_plain(found) | {"days": days, "since": iso(since), "until": iso(until)})
    else:
        _print(found, datetime.fromtimestamp(since, tz=UTC).date(), days)


def _plain(found: Insights) -> dict[str, Any]:
    tables = {
        name: {row.key: usage_figures(row) for row in getattr(found, name)}
        for name in ("by_day", "by_model", "by_platform", "by_task")
    }
    tools = {row.tool: {"results": row.results, "tokens": row.tokens} for row in found.by_tool}
    counts = {name: getattr(found, name) for name in COUNTS}
    return {"total": usage_figures(found.total), **counts, **tables, "by_tool": tools}


def _print(found: Insights, first: date, days: int) -> None:
    console.print(f"[bold]{counted(days, 'day')} from {first} on[/bold] (UTC)")
    counts = [counted(getattr(found, f"{noun}s"), noun) for noun in ("thread", "session", "message", "compaction")]
    console.print(f"{', '.join(counts)}, {counted(found.tokens_saved, 'token')} saved", soft_wrap=True)
    if found.lookups:
        console.print(f"{counted(found.lookups, 'lookup')} of what had left the context", soft_wrap=True)
    total = found.total
    if total.calls:
        console.print(
            f"{counted(total.calls, 'call')}, {total.prompt + total.output:,} tokens, cost {cost_text(total)}, "
            f"{share(total.cache_read, total.prompt)} of the prompts read from the cache\n",
            soft_wrap=True,
        )
        unit, rows = chart(found.by_day, first, days)
        print_bars(f"tokens by {unit}", [(row.key, row.prompt + row.output, cost_text(row)) for row in rows])
    else:
        console.print("no calls to a model are recorded")
    for name in ("model", "platform", "task"):
        lines: list[UsageRow] = getattr(found, f"by_{name}")
        if lines:
            by_size = sorted(lines, key=lambda row: -(row.prompt + row.output))
            table = [(row.key or "-", *(cell_of(row) for cell_of in COLUMNS.values())) for row in by_size]
            print_table(f"by {name}", [f"{name}…", *(f"{column}>" for column in COLUMNS)], table)
    if found.by_tool:
        rows_of_tools = [(row.tool, row.results, row.tokens) for row in found.by_tool]
        print_table("by tool", ["tool…", "results>", "tokens>"], rows_of_tools)


def chart(by_day: Sequence[UsageRow], first: date, days: int) -> tuple[str, list[UsageRow]]:
    """The account by day, or by week or month where there are many days; without gaps, from the first use on."""
    unit, label = _unit(days)
    known = {date.fromisoformat(row.key): row for row in by_day}
    end, day = first + timedelta(days), min(known, default=first)
    parts: dict[str, list[UsageRow]] = {}
    while day < end:
        part = parts.setdefault(label(day), [])
        part += [known[day]] if day in known else []
        day += timedelta(1)
    return unit, [sum_usage(key, part) for key, part in parts.items()]


def _unit(days: int) -> tuple[str, Callable[[date], str]]:
    if days <= MOST_DAYS:
        return "day", lambda day: f"{day:%a %Y-%m-%d}"
    if days <= MOST_WEEKS:
        return "week", lambda day: f"{day - timedelta(day.weekday()):%Y-%m-%d}"
    return "month", lambda day: f"{day:%Y-%m}"
