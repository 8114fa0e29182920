"""Values about usage and cost: calls to models, and sums of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from typing import Any, Literal

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.prices import format_dollars
from everthread.core.lookup_tools import is_lookup_tool
from everthread.store.records import new_event_id

UsageTask = Literal["main", "auxiliary"]


@dataclass(frozen=True, slots=True)
class NewUsage:
    """One call to a model. `cost` is None if a price is unknown."""

    session: str
    model: str
    usage: CanonicalUsage
    task: UsageTask = "main"
    cost: Decimal | None = None
    estimated: bool = False
    event: str = field(default_factory=new_event_id)
    created: float | None = None


@dataclass(frozen=True, slots=True)
class UsageRecord:
    """A stored call to a model."""

    id: int
    session: str
    thread: str
    model: str
    task: UsageTask
    usage: CanonicalUsage
    cost: Decimal | None
    estimated: bool
    created: float
    tenant: str
    client: str
    """The client's own name if it gave one, or the platform."""


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The sums of a group of calls. `cost` is that of the calls with a known price."""

    key: str
    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: Decimal = Decimal(0)
    unpriced_calls: int = 0

    @property
    def prompt(self) -> int:
        return self.input + self.cache_read + self.cache_write

    @property
    def cost_text(self) -> str:
        """The dollars as text: `unknown` if no price is known, `free` if every call cost nothing."""
        if self.calls and not self.cost:
            return "unknown" if self.unpriced_calls else "free"
        return f"{format_dollars(self.cost)}{' + unknown' if self.unpriced_calls else ''}"

    @property
    def cache_share(self) -> float | None:
        """The share of the prompt that was read from the cache, or None without a prompt."""
        return self.cache_read / self.prompt if self.prompt else None


@dataclass(frozen=True, slots=True)
class ToolRow:
    """The results that one tool added to conversations."""

    tool: str
    results: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Insights:
    """Usage, sessions and savings of a period."""

    total: UsageRow
    by_day: list[UsageRow]
    by_model: list[UsageRow]
    by_platform: list[UsageRow]
    by_task: list[UsageRow]
    by_tool: list[ToolRow]
    sessions: int
    """Sessions that began in the period, the number of their threads, and the messages of the period."""
    threads: int
    messages: int
    compactions: int
    tokens_saved: int
    """Tokens that compactions removed, as they counted them."""

    @property
    def lookups(self) -> int:
        """The number of calls of lookup tools, with which models find earlier messages."""
        return sum(row.results for row in self.by_tool if is_lookup_tool(row.tool))


@dataclass(frozen=True, slots=True)
class ThreadFigures:
    """A thread's calls and compactions, summed up."""

    thread: str
    calls: int = 0
    """Calls to the main model."""
    cost: Decimal | None = None
    """Dollars of all calls with a known price, or None if no call has one."""
    unpriced_calls: int = 0
    prompt_tokens: int = 0
    cache_read_tokens: int = 0
    output_tokens: int = 0
    last_model: str = ""
    """The model of the last call."""
    last_prompt_tokens: int = 0
    """Tokens of the last call's prompt."""
    compactions: int = 0
    last_compacted: float | None = None
    """When it was compacted last."""


@dataclass(frozen=True, slots=True)
class MessageSize:
    """The size of a message."""

    id: int
    role: str
    tool: str
    tokens: int
    created: float


def make_usage_row(record: UsageRecord) -> UsageRow:
    """Return one call as a row of sums."""
    usage = record.usage
    cost = record.cost
    row = UsageRow(
        record.task,
        1,
        input=usage.input_tokens,
        output=usage.output_tokens,
        cache_read=usage.cache_read_tokens,
        cache_write=usage.cache_write_tokens,
        reasoning=usage.reasoning_tokens,
    )
    return replace(row, unpriced_calls=1) if cost is None else replace(row, cost=cost)


def sum_usage(key: str, rows: Sequence[UsageRow]) -> UsageRow:
    """Add up several rows."""
    names = [field.name for field in fields(UsageRow) if field.name != "key"]
    return (
        UsageRow(key, **{name: sum(getattr(row, name) for row in rows) for name in names})
        if rows
        else UsageRow(key)
    )


def sum_calls(key: str, records: Sequence[UsageRecord]) -> UsageRow:
    """Add up the usage of several calls."""
    return sum_usage(key, [make_usage_row(record) for record in records])


def make_usage_figures(row: UsageRow) -> dict[str, Any]:
    """Return the figures of a row as JSON.

    `cost` is null if a call has no price; `known_cost` is the sum of the calls with a price.
    """
    return {
        "calls": row.calls,
        "input": row.input,
        "cache_read": row.cache_read,
        "cache_write": row.cache_write,
        "output": row.output,
        "reasoning": row.reasoning,
        "prompt": row.prompt,
        "total": row.prompt + row.output,
        "cost": None if row.unpriced_calls else float(row.cost),
        "known_cost": float(row.cost),
        "unpriced_calls": row.unpriced_calls,
        "cache_hit_share": row.cache_share,
    }


def make_insights_figures(insights: Insights) -> dict[str, Any]:
    """Return the figures of a period as JSON."""
    return {
        "total": make_usage_figures(insights.total),
        "threads": insights.threads,
        "sessions": insights.sessions,
        "messages": insights.messages,
        "compactions": insights.compactions,
        "tokens_saved": insights.tokens_saved,
        "by_day": _make_table_figures(insights.by_day),
        "by_model": _make_table_figures(insights.by_model),
        "by_platform": _make_table_figures(insights.by_platform),
        "by_task": _make_table_figures(insights.by_task),
        "by_tool": {
            row.tool: {"results": row.results, "tokens": row.tokens} for row in insights.by_tool
        },
    }


def _make_table_figures(rows: Sequence[UsageRow]) -> dict[str, dict[str, Any]]:
    return {row.key: make_usage_figures(row) for row in rows}
