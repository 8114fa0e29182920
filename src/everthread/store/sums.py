"""Lines of account: calls summed up, and their figures for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from everthread.store.base import UsageRecord, UsageRow


def row_of(record: UsageRecord) -> UsageRow:
    """One call as a line of account."""
    used, cost = record.usage, record.cost
    row = UsageRow(
        record.task, 1, used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens,
        used.reasoning_tokens,
    )  # fmt: skip
    return replace(row, unpriced=1) if cost is None else replace(row, cost=cost)


def merged(key: str, rows: Sequence[UsageRow]) -> UsageRow:
    """Several lines as one."""
    names = [field.name for field in fields(UsageRow) if field.name != "key"]
    return UsageRow(key, **{name: sum(getattr(row, name) for row in rows) for name in names}) if rows else UsageRow(key)


def figures(row: UsageRow) -> dict[str, Any]:
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
