"""The figures at the top of a page, about calls beyond the window, stored messages and dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from everthread.core.costs.prices import format_dollars
from everthread.core.text import count_noun
from everthread.gateway.dashboard.page_text import format_share, format_short
from everthread.gateway.dashboard.savings import CostComparison
from everthread.store.usage_records import Insights, ThreadFigures

MIN_DOLLARS = 0.005
"""The smallest difference in cost that is shown, in dollars."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A large figure with a line that explains it."""

    value: str
    label: str
    detail: str
    is_lead: bool = False


@dataclass(frozen=True, slots=True)
class StoredAndRemovedCounts:
    """How many messages a thread stores, and how many of them compactions removed from the prompt."""

    stored_count: int
    removed_count: int
    compaction_count: int


def describe_thread(
    figures: ThreadFigures,
    comparison: CostComparison | None,
    *,
    window: int,
    counts: StoredAndRemovedCounts,
) -> list[Figure]:
    """Return the figures of one thread, the most important first."""
    return [
        _make_lead_figure(
            figures, comparison, window=window, compaction_count=counts.compaction_count
        ),
        _describe_kept(counts),
        *_describe_dollars(figures.cost, figures.unpriced_calls, comparison),
        *_describe_cache(figures.prompt_tokens, figures.cache_read_tokens),
    ]


def _make_lead_figure(
    figures: ThreadFigures,
    comparison: CostComparison | None,
    *,
    window: int,
    compaction_count: int,
) -> Figure:
    if comparison is not None and comparison.outgrown_count:
        return Figure(
            count_noun(comparison.outgrown_count, "call"),
            "beyond the window",
            f"of {figures.calls:,} in all: the whole history no longer fits {format_short(window)} tokens",
            is_lead=True,
        )
    share = format_share(figures.last_prompt_tokens / window if window else None)
    if compaction_count:
        return Figure(
            count_noun(compaction_count, "compaction"),
            f"kept the last prompt at {share} of the window",
            f"in {count_noun(figures.calls, 'call')}",
            is_lead=True,
        )
    return Figure(
        count_noun(figures.calls, "call"),
        f"the last prompt fills {share} of the window",
        "nothing had to be compacted yet",
        is_lead=True,
    )


def describe_period(insights: Insights, comparison: CostComparison) -> list[Figure]:
    """Return the figures of all threads in a period, the most important first."""
    total = insights.total
    if comparison.outgrown_count:
        thread_count = len({call.thread for call in comparison.outgrown})
        lead_figure = Figure(
            count_noun(comparison.outgrown_count, "call"),
            "beyond the window",
            f"{count_noun(thread_count, 'conversation')} continued past the point where the model "
            "would have refused the whole history",
            is_lead=True,
        )
    else:
        lead_figure = Figure(
            count_noun(total.calls, "call"),
            f"in {count_noun(insights.threads, 'conversation')}",
            "none has outgrown its window yet",
            is_lead=True,
        )
    removed_text = "all of them still in the prompts"
    if insights.compactions:
        compactions_text = count_noun(insights.compactions, "compaction")
        tokens_text = format_short(insights.tokens_saved)
        removed_text = f"{compactions_text} took {tokens_text} tokens out of the prompts"
    kept_figure = Figure(
        f"{insights.messages:,}", _describe_stored(insights.messages), removed_text
    )
    cost = total.cost if total.unpriced_calls < total.calls else None
    return [
        lead_figure,
        kept_figure,
        *_describe_dollars(cost, total.unpriced_calls, comparison),
        *_describe_cache(total.prompt, total.cache_read),
    ]


def _describe_kept(counts: StoredAndRemovedCounts) -> Figure:
    if counts.removed_count:
        detail = f"{counts.removed_count:,} left the prompt; search and recall find them"
    elif counts.compaction_count:
        detail = "search and recall find those that left the prompt"
    else:
        detail = "all of them still in the prompt"
    return Figure(
        f"{counts.stored_count:,}",
        _describe_stored(counts.stored_count),
        detail,
    )


def _describe_stored(message_count: int) -> str:
    return f"message{'' if message_count == 1 else 's'} stored, searchable"


def _describe_dollars(
    cost: object, unpriced_calls: int, comparison: CostComparison | None
) -> list[Figure]:
    """Return the dollars spent, and the dollars saved if they are known."""
    if cost == 0 and not unpriced_calls:
        return [Figure("free", "cost", "a model on this machine, or at no charge")]
    spent_text = f"${cost:,.2f}" if cost is not None else "unknown"
    missing_text = (
        f"{count_noun(unpriced_calls, 'call')} without a known price" if unpriced_calls else ""
    )
    label = "spent" if cost is not None else "cost"
    figures = [Figure(spent_text, label, missing_text)]
    difference = describe_difference(comparison) if comparison is not None else None
    return [*figures, difference] if difference is not None else figures


def describe_difference(comparison: CostComparison) -> Figure | None:
    """Compare the cost with the cost of sending the whole history; None if that is unknown."""
    saved = comparison.saved
    if saved is None:
        return None
    base_text = (
        f"{format_dollars(comparison.cost_without)} for the same {count_noun(comparison.compared_count, 'call')} "
        "with the whole history"
    )
    if saved >= MIN_DOLLARS:
        share = format_share(saved / comparison.cost_without)
        return Figure(f"${saved:,.2f}", f"saved, {share}", f"of {base_text}")
    if saved <= -MIN_DOLLARS:
        return Figure(f"${-saved:,.2f}", "more, with summaries,", f"than {base_text}")
    return Figure("Same cost", "as without compaction", base_text)


def _describe_cache(prompt_tokens: int, read_tokens: int) -> Sequence[Figure]:
    """Return the share of prompt tokens read from the provider's cache; empty if it reported none."""
    if not read_tokens:
        return ()
    return (
        Figure(
            format_share(read_tokens / prompt_tokens),
            "of all prompt tokens",
            "read from the cache",
        ),
    )
