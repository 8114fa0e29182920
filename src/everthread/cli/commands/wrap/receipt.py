"""The receipt that `everthread wrap` prints when the client exits."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everthread.core.text import count_noun
from everthread.core.utc_days import DAY_SECONDS

if TYPE_CHECKING:
    from everthread.gateway.dashboard.savings import CostComparison
    from everthread.store.usage_records import Insights


@dataclass(frozen=True, slots=True)
class ReceiptFigures:
    """The traffic of a gateway within a period."""

    call_count: int
    prompt_tokens: int
    output_tokens: int
    cost: float | None
    """None if a price is unknown."""
    compaction_count: int
    tokens_saved: int

    @classmethod
    def from_insights(cls, insights: Insights) -> ReceiptFigures:
        total = insights.total
        cost = None if total.unpriced_calls else float(total.cost)
        return cls(
            total.calls,
            total.prompt,
            output_tokens=total.output,
            cost=cost,
            compaction_count=insights.compactions,
            tokens_saved=insights.tokens_saved,
        )

    @classmethod
    def from_response(cls, answer: Any) -> ReceiptFigures:
        """Read the figures in an answer of `/api/insights`."""
        total = answer["total"]
        cost = None if total["unpriced_calls"] else float(total["known_cost"])
        return cls(
            int(total["calls"]),
            int(total["prompt"]),
            output_tokens=int(total["output"]),
            cost=cost,
            compaction_count=int(answer["compactions"]),
            tokens_saved=int(answer["tokens_saved"]),
        )

    def subtract(self, earlier_figures: ReceiptFigures) -> ReceiptFigures:
        """Return the traffic since the earlier figures were read."""
        cost = None
        if self.cost is not None and earlier_figures.cost is not None:
            cost = self.cost - earlier_figures.cost
        return ReceiptFigures(
            self.call_count - earlier_figures.call_count,
            self.prompt_tokens - earlier_figures.prompt_tokens,
            output_tokens=self.output_tokens - earlier_figures.output_tokens,
            cost=cost,
            compaction_count=self.compaction_count - earlier_figures.compaction_count,
            tokens_saved=self.tokens_saved - earlier_figures.tokens_saved,
        )


_KEY_VARIABLES = ("EVERTHREAD_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_KEY")
"""Variables that may hold a client's key for the gateway, which sees its tenant's figures."""


_TIMEOUT_SECONDS = 10


async def read_figures(url: str, started_at: float) -> ReceiptFigures | str:
    """Return the figures of a running gateway from the day of `started_at` on, or why they cannot be read."""
    import httpx2

    key = next((os.environ[name] for name in _KEY_VARIABLES if os.environ.get(name)), "")
    days = int(time.time() // DAY_SECONDS - started_at // DAY_SECONDS) + 1
    try:
        async with httpx2.AsyncClient(timeout=_TIMEOUT_SECONDS) as http:
            answer = await http.get(
                f"{url}/api/insights",
                params={"days": days},
                headers={"authorization": f"Bearer {key}"} if key else {},
            )
        if answer.status_code != 200:
            return f"it answers {answer.status_code}"
        return ReceiptFigures.from_response(answer.json())
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError):
        return "its answer cannot be read"


def format_shared_receipt(
    name: str,
    url: str,
    figures_before: ReceiptFigures | str,
    figures_after: ReceiptFigures | str,
) -> str:
    """Return the receipt of a gateway that serves others too, or why there is none."""
    if isinstance(figures_before, str) or isinstance(figures_after, str):
        problem = figures_before if isinstance(figures_before, str) else figures_after
        return f"Everthread: no receipt, the figures of {url} cannot be read here ({problem}). Look there: {url}/"
    lines = format_receipt(name, figures_after.subtract(figures_before)).split("\n")
    lines[-1:] = [
        f"These figures count everything that went through {url} meanwhile.",
        f"Look: {url}/",
    ]
    return "\n".join(lines)


def format_receipt(
    name: str, total: ReceiptFigures, comparison: CostComparison | None = None
) -> str:
    """Return the summary of a run: its calls, its compactions and its cost."""
    from everthread.gateway.dashboard.headlines import describe_difference
    from everthread.gateway.dashboard.page_text import format_money

    if not total.call_count:
        return f"Everthread: {name} made no call through it.\nLook: everthread doctor."
    calls_line = f"Everthread: {name} made {count_noun(total.call_count, 'call')}"
    if comparison is not None and comparison.outgrown_count:
        calls_line += f", {comparison.outgrown_count:,} of them beyond the window"
    kept_line = "Kept: every message, searchable"
    if total.compaction_count:
        compactions = count_noun(total.compaction_count, "compaction")
        kept_line += f"; {compactions} took {total.tokens_saved:,} tokens out of the prompts"
    else:
        kept_line += "; nothing had to be compacted"
    cost_line = f"Cost: {format_money(total.cost)} for {total.prompt_tokens:,} tokens in, {total.output_tokens:,} out"
    difference = describe_difference(comparison) if comparison is not None else None
    if difference:
        cost_line += f"; {difference.value} {difference.label} {difference.detail}"
    return (
        f"{calls_line}.\n{kept_line}.\n{cost_line}.\n"
        "Look: everthread dashboard, or everthread sessions list."
    )
