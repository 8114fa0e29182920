"""List the calls of a thread with their cache misses, and draw them as a chart."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from everthread.core.text import count_noun
from everthread.gateway.dashboard.charts import (
    Chart,
    Limit,
    Mark,
    draw_chart,
    make_cache_lines,
    pick_points,
)
from everthread.gateway.dashboard.context_window import WindowSize
from everthread.store.records import CompactionRecord
from everthread.store.usage_records import UsageRecord

MIN_CACHED_TOKENS = 1_024
"""The smallest prompt that any provider caches, in tokens."""


@dataclass(frozen=True, slots=True)
class CacheMissRow:
    """A call that read less from the cache than the previous call had written there."""

    call_number: int
    cause: str
    missed_tokens: int
    is_reported: bool
    """Whether the provider stated the cause; otherwise it is deduced here."""


@dataclass(frozen=True, slots=True)
class CallsView:
    """The calls of a thread to the main model, with its compactions and cache misses."""

    calls: tuple[UsageRecord, ...]
    """Calls to the main model, in order."""
    marks: tuple[tuple[int, str], ...]
    """The index of the call after each compaction, with the tokens before and after in words."""
    misses: tuple[CacheMissRow, ...]

    @property
    def causes(self) -> list[tuple[str, int, int]]:
        """Return the causes of cache misses with their calls and tokens, the most expensive cause first."""
        sums_by_cause: dict[str, tuple[int, int]] = {}
        for miss in self.misses:
            call_count, token_count = sums_by_cause.get(miss.cause, (0, 0))
            sums_by_cause[miss.cause] = call_count + 1, token_count + miss.missed_tokens
        return sorted(
            ((cause, *sums_of_cause) for cause, sums_of_cause in sums_by_cause.items()),
            key=lambda row: -row[2],
        )


def make_calls_view(
    calls: Sequence[UsageRecord], compactions: Sequence[CompactionRecord], *, ttl: float
) -> CallsView:
    main_calls = [call for call in calls if call.task == "main"]
    call_times = [call.created for call in main_calls]
    marks = [
        (
            bisect_right(call_times, compaction.created),
            f"compaction: {compaction.record.tokens_before:,} to {compaction.record.tokens_after:,} tokens",
        )
        for compaction in sorted(compactions, key=attrgetter("created"))
        if compaction.reverted_at is None
    ]
    return CallsView(
        tuple(main_calls),
        tuple(marks),
        tuple(_find_misses(main_calls, {call_index for call_index, _ in marks}, ttl)),
    )


def _find_misses(
    main_calls: Sequence[UsageRecord], compacted_call_indexes: set[int], ttl: float
) -> list[CacheMissRow]:
    misses: list[CacheMissRow] = []
    if not any(
        call.usage.cache_read_tokens or call.usage.cache_write_tokens for call in main_calls
    ):
        return misses
    for call_index, (previous_call, call) in enumerate(pairwise(main_calls), 1):
        reusable_tokens = min(previous_call.usage.prompt_tokens, call.usage.prompt_tokens)
        missed_tokens = reusable_tokens - call.usage.cache_read_tokens
        if reusable_tokens < MIN_CACHED_TOKENS or missed_tokens <= max(
            MIN_CACHED_TOKENS, reusable_tokens // 10
        ):
            continue
        if call_index in compacted_call_indexes:
            cause = "compaction"
        elif previous_call.model != call.model:
            cause = "model changed"
        elif call.created - previous_call.created > ttl:
            cause = "cache expired"
        else:
            cause = "the prompt changed, or the provider dropped it"
        is_reported = bool(call.usage.cache_miss)
        if is_reported:
            cause = f"{call.usage.cache_miss} (says the provider)"
        misses.append(CacheMissRow(call_index + 1, cause, missed_tokens, is_reported))
    return misses


def draw_calls(view: CallsView, size: WindowSize) -> str:
    point_call_indexes = pick_points(len(view.calls))
    calls = [view.calls[call_index] for call_index in point_call_indexes]
    point_by_call_index = {call_index: point for point, call_index in enumerate(point_call_indexes)}

    def find_nearest_point(call_index: int) -> int:
        return point_by_call_index.get(call_index) or min(
            range(len(point_call_indexes)),
            key=lambda point: abs(point_call_indexes[point] - call_index),
            default=0,
        )

    lines = make_cache_lines(
        read=[call.usage.cache_read_tokens for call in calls],
        written=[call.usage.cache_write_tokens for call in calls],
        uncached=[call.usage.input_tokens for call in calls],
    )
    marks = [Mark(find_nearest_point(call_index), text) for call_index, text in view.marks[-100:]]
    misses_to_mark = [miss for miss in view.misses if miss.cause != "compaction"]
    marks += [
        Mark(find_nearest_point(miss.call_number - 1), f"cache miss: {miss.cause}", "miss")
        for miss in misses_to_mark[-100:]
    ]
    largest_prompt = max((call.usage.prompt_tokens for call in calls), default=0)
    limits = [Limit("compaction from here on", size.threshold)]
    if size.tokens < 3 * max(largest_prompt, size.threshold):
        limits.append(Limit("window", size.tokens))
    description = (
        f"{count_noun(len(view.calls), 'call')}; the largest prompt has {largest_prompt:,} tokens; "
        f"{count_noun(len(view.marks), 'compaction')}; {count_noun(len(view.misses), 'cache miss')[:-1]}."
    )
    names = [f"{call_index + 1:,}" for call_index in point_call_indexes]
    return draw_chart(
        Chart(
            "calls-chart",
            "Every call’s prompt",
            description=description,
            unit="tokens",
            lines=lines,
            limits=limits,
            marks=marks,
            form="areas",
            names=names,
        )
    )
