"""What calls used and cost. Money is whole pico-dollars: a price has up to six decimals a million tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from decimal import Decimal
from typing import Any

from everthread.core.pricing import CanonicalUsage
from everthread.errors import InputError
from everthread.store.database import Row, Tx, decode_json, encode_json
from everthread.store.models import Insights, NewUsage, ToolRow, UsageRecord, UsageRow
from everthread.store.sql.sessions import find_thread

PICO = Decimal(10) ** 12
MOST_TOKENS = 10**15
"""No call uses so many tokens; sums of figures below it are exact in every database."""
USAGE_SUMS = (
    "COUNT(*), COALESCE(SUM(u.input), 0), COALESCE(SUM(u.output), 0), COALESCE(SUM(u.cache_read), 0), "
    "COALESCE(SUM(u.cache_write), 0), COALESCE(SUM(u.reasoning), 0), COALESCE(SUM(u.pico_dollars), 0), "
    "COALESCE(SUM(CASE WHEN u.pico_dollars IS NULL THEN 1 ELSE 0 END), 0)"
)


def record_usage(tx: Tx, new: NewUsage, now: float) -> None:
    thread = find_thread(tx, new.session)
    session = tx.one("SELECT tenant, platform FROM sessions WHERE id = ?", (new.session,))
    assert session is not None
    usage = new.usage
    if usage.total_tokens > MOST_TOKENS:
        raise InputError(f"{usage.total_tokens} tokens in one call cannot be true; they are not recorded")
    raw = {"raw": usage.raw, "cache_write_1h": usage.cache_write_1h_tokens}
    tx.run(
        "INSERT INTO usage (event, session_id, thread_id, tenant, platform, model, task, input, output, cache_read, "
        "cache_write, reasoning, pico_dollars, estimated, raw, created) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (thread_id, event) DO NOTHING",
        (
            new.event, new.session, thread, *session, new.model, new.task, usage.input_tokens, usage.output_tokens,
            usage.cache_read_tokens, usage.cache_write_tokens, usage.reasoning_tokens, as_pico(new.cost),
            int(new.estimated), encode_json(raw), now if new.created is None else new.created,
        ),
    )  # fmt: skip


def as_pico(cost: Decimal | None) -> int | None:
    if cost is None:
        return None
    if not cost.is_finite() or abs(cost) > MOST_DOLLARS:
        raise InputError(f"a call cannot cost {cost} dollars")
    return int((cost * PICO).to_integral_value())


MOST_DOLLARS = 1_000_000


def list_usage(tx: Tx, thread: str) -> list[UsageRecord]:
    """Every call made for a thread, in order, its subagents' not among them: those are threads of their own."""
    rows = tx.all(
        "SELECT id, session_id, thread_id, model, task, input, output, cache_read, cache_write, reasoning, "
        "pico_dollars, estimated, created, raw FROM usage WHERE thread_id = ? ORDER BY id",
        (find_thread(tx, thread),),
    )
    return [_as_usage_record(row) for row in rows]


def _as_usage_record(row: Row) -> UsageRecord:
    kept = decode_json(row[13])
    usage = CanonicalUsage(
        input_tokens=row[5], output_tokens=row[6], cache_read_tokens=row[7], cache_write_tokens=row[8],
        reasoning_tokens=row[9], cache_write_1h_tokens=kept["cache_write_1h"], raw=kept["raw"],
    )  # fmt: skip
    cost = None if row[10] is None else row[10] / PICO
    return UsageRecord(row[0], row[1], row[2], row[3], row[4], usage, cost, bool(row[11]), row[12])


def load_insights(tx: Tx, *, since: float, until: float, tenant: str | None, platform: str | None) -> Insights:
    """The account of a period, summed by the database."""
    where, values = _period_filter("u", since, until, tenant, platform)
    total = tx.one(f"SELECT 'total', {USAGE_SUMS} FROM usage u WHERE {where}", values)
    assert total is not None
    grouped = {
        name: _group_usage(tx, expression, where, values)
        for name, expression in (
            ("by_day", tx.dialect.day.format("u.created")),
            ("by_model", "u.model"),
            ("by_platform", "u.platform"),
            ("by_task", "u.task"),
        )
    }
    period = _session_filter(tenant, platform)
    counts = [_count_rows(tx, *count) for count in _count_queries(since, until, tenant, platform)]
    saved = tx.one(
        "SELECT COUNT(*), COALESCE(SUM(c.tokens_before - c.tokens_after), 0) FROM compactions c "
        "JOIN sessions s ON s.id = c.session_id WHERE c.reverted IS NULL AND c.created >= ? AND c.created < ?"
        f"{period[0]}",
        (since, until, *period[1]),
    )
    assert saved is not None
    return Insights(
        total=_as_usage_row(total), **grouped, by_tool=_tool_rows(tx, since, until, period), sessions=counts[0],
        threads=counts[1], messages=counts[2], compactions=int(saved[0]), tokens_saved=int(saved[1]),
    )  # fmt: skip


def _period_filter(
    alias: str, since: float, until: float, tenant: str | None, platform: str | None
) -> tuple[str, list[object]]:
    where, values = [f"{alias}.created >= ?", f"{alias}.created < ?"], [since, until]
    narrowed: list[object] = [*values]
    for column, value in (("tenant", tenant), ("platform", platform)):
        if value is not None:
            where.append(f"{alias}.{column} = ?")
            narrowed.append(value)
    return " AND ".join(where), narrowed


def _session_filter(tenant: str | None, platform: str | None) -> tuple[str, list[str]]:
    """The part of a WHERE that narrows by session."""
    chosen = [(column, value) for column, value in (("tenant", tenant), ("platform", platform)) if value is not None]
    return "".join(f" AND s.{column} = ?" for column, _ in chosen), [value for _, value in chosen]


def _group_usage(tx: Tx, expression: str, where: str, values: Sequence[object]) -> list[UsageRow]:
    rows = tx.all(f"SELECT {expression}, {USAGE_SUMS} FROM usage u WHERE {where} GROUP BY 1 ORDER BY 1", values)
    return [_as_usage_row(row) for row in rows]


def _count_queries(
    since: float, until: float, tenant: str | None, platform: str | None
) -> list[tuple[str, list[object]]]:
    narrow, values = _session_filter(tenant, platform)
    started = f"FROM sessions s WHERE s.started >= ? AND s.started < ?{narrow}"
    said = f"FROM messages m JOIN sessions s ON s.id = m.thread_id WHERE m.kind = 'message'{narrow}"
    return [
        (f"SELECT COUNT(*) {started}", [since, until, *values]),
        (f"SELECT COUNT(DISTINCT s.thread_id) {started}", [since, until, *values]),
        (f"SELECT COUNT(*) {said} AND m.created >= ? AND m.created < ?", [*values, since, until]),
    ]


def _count_rows(tx: Tx, sql: str, values: Sequence[object]) -> int:
    row = tx.one(sql, values)
    return int(row[0]) if row else 0


def _tool_rows(tx: Tx, since: float, until: float, period: tuple[str, list[str]]) -> list[ToolRow]:
    rows = tx.all(
        "SELECT m.tool, COUNT(*), COALESCE(SUM(m.tokens), 0) FROM messages m JOIN sessions s ON s.id = m.thread_id "
        # A result is of role `tool`, or, in Anthropic's form, a block of a user's message.
        "WHERE m.role <> 'assistant' AND m.kind = 'message' AND m.tool <> '' AND m.created >= ? AND m.created < ?"
        f"{period[0]} GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1",
        (since, until, *period[1]),
    )
    return [ToolRow(row[0], int(row[1]), int(row[2])) for row in rows]


def _as_usage_row(row: Row) -> UsageRow:
    calls, fresh, output, read, write, reasoning, pico, unpriced = (int(value) for value in row[1:])
    return UsageRow(str(row[0]), calls, fresh, output, read, write, reasoning, pico / PICO, unpriced)


def usage_row(record: UsageRecord) -> UsageRow:
    """One call as a line of account."""
    used, cost = record.usage, record.cost
    row = UsageRow(
        record.task, 1, used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens,
        used.reasoning_tokens,
    )  # fmt: skip
    return replace(row, unpriced=1) if cost is None else replace(row, cost=cost)


def sum_usage(key: str, rows: Sequence[UsageRow]) -> UsageRow:
    """Several lines as one."""
    names = [field.name for field in fields(UsageRow) if field.name != "key"]
    return UsageRow(key, **{name: sum(getattr(row, name) for row in rows) for name in names}) if rows else UsageRow(key)


def usage_figures(row: UsageRow) -> dict[str, Any]:
    """The figures of a line of account. `cost` is null if one call has no price; `known_cost` is that of the others."""
    return {
        "calls": row.calls,
        "input": row.input,
        "cache_read": row.cache_read,
        "cache_write": row.cache_write,
        "output": row.output,
        "reasoning": row.reasoning,
        "prompt": row.prompt,
        "total": row.prompt + row.output,
        "cost": None if row.unpriced else float(row.cost),
        "known_cost": float(row.cost),
        "unpriced_calls": row.unpriced,
        "cache_hit_share": row.cache_share,
    }
