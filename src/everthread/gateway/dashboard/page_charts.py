"""Charts and bars of the pages, drawn from the values that the pages show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everthread.core.messages import count_noun
from everthread.gateway.access.quotas import utc_day
from everthread.gateway.dashboard import views
from everthread.gateway.dashboard.charts import (
    HALF,
    Chart,
    Limit,
    Line,
    Mark,
    Segment,
    bar,
    draw,
)
from everthread.gateway.dashboard.savings import CostComparison
from everthread.gateway.dashboard.text import body_text
from everthread.gateway.dashboard.views import WindowSize
from everthread.store.records import StoredMessage, UsageRow

DAY_SECONDS = 86_400.0
MAX_DAYS = 367
MAX_CLIENTS = 8
"""Clients with a bar of their own."""


def draw_side_bar(messages: Sequence[StoredMessage], total: int) -> str:
    sizes = dict.fromkeys(views.PARTS, 0)
    for message in messages:
        tokens = message.tokens or views.estimate(body_text(message.body))
        kind = (
            "summary"
            if message.kind == "summary"
            else "results"
            if message.body.get("role") == "tool"
            else "talk"
        )
        sizes[kind] += tokens
    filled = [(kind, tokens) for kind, tokens in sizes.items() if tokens]
    segments = [
        Segment(kind, f"{views.PARTS[kind]}: {tokens:,} tokens", tokens)
        for kind, tokens in filled
    ]
    description = ", ".join(segment.name for segment in segments) or "nothing"
    return bar(segments, max(total, sum(sizes.values())), description)


def draw_window_bar(window: views.WindowView) -> str:
    segments = [
        Segment(part.kind, f"{part.name}: {part.tokens:,} tokens", part.tokens)
        for part in window.parts
    ]
    description = (
        "; ".join(segment.name for segment in segments)
        + f"; free: {window.free:,} tokens"
    )
    return bar(segments, window.size.tokens, description, mark=window.size.threshold)


def draw_calls(view: views.CallsView, size: WindowSize) -> str:
    places = views.pick_points(view.calls)
    calls = [view.calls[at] for at in places]
    nearest = {at: number for number, at in enumerate(places)}

    def place(at: int) -> int:
        return nearest.get(at) or min(
            range(len(places)), key=lambda number: abs(places[number] - at), default=0
        )

    lines = [
        Line("read from the cache", "read", [call.read for call in calls]),
        Line("written to the cache", "write", [call.write for call in calls]),
        Line("not cached", "none", [call.input for call in calls]),
    ]
    marks = [Mark(place(at), text) for at, text in view.marks[-100:]]
    unmarked = [miss for miss in view.misses if miss.cause != "compaction"]
    marks += [
        Mark(place(miss.call - 1), f"cache miss: {miss.cause}", "miss")
        for miss in unmarked[-100:]
    ]
    top = max((call.prompt for call in calls), default=0)
    limits = [Limit("compaction from here on", size.threshold)]
    limits += (
        [Limit("window", size.tokens)]
        if size.tokens < 3 * max(top, size.threshold)
        else []
    )
    description = (
        f"{count_noun(len(view.calls), 'call')}; the largest prompt has {top:,} tokens; "
        f"{count_noun(len(view.marks), 'compaction')}; {count_noun(len(view.misses), 'cache miss')[:-1]}."
    )
    names = [f"{at + 1:,}" for at in places]
    return draw(
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
    title: str
    drawn: str


def draw_days(
    by_day: Sequence[UsageRow], savings: CostComparison, since: float
) -> list[DrawnChart]:
    """Draw prompt tokens, dollars and the cached share of each day; nothing for a single day."""
    if len(by_day) < 2:
        return []
    days = _fill_days({row.key: row for row in by_day}, since)
    names = [row.key[5:] for row in days]
    charts = [_prompt_chart(days, names)]
    if any(row.cost for row in days):
        charts.append(_cost_chart(days, names, savings))
    if any(row.cache_read for row in days):
        charts.append(_share_chart([row for row in days if row.calls]))
    return [DrawnChart(chart.title, draw(chart)) for chart in charts]


def _fill_days(rows: Mapping[str, UsageRow], since: float) -> list[UsageRow]:
    """Return a row for every day from the first with calls to the last."""
    first = min(rows)
    last = max(rows)
    names = [utc_day(since + number * DAY_SECONDS) for number in range(MAX_DAYS)]
    return [rows.get(name, UsageRow(name)) for name in names if first <= name <= last]


def _prompt_chart(days: Sequence[UsageRow], names: Sequence[str]) -> Chart:
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
        width=HALF,
    )


def _cost_chart(
    days: Sequence[UsageRow], names: Sequence[str], savings: CostComparison
) -> Chart:
    spent = [float(row.cost) for row in days]
    saved = [max(0.0, savings.by["day"].get(row.key, 0.0)) for row in days]
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
        width=HALF,
    )


def _share_chart(days: Sequence[UsageRow]) -> Chart:
    shares = [100 * (row.cache_share or 0.0) for row in days]
    return Chart(
        "share-days",
        "Share of the prompts read from the cache",
        f"Between {min(shares):.0f} % and {max(shares):.0f} % of each day’s prompt tokens.",
        unit="%",
        lines=[Line("read from the cache", "read", shares)],
        axis="day",
        names=[row.key[5:] for row in days],
        width=HALF,
    )


def draw_beyond_by_client(savings: CostComparison) -> list[tuple[str, int, str]]:
    """Return each client with its calls beyond the window and a bar of them, the most first."""
    counts = Counter(views.known_client(call.client) for call in savings.outgrown)
    rows = counts.most_common(MAX_CLIENTS)
    return [
        (
            client,
            count,
            bar([Segment("a", client, count)], rows[0][1], f"{client}: {count:,}"),
        )
        for client, count in rows
    ]
