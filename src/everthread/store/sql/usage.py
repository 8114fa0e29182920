"""What calls used and cost, and what a page shows of many threads at once: lean rows, a few queries for a whole list.

Money is whole pico-dollars: a price has up to six decimals a million tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Literal

from everthread.core.pricing import CanonicalUsage
from everthread.errors import InputError, UnknownIdError
from everthread.store.database import (
    PICO,
    Tx,
    as_pico,
    chunks,
    decode_json,
    encode_json,
    equal_to,
    from_pico,
    placeholders,
)
from everthread.store.models import (
    CallRow,
    CompactionRecord,
    Insights,
    MessageSize,
    NewUsage,
    StoredMessage,
    StoredRewrite,
    ThreadFigures,
    ThreadRow,
    ToolRow,
    UsageRecord,
    UsageRow,
)
from everthread.store.sql.compactions import as_compaction
from everthread.store.sql.gateway import REWRITE_COLUMNS, as_rewrite
from everthread.store.sql.messages import MESSAGE_COLUMNS, as_stored
from everthread.store.sql.sessions import AT_TIP, SIDE_CALLS, find_thread, load_session

# --- accounts ---------------------------------------------------------------------------------------------------------


MOST_TOKENS = 10**15
"""No call uses so many tokens; sums of figures below it are exact in every database."""
USAGE_SUMS = (
    "COUNT(*), COALESCE(SUM(u.input), 0), COALESCE(SUM(u.output), 0), COALESCE(SUM(u.cache_read), 0), "
    "COALESCE(SUM(u.cache_write), 0), COALESCE(SUM(u.reasoning), 0), COALESCE(SUM(u.pico_dollars), 0), "
    "COALESCE(SUM(CASE WHEN u.pico_dollars IS NULL THEN 1 ELSE 0 END), 0)"
)


def record_usage(tx: Tx, new: NewUsage, now: float) -> None:
    if tx.one("SELECT 1 FROM sessions WHERE id = ?", (new.session,)) is None:
        raise UnknownIdError(f"there is no thread or session {new.session!r}")
    insert_usage(tx, new, now)


def insert_usage(tx: Tx, new: NewUsage, now: float) -> None:
    """The same for a session that is there for certain."""
    usage = new.usage
    if usage.total_tokens > MOST_TOKENS:
        raise InputError(f"{usage.total_tokens} tokens in one call cannot be true; they are not recorded")
    raw = {"raw": usage.raw, "cache_write_1h": usage.cache_write_1h_tokens}
    values = (
        new.event, new.session, new.model, new.task, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens,
        usage.cache_write_tokens, usage.reasoning_tokens, as_pico(new.cost), int(new.estimated), encode_json(raw),
        now if new.created is None else new.created,
    )  # fmt: skip
    owner = ", ".join(f"(SELECT {name} FROM sessions WHERE id = ?)" for name in ("thread_id", "tenant", "platform"))
    tx.run(
        "INSERT INTO usage (event, session_id, model, task, input, output, cache_read, cache_write, reasoning, "
        "pico_dollars, estimated, raw, created, thread_id, tenant, platform) "
        f"VALUES ({placeholders(values)}, {owner}) ON CONFLICT (thread_id, event) DO NOTHING",
        (*values, *[new.session] * 3),
    )


def list_usage(tx: Tx, thread: str) -> list[UsageRecord]:
    """Every call made for a thread, in order, its subagents' not among them: those are threads of their own."""
    rows = tx.all(
        "SELECT id, session_id, thread_id, model, task, input, output, cache_read, cache_write, reasoning, "
        "pico_dollars, estimated, created, raw FROM usage WHERE thread_id = ? ORDER BY id",
        (find_thread(tx, thread),),
    )
    records = []
    for row in rows:
        figures = decode_json(row[13])
        usage = CanonicalUsage(
            input_tokens=row[5], output_tokens=row[6], cache_read_tokens=row[7], cache_write_tokens=row[8],
            reasoning_tokens=row[9], cache_write_1h_tokens=figures["cache_write_1h"], raw=figures["raw"],
        )  # fmt: skip
        records.append(UsageRecord(*[*row[:5], usage, from_pico(row[10]), bool(row[11]), row[12]]))
    return records


def load_insights(
    tx: Tx, *, since: float, until: float, tenant: str | None = None, platform: str | None = None
) -> Insights:
    """The account of a period, summed by the database."""

    def within(moment: str, owner: str) -> tuple[str, list[Any]]:
        return _in_period(moment, owner, since, until, tenant, platform)

    where, values = within("u.created", "u")
    day = tx.dialect.day.format("u.created")
    groups = {"by_day": day, "by_model": "u.model", "by_platform": "u.platform", "by_task": "u.task"}
    grouped = {
        name: _sum_calls(tx, key, f"usage u WHERE {where} GROUP BY 1 ORDER BY 1", values)
        for name, key in groups.items()
    }
    [total] = _sum_calls(tx, "'total'", f"usage u WHERE {where}", values)
    where, values = within("s.started", "s")
    [begun] = tx.all(f"SELECT COUNT(*), COUNT(DISTINCT s.thread_id) FROM sessions s WHERE {where}", values)
    where, values = within("c.created", "s")
    [saved] = tx.all(
        "SELECT COUNT(*), COALESCE(SUM(c.tokens_before - c.tokens_after), 0) FROM compactions c "
        f"JOIN sessions s ON s.id = c.session_id WHERE c.reverted IS NULL AND {where}",
        values,
    )
    where, values = within("m.created", "s")
    of_messages = f"FROM messages m JOIN sessions s ON s.id = m.thread_id WHERE m.kind = 'message' AND {where}"
    # A result is of role `tool`, or, in Anthropic's form, a block of a user's message.
    tools = tx.all(
        f"SELECT m.tool, COUNT(*), COALESCE(SUM(m.tokens), 0) {of_messages} AND m.role <> 'assistant' "
        "AND m.tool <> '' GROUP BY 1 ORDER BY 3 DESC, 2 DESC, 1",
        values,
    )
    return Insights(
        total=total, **grouped, by_tool=[ToolRow(row[0], int(row[1]), int(row[2])) for row in tools],
        sessions=int(begun[0]), threads=int(begun[1]), messages=int(tx.value(f"SELECT COUNT(*) {of_messages}", values)),
        compactions=int(saved[0]), tokens_saved=int(saved[1]),
    )  # fmt: skip


def _in_period(
    moment: str, owner: str, since: float, until: float, tenant: str | None, platform: str | None = None
) -> tuple[str, list[Any]]:
    """A condition and its values: when, and whose. `owner`: the table that has tenant and platform."""
    where, values = equal_to({f"{owner}.tenant": tenant, f"{owner}.platform": platform})
    return f"{moment} >= ? AND {moment} < ? AND {where}", [since, until, *values]


def _sum_calls(tx: Tx, key: str, source: str, values: Sequence[Any]) -> list[UsageRow]:
    """Sums of calls by a key. `source`: what follows FROM."""
    rows = []
    for row in tx.all(f"SELECT {key}, {USAGE_SUMS} FROM {source}", values):
        calls, fresh, output, read, write, reasoning, pico, unpriced = map(int, row[1:])
        rows.append(UsageRow(str(row[0]), calls, fresh, output, read, write, reasoning, pico / PICO, unpriced))
    return rows


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


# --- pages that show many threads -------------------------------------------------------------------------------------


MESSAGE_SIZE = "COALESCE(m.tokens, (LENGTH(m.body) + 3) / 4)"
"""Tokens of a message; where nobody counted them, a quarter of its characters."""


CLIENT = "COALESCE(NULLIF(s.client, ''), u.platform)"
"""A client's own name where it gave one, else the way it came."""
CALL_COLUMNS = (
    f"u.thread_id, u.created, u.model, u.task, u.tenant, {CLIENT}, u.input, u.output, u.cache_read, u.cache_write, "
    "u.pico_dollars, u.estimated"
)


def sum_threads(tx: Tx, threads: Sequence[str]) -> dict[str, ThreadFigures]:
    """What calls and compactions of these threads sum up to; a thread without any is left out."""
    sums: dict[str, dict[str, Any]] = {}
    for row in tx.all_in(
        "SELECT u.thread_id, COUNT(*), SUM(CASE WHEN u.task = 'main' THEN 1 ELSE 0 END), "
        "COALESCE(SUM(u.pico_dollars), 0), SUM(CASE WHEN u.pico_dollars IS NULL THEN 1 ELSE 0 END), "
        "SUM(u.input + u.cache_read + u.cache_write), SUM(u.cache_read), SUM(u.output) "
        "FROM usage u WHERE u.thread_id IN ({}) GROUP BY u.thread_id",
        threads,
    ):
        every, calls, pico, unpriced, prompts, read, output = map(int, row[1:])
        sums[row[0]] = {
            "calls": calls, "unpriced": unpriced, "prompts": prompts, "read": read, "output": output,
            "cost": None if unpriced == every else pico / PICO,
        }  # fmt: skip
    for row in tx.all_in(
        "SELECT u.thread_id, u.model, u.input + u.cache_read + u.cache_write FROM usage u JOIN "
        "(SELECT MAX(id) AS last FROM usage WHERE task = 'main' AND thread_id IN ({}) GROUP BY thread_id) l "
        "ON l.last = u.id",
        threads,
    ):
        sums[row[0]] |= {"model": row[1], "prompt": int(row[2])}
    for row in tx.all_in(
        "SELECT thread_id, COUNT(*), MAX(created) FROM compactions "
        "WHERE thread_id IN ({}) AND reverted IS NULL GROUP BY thread_id",
        threads,
    ):
        sums.setdefault(row[0], {}).update(compactions=int(row[1]), compacted=row[2])
    return {thread: ThreadFigures(thread, **figures) for thread, figures in sums.items()}


def list_calls(tx: Tx, threads: Sequence[str]) -> list[CallRow]:
    """Every call of these threads in order."""
    rows = tx.all_in(
        f"SELECT {CALL_COLUMNS} FROM usage u JOIN sessions s ON s.id = u.thread_id "
        "WHERE u.thread_id IN ({}) ORDER BY u.thread_id, u.id",
        threads,
    )
    return [CallRow(*[*row[:10], from_pico(row[10]), bool(row[11])]) for row in rows]


def list_recent_compactions(
    tx: Tx, *, tenant: str | None = None, threads: Sequence[str] | None = None, limit: int = 1_000
) -> list[CompactionRecord]:
    """Compactions of a tenant, or of some threads, the newest first; those that were undone too."""
    where, values = equal_to({"s.tenant": tenant})
    if threads is not None:
        where += f" AND c.thread_id IN ({placeholders(threads) or 'NULL'})"
        values += threads
    rows = tx.all(
        "SELECT c.id, c.thread_id, c.parent_id, c.session_id, c.created, c.reverted, c.record FROM compactions c "
        f"JOIN sessions s ON s.id = c.session_id WHERE {where} ORDER BY c.id DESC LIMIT ?",
        (*values, limit),
    )
    return [as_compaction(row) for row in rows]


def heaviest_messages(tx: Tx, thread: str, limit: int = 10) -> list[MessageSize]:
    """The largest messages of a thread's own history."""
    rows = tx.all(
        f"SELECT m.id, m.role, m.tool, {MESSAGE_SIZE}, m.created FROM messages m "
        "WHERE m.thread_id = ? AND m.kind = 'message' ORDER BY 4 DESC, m.id LIMIT ?",
        (find_thread(tx, thread), limit),
    )
    return [MessageSize(row[0], row[1], row[2], int(row[3]), row[4]) for row in rows]


def tool_sizes(tx: Tx, thread: str) -> list[tuple[str, int, int]]:
    """What each tool's results take: name, how many, tokens; the largest first."""
    rows = tx.all(
        f"SELECT m.tool, COUNT(*), SUM({MESSAGE_SIZE}) FROM messages m WHERE m.thread_id = ? AND m.kind = 'message' "
        "AND m.role <> 'assistant' AND m.tool <> '' GROUP BY m.tool ORDER BY 3 DESC, 1 LIMIT 50",
        (find_thread(tx, thread),),
    )
    return [(row[0], int(row[1]), int(row[2])) for row in rows]


def list_thread_rewrites(tx: Tx, thread: str) -> list[StoredRewrite]:
    """What stands for beginnings of a proxied thread, in the order it was made."""
    rows = tx.all(
        f"SELECT {REWRITE_COLUMNS}, created FROM rewrites WHERE thread_id = ? ORDER BY created, length",
        (find_thread(tx, thread),),
    )
    return [StoredRewrite(as_rewrite(row[:-1]), row[-1]) for row in rows]


def load_thread_row(tx: Tx, thread: str) -> ThreadRow:
    """One thread as a list shows it."""
    thread_id = find_thread(tx, thread)
    [tip] = tx.all(
        f"SELECT t.id, t.said, t.said_tokens, t.active FROM sessions t WHERE t.thread_id = ? AND {AT_TIP}", (thread_id,)
    )
    compactions = tx.value("SELECT COUNT(*) FROM compactions WHERE thread_id = ? AND reverted IS NULL", (thread_id,))
    side_calls = tx.value(f"SELECT {SIDE_CALLS.format('?')}", (thread_id,))
    first, last = load_session(tx, thread_id), load_session(tx, tip[0])
    return ThreadRow(first, last, *[*tip[1:], compactions, side_calls])


def context_sizes(tx: Tx, session_id: str, *, start: int = 0) -> list[tuple[str, str, bool, int]]:
    """What a session shows from a place on: kind, role, whether a tool's, tokens."""
    rows = tx.all(
        f"SELECT m.kind, m.role, CASE WHEN m.tool <> '' THEN 1 ELSE 0 END, SUM({MESSAGE_SIZE}) FROM places p "
        "JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? AND p.seq >= ? GROUP BY 1, 2, 3",
        (session_id, start),
    )
    return [(row[0], row[1], bool(row[2]), int(row[3])) for row in rows]


def shown_messages(tx: Tx, session_id: str, ids: Sequence[int]) -> tuple[set[int], set[int]]:
    """Which of these messages a session shows: as they are, and shortened."""
    unchanged: set[int] = set()
    shortened: set[int] = set()
    for some in chunks(ids):
        marks = placeholders(some)
        rows = tx.all(
            "SELECT m.id, m.origin FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? "
            f"AND p.seq >= 0 AND (m.id IN ({marks}) OR m.origin IN ({marks}))",
            (session_id, *some, *some),
        )
        unchanged |= {row[0] for row in rows if row[1] is None}
        shortened |= {row[1] for row in rows if row[1] is not None}
    return unchanged, shortened


def list_summaries(tx: Tx, session_id: str) -> list[StoredMessage]:
    """The summaries a session shows."""
    rows = tx.all(
        f"SELECT {MESSAGE_COLUMNS} FROM places p JOIN messages m ON m.id = p.message_id "
        "WHERE p.session_id = ? AND p.seq >= 0 AND m.kind = 'summary' ORDER BY p.seq",
        (session_id,),
    )
    return [as_stored(row) for row in rows]


GROUPS: Mapping[str, str] = {"tenant": "u.tenant", "client": CLIENT}


def sum_usage_by(
    tx: Tx,
    group: Literal["tenant", "client"],
    *,
    since: float,
    until: float,
    tenant: str | None = None,
    limit: int = 50,
) -> list[UsageRow]:
    """Sums of a period for each tenant or client, the largest first."""
    where, values = _in_period("u.created", "u", since, until, tenant)
    source = (
        f"usage u JOIN sessions s ON s.id = u.thread_id WHERE {where} "
        "GROUP BY 1 ORDER BY SUM(u.input + u.cache_read + u.cache_write) DESC LIMIT ?"
    )
    return _sum_calls(tx, GROUPS[group], source, (*values, limit))


def last_change(tx: Tx, *, tenant: str | None = None, thread: str | None = None) -> str:
    """A text that is another one as soon as something was said, used or compacted; cheap to ask for."""
    if thread is not None:
        thread_id = find_thread(tx, thread)
        rows = [
            tx.one("SELECT MAX(id), COUNT(*) FROM usage WHERE thread_id = ?", (thread_id,)),
            tx.one("SELECT MAX(id), COUNT(reverted) FROM compactions WHERE thread_id = ?", (thread_id,)),
            tx.one("SELECT MAX(active), SUM(next_seq) FROM sessions WHERE thread_id = ?", (thread_id,)),
        ]
        return repr(rows)
    where, values = equal_to({"t.tenant": tenant})
    newest = tx.one(
        f"SELECT t.id, t.active, t.said FROM sessions t WHERE {AT_TIP} AND {where} "
        "ORDER BY t.active DESC, t.id DESC LIMIT 1",
        values,
    )
    return repr(
        (newest, tx.one("SELECT MAX(id) FROM usage"), tx.one("SELECT MAX(id), COUNT(reverted) FROM compactions"))
    )
