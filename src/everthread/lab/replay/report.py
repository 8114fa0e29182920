"""Replays as one self-contained HTML page: figures, charts and tables of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from importlib.resources import files
from itertools import accumulate
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from everthread._version import __version__
from everthread.core.messages import count_noun
from everthread.core.prices import format_dollars
from everthread.gateway.dashboard.charts import (
    Chart,
    Limit,
    Line,
    Mark,
    Segment,
    bar,
    draw,
)
from everthread.gateway.dashboard.headlines import Figure
from everthread.gateway.dashboard.summary_lines import summary_sections
from everthread.gateway.dashboard.text import clean, line_of, part
from everthread.gateway.dashboard.views import REASONS
from everthread.lab.replay.result import FactCounts, Replay, ReplayWay, total

STYLES = {
    "everthread": "a",
    "uncached": "b",
    "cached": "c",
    "truncated": "d",
    "recorded": "b",
}
MAX_FACTS = 400
FACT_PLACES = ("in the context", "found by recall", "lost")


def page(
    replays: Sequence[Replay],
    verdicts: Sequence[Sequence[str]] = (),
    *,
    command: str = "",
    date: str = "",
    uncached: bool = False,
) -> str:
    """Render one HTML page. `verdicts`: sentences for each replay. `uncached`: also the way without any caching."""
    static = files("everthread.gateway.dashboard") / "static"
    return (
        _load_pages()
        .get_template("report.html")
        .render(
            title="Replay" if len(replays) == 1 else f"{len(replays)} replays",
            command=clean(command),
            date=date,
            version=__version__,
            style=Markup((static / "style.css").read_text("utf-8")),  # noqa: S704 - our own file  # nosec B704
            script=Markup((static / "charts.js").read_text("utf-8")),  # noqa: S704 - our own file  # nosec B704
            overview=[_overview_row(one) for one in replays]
            if len(replays) > 1
            else [],
            lead=_headline(replays),
            replays=[
                _section(one, number, uncached=uncached)
                | {"verdict": _verdict_of(verdicts, number)}
                for number, one in enumerate(replays, 1)
            ],
        )
    )


def table_page(
    title: str, sentence: str, heads: Sequence[str], rows: Sequence[Sequence[object]]
) -> str:
    """Render a page with one sentence and one table."""
    static = files("everthread.gateway.dashboard") / "static"
    return (
        _load_pages()
        .get_template("table.html")
        .render(
            title=title,
            sentence=clean(sentence),
            heads=heads,
            rows=[
                [
                    clean(f"{cell:,}" if isinstance(cell, int) else str(cell))
                    for cell in row
                ]
                for row in rows
            ],
            version=__version__,
            style=Markup((static / "style.css").read_text("utf-8")),  # noqa: S704 - our own file  # nosec B704
        )
    )


def _load_pages() -> Environment:
    pages = Environment(
        loader=PackageLoader("everthread.lab.replay"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "comma": "{:,}".format,
        "clean": clean,
        "draw": draw,
        "sections": summary_sections,
    }
    return pages


def _verdict_of(verdicts: Sequence[Sequence[str]], number: int) -> list[str]:
    return [clean(line) for line in verdicts[number - 1]] if verdicts else []


def _name_recording(replay: Replay) -> str:
    """Return the file name of a recording, without its folder."""
    return clean(Path(replay.source).name)


def _overview_row(one: Replay) -> tuple[str, ...]:
    facts = one.ours.facts
    cached = one.way("cached")
    return (
        _name_recording(one),
        f"{len(one.ours.calls):,}",
        f"{one.ours.peak:,}",
        f"{len(one.compactions):,}",
        format_dollars(one.ours.cost),
        part(one.saved(cached)),
        "" if cached.refused is None else "yes",
        part(facts.retained / facts.total)
        if facts is not None and facts.total
        else "\u2013",
    )


def _headline(replays: Sequence[Replay]) -> list[Figure]:
    """Return the large figures: calls beyond the window, facts kept, dollars against caching alone."""
    pairs = [(one, one.way("cached")) for one in replays]
    counts = [min(len(way.calls), len(one.ours.calls)) for one, way in pairs]
    calls = sum(len(one.ours.calls) for one in replays)
    beyond = calls - sum(counts)
    made = count_noun(sum(len(one.compactions) for one in replays), "compaction")
    peak = (
        f"{made}, prompts of at most {max(one.ours.peak for one in replays):,} tokens"
    )
    if beyond:
        detail = f"of {calls:,} in all; {peak}"
        lead = Figure(count_noun(beyond, "call"), "beyond the window", detail)
    else:
        lead = Figure(count_noun(calls, "call"), "within the window", peak)
    ours = total(
        one.ours.cost_of_first(count)
        for (one, _), count in zip(pairs, counts, strict=True)
    )
    caching_alone = total(
        way.cost_of_first(count) for (_, way), count in zip(pairs, counts, strict=True)
    )
    spent = total(one.ours.cost for one in replays)
    return [
        replace(lead, is_lead=True),
        *_facts_figure(replays),
        Figure(format_dollars(spent), "in all", "" if spent else _NO_PRICE),
        *_saving_figure(ours, caching_alone, sum(counts)),
    ]


_NO_PRICE = "the model has no price in the table"


def _facts_figure(replays: Sequence[Replay]) -> list[Figure]:
    """Return the share of the facts that is kept; nothing if none was looked for."""
    facts = [one.ours.facts for one in replays if one.ours.facts is not None]
    count = sum(one.total for one in facts)
    if not count:
        return []
    shown = sum(one.retained for one in facts) / count
    found = sum(one.recoverable for one in facts) / count
    detail = f"{part(shown)} in the last prompt, {part(found)} more by recall"
    return [Figure(part(shown + found), f"of {count:,} facts kept", detail)]


def _saving_figure(
    ours: Decimal | None, caching_alone: Decimal | None, calls: int
) -> list[Figure]:
    """Return the dollars saved or paid more; nothing without prices."""
    if ours is None or not caching_alone:
        return []
    label = f"saved, {part(float(1 - ours / caching_alone))}"
    if ours > caching_alone:
        label = f"more, {part(float(ours / caching_alone - 1))}"
    base = f"{count_noun(calls, 'call')} with caching alone"
    detail = f"than {format_dollars(caching_alone)} for the same {base}"
    if ours <= caching_alone:
        detail = detail.replace("than", "of", 1)
    return [Figure(format_dollars(abs(caching_alone - ours)), label, detail)]


def _section(replay: Replay, number: int, *, uncached: bool) -> dict[str, Any]:
    """The template's values for one replay."""
    ways = [way for way in replay.ways if uncached or way.name != "uncached"]
    facts = (
        replay.ours.facts
        if replay.ours.facts is not None and replay.ours.facts.total
        else None
    )
    listed = sorted(facts.named, key=lambda fact: -fact[2])[:MAX_FACTS] if facts else []
    return {
        "replay": replay,
        "name": _name_recording(replay),
        "lead": _headline([replay]),
        "charts": [
            _context_chart(replay, number),
            _cost_chart(ways, number),
            _cache_chart(replay, number),
        ],
        "ways": [_way_row(replay, way) for way in ways],
        "compactions": [
            (
                f"before call {one.call + 1:,}",
                REASONS.get(one.reason, one.reason),
                f"{one.tokens_before:,} \u2192 {one.tokens_after:,}",
                f"{one.messages_before:,} \u2192 {one.messages_after:,}",
                one.author,
            )
            for one in replay.compactions
        ],
        "misses": [
            (
                cause,
                f"{count:,}",
                f"{sum(call.missed for call in replay.ours.calls if call.miss == cause):,}",
            )
            for cause, count in replay.ours.misses.most_common()
        ],
        "facts": _fact_rows(facts, replay.way("truncated").facts) if facts else [],
        # Those that left the context first: they are what a reader wants to check.
        "named": [
            (line_of(text, 120), kind, FACT_PLACES[place])
            for kind, text, place in listed
        ],
        "unnamed": len(facts.named) - len(listed) if facts else 0,
    }


def _way_row(replay: Replay, way: ReplayWay) -> tuple[str, ...]:
    answered = f"{len(way.calls):,}" + ("" if way.refused is None else ", then refused")
    return (
        way.what,
        answered,
        f"{way.peak:,}",
        f"{way.mean:,.0f}",
        f"{way.read:,}",
        f"{way.written:,}",
        f"{way.uncached:,}",
        format_dollars(way.input_cost),
        format_dollars(way.cost),
        "–" if way is replay.ours else part(replay.saved(way)),
    )


def _fact_rows(
    facts: FactCounts, truncated: FactCounts | None
) -> list[tuple[str, ...]]:
    """The facts of each kind: in the context, found by a search, lost; and what truncation would have left."""
    rows = []
    for kind, counts in facts.kinds.items():
        styled = zip(("kept", "found-part", "lost"), counts, strict=True)
        segments = [
            Segment(style, f"{count:,}", count) for style, count in styled if count
        ]
        chart_bar = bar(
            segments, sum(counts), f"{counts[0]} of {sum(counts)} in the context"
        )
        truncated_count = truncated.kinds[kind][0] if truncated else 0
        rows.append(
            (
                kind,
                *(f"{count:,}" for count in counts),
                chart_bar,
                f"{truncated_count:,}",
            )
        )
    return rows


def _context_chart(replay: Replay, number: int) -> Chart:
    ways = [way for way in replay.ways if way.name != "uncached"]
    lines = [
        Line(way.what, STYLES[way.name], [call.use.prompt for call in way.calls])
        for way in ways
    ]
    marks = [
        Mark(
            one.call,
            f"compaction before call {one.call + 1}: {one.tokens_before:,} to {one.tokens_after:,} tokens",
        )
        for one in replay.compactions
    ]
    text = (
        f"Tokens of each request. Ours has at most {replay.ours.peak:,} of a window of {replay.window:,} and is "
        f"compacted {count_noun(len(replay.compactions), 'time')}."
    )
    limits = [
        Limit("window", replay.window),
        Limit("compaction from here on", replay.threshold),
    ]
    return Chart(
        f"context-{number}",
        "Context, call by call",
        description=text,
        unit="tokens",
        lines=lines,
        limits=limits,
        marks=marks,
    )


def _cost_chart(ways: Sequence[ReplayWay], number: int) -> Chart:
    priced = [way for way in ways if way.cost is not None]
    lines = [
        Line(
            way.what,
            STYLES[way.name],
            [*accumulate(float(call.cost or 0) for call in way.calls)],
        )
        for way in priced
    ]
    text = "Dollars spent up to each call. " + " ".join(
        f"{way.what}: {format_dollars(way.cost)}." for way in priced
    )
    return Chart(f"cost-{number}", "Cost so far", text, "$", lines)


def _cache_chart(replay: Replay, number: int) -> Chart:
    calls = replay.ours.calls
    lines = [
        Line("read from the cache", "read", [call.use.read for call in calls]),
        Line("written to the cache", "write", [call.use.write for call in calls]),
        Line("not cached", "none", [call.use.input for call in calls]),
    ]
    marks = [
        Mark(at, f"cache miss before call {at + 1}: {call.miss}", "miss")
        for at, call in enumerate(calls)
        if call.missed
    ]
    text = f"What became of each prompt\u2019s tokens. {len(marks)} calls read less than the one before had left."
    return Chart(
        f"cache-{number}",
        "What the cache held",
        description=text,
        unit="tokens",
        lines=lines,
        limits=(),
        marks=marks,
        form="areas",
    )
