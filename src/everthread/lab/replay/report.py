"""Replays as one self-contained HTML page: figures, charts and tables of each."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from itertools import accumulate
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from everthread._version import __version__
from everthread.core.pricing import format_dollars
from everthread.gateway.dashboard.charts import Chart, Limit, Line, Mark, Segment, bar, draw
from everthread.gateway.dashboard.text import clean, line_of, part, summary_sections
from everthread.lab.replay.result import FactCounts, Replay, ReplayWay, total

STYLES = {"everthread": "a", "uncached": "b", "cached": "c", "truncated": "d"}
MOST_FACTS = 400
PLACES = ("in the context", "found by recall", "lost")


def page(replays: Sequence[Replay], *, command: str = "", date: str = "", uncached: bool = False) -> str:
    """Render one HTML page. `uncached`: also the way without any caching."""
    static = files("everthread.gateway.dashboard") / "static"
    pages = Environment(
        loader=PackageLoader("everthread.lab.replay"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    pages.filters |= {"comma": "{:,}".format, "clean": clean, "draw": draw, "sections": summary_sections}
    return pages.get_template("report.html").render(
        title="Replay" if len(replays) == 1 else f"{len(replays)} replays",
        command=clean(command), date=date, version=__version__,
        style=Markup((static / "style.css").read_text("utf-8")),  # noqa: S704 - our own file  # nosec B704
        script=Markup((static / "charts.js").read_text("utf-8")),  # noqa: S704 - our own file  # nosec B704
        overview=[_overview_row(one) for one in replays] if len(replays) > 1 else [], lead=_headline(replays),
        replays=[_section(one, number, uncached=uncached) for number, one in enumerate(replays, 1)],
    )  # fmt: skip


def _overview_row(one: Replay) -> tuple[str, ...]:
    facts, cached = one.ours.facts, one.way("cached")
    return (
        clean(one.source), f"{len(one.ours.calls):,}", f"{one.ours.peak:,}", f"{len(one.compactions):,}",
        format_dollars(one.ours.cost), part(one.saved(cached)), "" if cached.refused is None else "yes",
        part(facts.retained / facts.total) if facts is not None and facts.total else "\u2013",
    )  # fmt: skip


def _headline(replays: Sequence[Replay]) -> dict[str, Any]:
    """The savings against caching alone, over the calls that both answered, in words; other figures with labels."""
    pairs = [(one, one.way("cached")) for one in replays]
    counts = [min(len(way.calls), len(one.ours.calls)) for one, way in pairs]
    ours = total(one.ours.cost_of_first(count) for (one, _), count in zip(pairs, counts, strict=True))
    theirs = total(way.cost_of_first(count) for (_, way), count in zip(pairs, counts, strict=True))
    beyond = sum(len(one.ours.calls) - count for (one, _), count in zip(pairs, counts, strict=True))
    more = f"; {beyond:,} more calls would not have fitted into the window" if beyond else ""
    if ours is None or not theirs:
        figure, words = "unknown", f"saved by compaction: the model has no price in the table{more}"
    else:
        figure = format_dollars(theirs - ours)
        words = (
            f"saved by compaction: {part(float(1 - ours / theirs))} of the {format_dollars(theirs)} that the same "
            f"{sum(counts):,} calls cost with caching alone{more}"
        )
    others = [
        (f"{sum(len(one.ours.calls) for one in replays):,}", "calls answered"),
        (f"{max(one.ours.peak for one in replays):,}", "tokens at most"),
        (f"{sum(len(one.compactions) for one in replays):,}", "compactions"),
        (format_dollars(total(one.ours.cost for one in replays)), "in all"),
    ]
    facts = [one.ours.facts for one in replays if one.ours.facts is not None and one.ours.facts.total]
    if facts:
        share = sum(one.retained for one in facts) / sum(one.total for one in facts)
        others.append((part(share), "of the facts still in the context"))
    return {"figure": figure, "words": words, "others": others}


def _section(replay: Replay, number: int, *, uncached: bool) -> dict[str, Any]:
    """The template's values for one replay."""
    ways = [way for way in replay.ways if uncached or way.name != "uncached"]
    facts = replay.ours.facts if replay.ours.facts is not None and replay.ours.facts.total else None
    listed = sorted(facts.named, key=lambda fact: -fact[2])[:MOST_FACTS] if facts else []
    return {
        "replay": replay, "lead": _headline([replay]),
        "charts": [_context_chart(replay, number), _cost_chart(ways, number), _cache_chart(replay, number)],
        "ways": [_way_row(replay, way) for way in ways],
        "compactions": [
            (f"before call {one.call + 1:,}", one.reason, f"{one.tokens_before:,} \u2192 {one.tokens_after:,}",
             f"{one.messages_before:,} \u2192 {one.messages_after:,}", one.author)
            for one in replay.compactions
        ],
        "misses": [
            (cause, f"{count:,}", f"{sum(call.missed for call in replay.ours.calls if call.miss == cause):,}")
            for cause, count in replay.ours.misses.most_common()
        ],
        "facts": _fact_rows(facts, replay.way("truncated").facts) if facts else [],
        # Those that left the context first: they are what a reader wants to check.
        "named": [(line_of(text, 120), kind, PLACES[place]) for kind, text, place in listed],
        "unnamed": len(facts.named) - len(listed) if facts else 0,
    }  # fmt: skip


def _way_row(replay: Replay, way: ReplayWay) -> tuple[str, ...]:
    answered = f"{len(way.calls):,}" + ("" if way.refused is None else ", then refused")
    return (
        way.what, answered, f"{way.peak:,}", f"{way.mean:,.0f}", f"{way.read:,}", f"{way.written:,}",
        f"{way.uncached:,}", format_dollars(way.input_cost), format_dollars(way.cost),
        "" if way is replay.ours else part(replay.saved(way)),
    )  # fmt: skip


def _fact_rows(facts: FactCounts, truncated: FactCounts | None) -> list[tuple[str, ...]]:
    """The facts of each kind: in the context, found by a search, lost; and what truncation would have left."""
    rows = []
    for kind, counts in facts.kinds.items():
        styled = zip(("kept", "found-part", "lost"), counts, strict=True)
        segments = [Segment(style, f"{count:,}", count) for style, count in styled if count]
        chart_bar = bar(segments, sum(counts), f"{counts[0]} of {sum(counts)} in the context")
        truncated_count = truncated.kinds[kind][0] if truncated else 0
        rows.append((kind, *(f"{count:,}" for count in counts), chart_bar, f"{truncated_count:,}"))
    return rows


def _context_chart(replay: Replay, number: int) -> Chart:
    ways = [way for way in replay.ways if way.name != "uncached"]
    lines = [Line(way.what, STYLES[way.name], [call.use.prompt for call in way.calls]) for way in ways]
    marks = [
        Mark(one.call, f"compaction before call {one.call + 1}: {one.tokens_before:,} to {one.tokens_after:,} tokens")
        for one in replay.compactions
    ]
    text = (
        f"Tokens of each request. Ours has at most {replay.ours.peak:,} of a window of {replay.window:,} and is "
        f"compacted {len(replay.compactions)} times."
    )
    limits = [Limit("window", replay.window), Limit("compaction from here on", replay.threshold)]
    return Chart(f"context-{number}", "Context, call by call", text, "tokens", lines, limits, marks)


def _cost_chart(ways: Sequence[ReplayWay], number: int) -> Chart:
    priced = [way for way in ways if way.cost is not None]
    lines = [
        Line(way.what, STYLES[way.name], [*accumulate(float(call.cost or 0) for call in way.calls)]) for way in priced
    ]
    text = "Dollars spent up to each call. " + " ".join(f"{way.what}: {format_dollars(way.cost)}." for way in priced)
    return Chart(f"cost-{number}", "Cost so far", text, "$", lines)


def _cache_chart(replay: Replay, number: int) -> Chart:
    calls = replay.ours.calls
    lines = [
        Line("read from the cache", "read", [call.use.read for call in calls]),
        Line("written to it", "write", [call.use.write for call in calls]),
        Line("neither", "none", [call.use.input for call in calls]),
    ]
    marks = [
        Mark(at, f"miss before call {at + 1}: {call.miss}", "miss") for at, call in enumerate(calls) if call.missed
    ]
    text = f"What became of each prompt\u2019s tokens. {len(marks)} calls read less than the one before had left."
    return Chart(f"cache-{number}", "What the cache held", text, "tokens", lines, (), marks, stacked=True)
