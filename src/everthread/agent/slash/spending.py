"""`/usage` and `/insights`: what calls used and cost, read from the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from everthread.agent.slash.base import CommandResult, Here, counted, paragraphs
from everthread.conversation.conversation import Conversation
from everthread.errors import InputError
from everthread.store.models import UsageRecord, UsageRow
from everthread.store.sql.usage import sum_usage, usage_figures, usage_row

DAY = 86_400
DAYS, MOST_DAYS = 30, 3_660
LOOKED_UP = "{} of what had left the context"


async def usage(here: Here, _argument: str) -> CommandResult:
    thread = here.conversation.id
    own = await here.store.usage(thread)
    theirs = [record for other in await here.store.subagents(thread) for record in await here.store.usage(other)]
    parts = {task: [record for record in own if record.task == task] for task in ("main", "auxiliary")}
    rows = [_summed(key, part) for key, part in (parts | {"subagents": theirs}).items() if part]
    total = _summed("all", [*own, *theirs])
    data: dict[str, Any] = {"thread": thread, "sums": {row.key: usage_figures(row) for row in (*rows, total)}}
    data["tools_left_out"] = list(here.conversation.toolbox.out)
    if not total.calls:
        return CommandResult("No call to a model is recorded for this conversation yet.", data)
    lines = [_line(row) for row in ([*rows, total] if len(rows) > 1 else [total])]
    talk = here.conversation
    ahead = f"The next prompt: about {talk.tokens:,} of {talk.window:,} tokens."
    return CommandResult(paragraphs(lines, ahead, _left_out(talk)), data)


async def insights(here: Here, argument: str) -> CommandResult:
    if argument and not (argument.isdecimal() and 1 <= int(argument) <= MOST_DAYS):
        raise InputError(f"{argument!r} is no number of days; /insights 7 shows the last week")
    days, until = int(argument or DAYS), time.time() + 1
    since = (until // DAY - days + 1) * DAY
    found = await here.store.insights(since=since, until=until, tenant=here.conversation.session.tenant)
    counts = [counted(found.threads, "conversation"), counted(found.messages, "message")]
    counts += [counted(found.compactions, "compaction"), f"{found.tokens_saved:,} tokens saved by them"]
    counts += [LOOKED_UP.format(counted(found.lookups, "lookup"))] if found.lookups else []
    blocks: list[str | list[str]] = [f"The last {counted(days, 'day')}: {', '.join(counts)}."]
    blocks.append([_line(replace(found.total, key="all"))])
    for name in ("model", "platform"):
        rows = sorted(getattr(found, f"by_{name}"), key=lambda row: -(row.prompt + row.output))
        blocks += [f"**By {name}**", [_line(row) for row in rows]] if rows else []
    if found.by_tool:
        tools = [f"{row.tool}: {counted(row.results, 'result')}, {row.tokens:,} tokens" for row in found.by_tool]
        blocks += ["**By tool**", tools]
    data = {"days": days, "total": usage_figures(found.total), "threads": found.threads, "messages": found.messages}
    data |= {"compactions": found.compactions, "tokens_saved": found.tokens_saved}
    data |= {"lookups": found.lookups, "by_model": {row.key: usage_figures(row) for row in found.by_model}}
    return CommandResult(paragraphs(*blocks), data)


def _left_out(talk: Conversation) -> str:
    out, given = talk.toolbox.out, len(talk.toolbox.given)
    return f"{len(out):,} of {counted(given, 'tool')} are left out: {', '.join(out)}." if out else ""


def _summed(key: str, records: Sequence[UsageRecord]) -> UsageRow:
    return sum_usage(key, [usage_row(record) for record in records])


def _line(row: UsageRow) -> str:
    hits = "" if row.cache_share is None else f" ({row.cache_share:.0%} from the cache)"
    prompt = f"{row.prompt:,} tokens read{hits}, {row.output:,} written"
    return f"{row.key or '(none)'}: {counted(row.calls, 'call')}, {prompt}, {_cost(row)}"


def _cost(row: UsageRow) -> str:
    """What has no price is unknown, never nothing."""
    if row.unpriced == row.calls and row.calls:
        return "cost unknown"
    known = f"${row.cost:,.4f}" if Decimal(0) < row.cost < 1 else f"${row.cost:,.2f}"
    return f"{known} + {counted(row.unpriced, 'call')} without a known price" if row.unpriced else known
