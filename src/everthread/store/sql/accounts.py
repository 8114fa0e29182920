"""Store and sum the usage and cost of calls.

Money is stored as whole pico-dollars, because a price per million tokens has up to six decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.errors import InputError, UnknownIdError
from everthread.store.database import Row, Tx, make_equality_condition, placeholders
from everthread.store.sql.session_rows import find_thread
from everthread.store.usage_records import (
    Insights,
    NewUsage,
    ToolRow,
    UsageRecord,
    UsageRow,
)
from everthread.store.value_codec import (
    PICO_DOLLARS_PER_DOLLAR,
    decode_json,
    encode_json,
    from_pico_dollars,
    to_pico_dollars,
)

MAX_TOKENS = 10**15
"""More tokens than any call uses. Sums of figures below this are exact in every database."""
SUMMED_COLUMNS = (
    "input",
    "output",
    "cache_read",
    "cache_write",
    "reasoning",
    "pico_dollars",
)
SUM_NAMES = ("calls", *SUMMED_COLUMNS, "unpriced_calls")
USAGE_SUM_COLUMNS = ", ".join(
    [
        "COUNT(*)",
        *(f"COALESCE(SUM(u.{column}), 0)" for column in SUMMED_COLUMNS),
        "COALESCE(SUM(CASE WHEN u.pico_dollars IS NULL THEN 1 ELSE 0 END), 0)",
    ]
)


CLIENT_NAME_SQL = "COALESCE(NULLIF(s.client, ''), u.platform)"
"""SQL for the name of a client, or the platform if the client gave no name."""
SELECT_USAGE = (
    "SELECT u.id, u.session_id, u.thread_id, u.model, u.task, u.input, u.output, u.cache_read, u.cache_write, "
    f"u.reasoning, u.raw, u.pico_dollars, u.estimated, u.created, u.tenant, {CLIENT_NAME_SQL} "
    "FROM usage u JOIN sessions s ON s.id = u.thread_id"
)


def record_usage(tx: Tx, new_usage: NewUsage, now: float) -> None:
    if tx.one("SELECT 1 FROM sessions WHERE id = ?", (new_usage.session,)) is None:
        raise UnknownIdError(f"there is no thread or session {new_usage.session!r}")
    insert_usage(tx, new_usage, now)


def insert_usage(tx: Tx, new_usage: NewUsage, now: float) -> None:
    """Record a call's usage for a session that certainly exists."""
    usage = new_usage.usage
    if usage.total_tokens > MAX_TOKENS:
        raise InputError(
            f"{usage.total_tokens} tokens in one call cannot be true; they are not recorded"
        )
    raw_usage: dict[str, Any] = {
        "raw": usage.raw,
        "cache_write_1h": usage.cache_write_1h_tokens,
    }
    if usage.cache_miss:
        raw_usage["cache_miss"] = usage.cache_miss
    values = (
        new_usage.event,
        new_usage.session,
        new_usage.model,
        new_usage.task,
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        to_pico_dollars(new_usage.cost),
        int(new_usage.estimated),
        encode_json(raw_usage),
        now if new_usage.created is None else new_usage.created,
    )
    session_columns = ", ".join(
        f"(SELECT {name} FROM sessions WHERE id = ?)"
        for name in ("thread_id", "tenant", "platform")
    )
    tx.run(
        "INSERT INTO usage (event, session_id, model, task, input, output, cache_read, cache_write, reasoning, "
        "pico_dollars, estimated, raw, created, thread_id, tenant, platform) "
        f"VALUES ({placeholders(values)}, {session_columns}) ON CONFLICT (thread_id, event) DO NOTHING",
        (*values, *[new_usage.session] * 3),
    )


def list_usage(tx: Tx, thread_id: str) -> list[UsageRecord]:
    """Return every call of a thread, in order. Subagents are separate threads, so their calls are not included."""
    return list_usage_of_threads(tx, [find_thread(tx, thread_id)])


def list_usage_of_threads(tx: Tx, threads: Sequence[str]) -> list[UsageRecord]:
    """Return every call of these threads, each thread's calls in order."""
    rows = tx.all_for_keys(
        f"{SELECT_USAGE} WHERE u.thread_id IN ({{}}) ORDER BY u.thread_id, u.id", threads
    )
    return [decode_usage(row) for row in rows]


def decode_usage(row: Row) -> UsageRecord:
    """Return the call in a row of `SELECT_USAGE`."""
    raw_usage = decode_json(row[10])
    usage = CanonicalUsage(
        input_tokens=row[5],
        output_tokens=row[6],
        cache_read_tokens=row[7],
        cache_write_tokens=row[8],
        reasoning_tokens=row[9],
        cache_write_1h_tokens=raw_usage["cache_write_1h"],
        raw=raw_usage["raw"],
        cache_miss=raw_usage.get("cache_miss", ""),
    )
    return UsageRecord(
        id=row[0],
        session=row[1],
        thread=row[2],
        model=row[3],
        task=row[4],
        usage=usage,
        cost=from_pico_dollars(row[11]),
        estimated=bool(row[12]),
        created=row[13],
        tenant=row[14],
        client=row[15],
    )


def load_insights(
    tx: Tx,
    *,
    since: float,
    until: float,
    tenant: str | None = None,
    platform: str | None = None,
) -> Insights:
    """Return the sums of a period, computed by the database."""

    def within_period(time_column: str, owner_table: str) -> tuple[str, list[Any]]:
        return make_period_condition(
            time_column,
            owner_table,
            since=since,
            until=until,
            tenant=tenant,
            platform=platform,
        )

    where, values = within_period("u.created", "u")
    sums_by_group = _sum_calls_by_group(tx, where, values)
    [total] = sum_calls_by(tx, "'total'", f"usage u WHERE {where}", values)
    where, values = within_period("s.started", "s")
    [started_counts] = tx.all(
        f"SELECT COUNT(*), COUNT(DISTINCT s.thread_id) FROM sessions s WHERE {where}",
        values,
    )
    where, values = within_period("c.created", "s")
    [compaction_sums] = tx.all(
        "SELECT COUNT(*), COALESCE(SUM(c.tokens_before - c.tokens_after), 0) FROM compactions c "
        f"JOIN sessions s ON s.id = c.session_id WHERE c.reverted_at IS NULL AND {where}",
        values,
    )
    where, values = within_period("m.created", "s")
    from_messages = f"FROM messages m JOIN sessions s ON s.id = m.thread_id WHERE m.kind = 'message' AND {where}"
    # A result is of role `tool`, or, in Anthropic's form, a block of a user's message.
    tools = tx.all(
        f"SELECT m.tool, COUNT(*), COALESCE(SUM(m.tokens), 0) {from_messages} AND m.role <> 'assistant' "
        "AND m.tool <> '' GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1",
        values,
    )
    return Insights(
        total=total,
        **sums_by_group,
        by_tool=[ToolRow(row[0], int(row[1]), int(row[2])) for row in tools],
        sessions=int(started_counts[0]),
        threads=int(started_counts[1]),
        messages=int(tx.value(f"SELECT COUNT(*) {from_messages}", values)),
        compactions=int(compaction_sums[0]),
        tokens_saved=int(compaction_sums[1]),
    )


def _sum_calls_by_group(tx: Tx, where: str, values: Sequence[Any]) -> dict[str, list[UsageRow]]:
    """Return the sums of calls by day, model, platform and task, under the names of the fields of `Insights`."""
    key_columns = {
        "by_day": tx.dialect.utc_date.format("u.created"),
        "by_model": "u.model",
        "by_platform": "u.platform",
        "by_task": "u.task",
    }
    return {
        name: sum_calls_by(tx, key_column, f"usage u WHERE {where} GROUP BY 1 ORDER BY 1", values)
        for name, key_column in key_columns.items()
    }


def make_period_condition(
    time_column: str,
    owner_table: str,
    since: float,
    until: float,
    tenant: str | None,
    platform: str | None = None,
) -> tuple[str, list[Any]]:
    """Return an SQL condition on time, tenant and platform, and its values.

    `owner_table`: the table with the columns tenant and platform.
    """
    where, values = make_equality_condition(
        {f"{owner_table}.tenant": tenant, f"{owner_table}.platform": platform}
    )
    return f"{time_column} >= ? AND {time_column} < ? AND {where}", [
        since,
        until,
        *values,
    ]


def sum_calls_by(
    tx: Tx, key_column: str, from_clause: str, values: Sequence[Any]
) -> list[UsageRow]:
    """Return the sums of calls for each key. `from_clause`: the SQL after FROM."""
    rows = []
    for row in tx.all(f"SELECT {key_column}, {USAGE_SUM_COLUMNS} FROM {from_clause}", values):
        sums = dict(zip(SUM_NAMES, map(int, row[1:]), strict=True))
        cost = sums.pop("pico_dollars") / PICO_DOLLARS_PER_DOLLAR
        rows.append(UsageRow(str(row[0]), cost=cost, **sums))
    return rows
