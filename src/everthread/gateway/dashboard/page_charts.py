"""Draw the charts and bars of the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everthread.core.messages import count_noun
from everthread.gateway.access.quotas import utc_day
from everthread.gateway.dashboard import views
from everthread.gateway.dashboard.calls_view import CallsView
from everthread.gateway.dashboard.charts import (
    HALF_PAGE_WIDTH,
    Chart,
    Limit,
    Line,
    Mark,
    Segment,
    draw_bar,
    draw_chart,
)
from everthread.gateway.dashboard.savings import CostComparison
from everthread.gateway.dashboard.text import message_text
from everthread.gateway.dashboard.trials import TrialResult
from everthread.gateway.dashboard.views import WindowSize
from everthread.store.records import StoredMessage
from everthread.store.usage_records import UsageRow

DAY_SECONDS = 86_400.0
MAX_DAYS = 367
MAX_CLIENT_BARS = 8
"""Maximum clients that are shown, each with a bar."""


def draw_side_bar(messages: Sequence[StoredMessage], total: int) -> str:
    sizes = dict.fromkeys(views.PART_LABELS, 0)
    for message in messages:
        tokens = message.tokens or views.estimate_tokens(message_text(message.body))
        kind = (
            "summary"
            if message.kind == "summary"
            else "results"
            if message.body.get("role") == "tool"
            else "talk"
        )
        sizes[kind] += tokens
    filled_parts = [(kind, tokens) for kind, tokens in sizes.items() if tokens]
    segments = [
        Segment(kind, f"{views.PART_LABELS[kind]}: {tokens:,} tokens", tokens)
        for kind, tokens in filled_parts
    ]
    description = ", ".join(segment.name for segment in segments) or "nothing"
    return draw_bar(segments, max(total, sum(sizes.values())), description)


def draw_window_bar(window: views.WindowView) -> str:
    segments = [
        Segment(part.kind, f"{part.name}: {part.tokens:,} tokens", part.tokens)
        for part in window.parts
    ]
    description = (
        "; ".join(segment.name for segment in segments)
        + f"; free: {window.free:,} tokens"
    )
    return draw_bar(
        segments, window.size.tokens, description, mark_at=window.size.threshold
    )


def draw_calls(view: CallsView, size: WindowSize) -> str:
    points = views.pick_points(view.calls)
    calls = [view.calls[call_index] for call_index in points]
    point_numbers = {call_index: number for number, call_index in enumerate(points)}

    def find_nearest_point(call_index: int) -> int:
        return point_numbers.get(call_index) or min(
            range(len(points)),
            key=lambda number: abs(points[number] - call_index),
            default=0,
        )

    lines = [
        Line("read from the cache", "read", [call.cache_read for call in calls]),
        Line("written to the cache", "write", [call.cache_write for call in calls]),
        Line("not cached", "none", [call.input for call in calls]),
    ]
    marks = [
        Mark(find_nearest_point(call_index), text)
        for call_index, text in view.marks[-100:]
    ]
    misses_to_mark = [miss for miss in view.misses if miss.cause != "compaction"]
    marks += [
        Mark(find_nearest_point(miss.call - 1), f"cache miss: {miss.cause}", "miss")
        for miss in misses_to_mark[-100:]
    ]
    largest_prompt = max((call.prompt for call in calls), default=0)
    limits = [Limit("compaction from here on", size.threshold)]
    limits += (
        [Limit("window", size.tokens)]
        if size.tokens < 3 * max(largest_prompt, size.threshold)
        else []
    )
    description = (
        f"{count_noun(len(view.calls), 'call')}; the largest prompt has {largest_prompt:,} tokens; "
        f"{count_noun(len(view.marks), 'compaction')}; {count_noun(len(view.misses), 'cache miss')[:-1]}."
    )
    names = [f"{call_index + 1:,}" for call_index in points]
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


@dataclass(frozen=True, slots=True)
class DrawnChart:
    """A chart's title and its SVG."""

    title: str
    svg: str


def draw_days(
    by_day: Sequence[UsageRow], savings: CostComparison, start_time: float
) -> list[DrawnChart]:
    """Draw the prompt tokens, dollars and cached share of each day; return no charts for a single day."""
    if len(by_day) < 2:
        return []
    days = _fill_days({row.key: row for row in by_day}, start_time)
    names = [row.key[5:] for row in days]
    charts = [_make_prompt_chart(days, names)]
    if any(row.cost for row in days):
        charts.append(_make_cost_chart(days, names, savings))
    if any(row.cache_read for row in days):
        charts.append(_make_share_chart([row for row in days if row.calls]))
    return [DrawnChart(chart.title, draw_chart(chart)) for chart in charts]


def _fill_days(rows: Mapping[str, UsageRow], start_time: float) -> list[UsageRow]:
    """Return a row for every day from the first with calls to the last."""
    first_day = min(rows)
    last_day = max(rows)
    names = [utc_day(start_time + number * DAY_SECONDS) for number in range(MAX_DAYS)]
    return [
        rows.get(name, UsageRow(name))
        for name in names
        if first_day <= name <= last_day
    ]


def _make_prompt_chart(days: Sequence[UsageRow], names: Sequence[str]) -> Chart:
    lines = [
        Line("read from the cache", "read", [row.cache_read for row in days]),
        Line("written to the cache", "write", [row.cache_write for row in days]),
        Line("not cached", "none", [row.input for row in days]),
    ]
    total = sum(row.prompt for row in days)
    return Chart(
        "prompt-days",
        "Prompt tokens by day",
        f"{total:,} prompt tokens in {count_noun(len(days), 'day')}.",
        unit="tokens",
        lines=lines,
        form="columns",
        axis="day",
        names=names,
        width=HALF_PAGE_WIDTH,
    )


def _make_cost_chart(
    days: Sequence[UsageRow], names: Sequence[str], savings: CostComparison
) -> Chart:
    spent = [float(row.cost) for row in days]
    saved = [max(0.0, savings.saved_by["day"].get(row.key, 0.0)) for row in days]
    lines = [Line("spent", "a", spent)]
    if any(saved):
        lines.append(Line("saved by compaction", "saved", saved))
    return Chart(
        "cost-days",
        "Dollars by day",
        f"${sum(spent):,.2f} spent in {count_noun(len(days), 'day')}.",
        unit="$",
        lines=lines,
        form="columns",
        axis="day",
        names=names,
        width=HALF_PAGE_WIDTH,
    )


def _make_share_chart(days: Sequence[UsageRow]) -> Chart:
    shares = [100 * (row.cache_share or 0.0) for row in days]
    return Chart(
        "share-days",
        "Share of the prompts read from the cache",
        f"Between {min(shares):.0f} % and {max(shares):.0f} % of each day’s prompt tokens.",
        unit="%",
        lines=[Line("read from the cache", "read", shares)],
        axis="day",
        names=[row.key[5:] for row in days],
        width=HALF_PAGE_WIDTH,
    )


def draw_beyond_by_client(savings: CostComparison) -> list[tuple[str, int, str]]:
    """Return each client with its number of calls beyond the window and a bar, the largest number first."""
    calls_by_client = Counter(
        views.translate_client_name(call.client) for call in savings.outgrown
    )
    rows = calls_by_client.most_common(MAX_CLIENT_BARS)
    return [
        (
            client,
            count,
            draw_bar([Segment("a", client, count)], rows[0][1], f"{client}: {count:,}"),
        )
        for client, count in rows
    ]


def draw_trial(result: TrialResult, window: int, threshold: int) -> str:
    """Draw the prompts of several replays of a thread, call by call."""
    call_count = max((len(run.prompts) for run in result.runs), default=0)
    points = views.pick_points(range(call_count))
    lines = [
        Line(
            run.name,
            style,
            [
                run.prompts[call_index]
                for call_index in points
                if call_index < len(run.prompts)
            ],
        )
        for run, style in zip(result.runs, "cab", strict=False)
    ]
    trial_run = result.runs[1] if len(result.runs) > 1 else result.runs[0]
    point_numbers = {call_index: number for number, call_index in enumerate(points)}
    marks = [
        Mark(point_numbers[call_index], "compaction with these settings")
        for call_index in trial_run.compactions
        if call_index in point_numbers
    ]
    limits = [Limit("window", window), Limit("compaction from here on", threshold)]
    description = " ".join(
        f"{run.name}: at most {max(run.prompts, default=0):,} tokens."
        for run in result.runs
    )
    names = [f"{call_index + 1:,}" for call_index in points]
    return draw_chart(
        Chart(
            "trial-chart",
            "Context, call by call",
            description=description,
            unit="tokens",
            lines=lines,
            limits=limits,
            marks=marks,
            names=names,
        )
    )
