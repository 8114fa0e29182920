"""Columns of the tables of `usage` and `insights`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from everthread.cli.formats import format_cost, format_share

if TYPE_CHECKING:
    from everthread.store.usage_records import UsageRow


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


def list_usage_values(row: UsageRow, names: Sequence[str]) -> list[object]:
    return [COLUMN_VALUES[name](row) for name in names]
