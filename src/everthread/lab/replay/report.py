"""Render replays as one self-contained HTML page: figures, charts and tables of each."""

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
from everthread.core.costs.prices import format_dollars
from everthread.core.messages import count_noun
from everthread.gateway.dashboard.charts import (
    Chart,
    Limit,
    Line,
    Mark,
    Segment,
    draw_bar,
    draw_chart,
    make_cache_lines,
)
from everthread.gateway.dashboard.headlines import Figure
from everthread.gateway.dashboard.summary_lines import split_summary
from everthread.gateway.dashboard.text import clean, format_share, one_line_excerpt
from everthread.lab.replay.result import (
    FactCounts,
    FactLocation,
    Replay,
    StrategyResult,
    sum_costs,
)
from everthread.thread.compaction_records import REASON_TEXTS

LINE_STYLES = {
    "everthread": "a",
    "uncached": "b",
    "cached": "c",
    "truncated": "d",
    "recorded": "b",
}
MAX_FACTS = 400
FACT_LOCATION_LABELS = {
    FactLocation.IN_CONTEXT: "in the context",
    FactLocation.FOUND_BY_SEARCH: "found by recall",
    FactLocation.LOST: "lost",
}


def render_report(
    replays: Sequence[Replay],
    verdicts: Sequence[Sequence[str]] = (),
    *,
    command: str = "",
    date: str = "",
    show_uncached: bool = False,
) -> str:
    """Render one HTML page. `verdicts`: sentences for each replay. `show_uncached`: also show a run without caching."""
    return _render_page(
        "report.html",
        title="Replay" if len(replays) == 1 else f"{len(replays)} replays",
        command=clean(command),
        date=date,
        script=_read_static("charts.js"),
        overview=[_make_overview_row(replay) for replay in replays] if len(replays) > 1 else [],
        lead=_make_headline(replays),
        replays=[
            _make_section(replay, number, show_uncached=show_uncached)
            | {"verdict": _clean_verdict(verdicts, number)}
            for number, replay in enumerate(replays, 1)
        ],
    )


def render_table_page(
    title: str, sentence: str, headings: Sequence[str], rows: Sequence[Sequence[object]]
) -> str:
    """Render a page with one sentence and one table."""
    return _render_page(
        "table.html",
        title=title,
        sentence=clean(sentence),
        heads=headings,
        rows=[
            [clean(f"{cell:,}" if isinstance(cell, int) else str(cell)) for cell in row]
            for row in rows
        ],
    )


def _render_page(template: str, **values: Any) -> str:
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
        "draw": draw_chart,
        "sections": split_summary,
    }
    return pages.get_template(template).render(
        {"script": ""} | values,
        version=__version__,
        style=_read_static("style.css"),
    )


def _read_static(name: str) -> Markup:
    """Return one of the dashboard's static files, to be inserted without escaping."""
    file = files("everthread.gateway.dashboard") / "static" / name
    return Markup(file.read_text("utf-8"))  # noqa: S704 - our own file  # nosec B704


def _clean_verdict(verdicts: Sequence[Sequence[str]], number: int) -> list[str]:
    return [clean(line) for line in verdicts[number - 1]] if verdicts else []


def _name_recording(replay: Replay) -> str:
    """Return the file name of a recording, without its folder."""
    return clean(Path(replay.source).name)


def _make_overview_row(replay: Replay) -> tuple[str, ...]:
    facts = replay.everthread.facts
    cached = replay.strategy("cached")
    return (
        _name_recording(replay),
        f"{len(replay.everthread.calls):,}",
        f"{replay.everthread.peak:,}",
        f"{len(replay.compactions):,}",
        format_dollars(replay.everthread.cost),
        format_share(replay.share_saved_against(cached)),
        "" if cached.refused_call is None else "yes",
        format_share(facts.retained / facts.total)
        if facts is not None and facts.total
        else "\u2013",
    )


def _make_headline(replays: Sequence[Replay]) -> list[Figure]:
    """Return the large figures: calls beyond the window, facts kept, dollars against caching alone."""
    pairs = [(replay, replay.strategy("cached")) for replay in replays]
    shared_counts = [min(len(other.calls), len(replay.everthread.calls)) for replay, other in pairs]
    calls = sum(len(replay.everthread.calls) for replay in replays)
    calls_beyond = calls - sum(shared_counts)
    compactions_text = count_noun(sum(len(replay.compactions) for replay in replays), "compaction")
    peak_text = f"{compactions_text}, prompts of at most {max(replay.everthread.peak for replay in replays):,} tokens"
    if calls_beyond:
        detail = f"of {calls:,} in all; {peak_text}"
        lead_figure = Figure(count_noun(calls_beyond, "call"), "beyond the window", detail)
    else:
        lead_figure = Figure(count_noun(calls, "call"), "within the window", peak_text)
    our_cost = sum_costs(
        replay.everthread.cost_of_first(count)
        for (replay, _), count in zip(pairs, shared_counts, strict=True)
    )
    caching_cost = sum_costs(
        other.cost_of_first(count) for (_, other), count in zip(pairs, shared_counts, strict=True)
    )
    spent_dollars = sum_costs(replay.everthread.cost for replay in replays)
    return [
        replace(lead_figure, is_lead=True),
        *_make_facts_figure(replays),
        Figure(format_dollars(spent_dollars), "in all", "" if spent_dollars else _NO_PRICE),
        *_make_saving_figure(our_cost, caching_cost, sum(shared_counts)),
    ]


_NO_PRICE = "the model has no price in the table"


def _make_facts_figure(replays: Sequence[Replay]) -> list[Figure]:
    """Return a figure with the share of the facts that was kept; no figure if no facts were looked for."""
    facts = [
        fact_counts.everthread.facts
        for fact_counts in replays
        if fact_counts.everthread.facts is not None
    ]
    count = sum(fact_counts.total for fact_counts in facts)
    if not count:
        return []
    context_share = sum(fact_counts.retained for fact_counts in facts) / count
    recalled_share = sum(fact_counts.recoverable for fact_counts in facts) / count
    detail = f"{format_share(context_share)} in the last prompt, {format_share(recalled_share)} more by recall"
    return [
        Figure(
            format_share(context_share + recalled_share),
            f"of {count:,} facts kept",
            detail,
        )
    ]


def _make_saving_figure(
    our_cost: Decimal | None, caching_cost: Decimal | None, calls: int
) -> list[Figure]:
    """Return a figure with the dollars that were saved or paid more; no figure without prices."""
    if our_cost is None or not caching_cost:
        return []
    label = f"saved, {format_share(float(1 - our_cost / caching_cost))}"
    if our_cost > caching_cost:
        label = f"more, {format_share(float(our_cost / caching_cost - 1))}"
    calls_text = f"{count_noun(calls, 'call')} with caching alone"
    detail = f"than {format_dollars(caching_cost)} for the same {calls_text}"
    if our_cost <= caching_cost:
        detail = detail.replace("than", "of", 1)
    return [Figure(format_dollars(abs(caching_cost - our_cost)), label, detail)]


def _make_section(replay: Replay, number: int, *, show_uncached: bool) -> dict[str, Any]:
    """Return the template's values for one replay."""
    strategies = [
        strategy for strategy in replay.strategies if show_uncached or strategy.name != "uncached"
    ]
    facts = (
        replay.everthread.facts
        if replay.everthread.facts is not None and replay.everthread.facts.total
        else None
    )
    listed_facts = sorted(facts.facts, key=lambda fact: -fact[2])[:MAX_FACTS] if facts else []
    return {
        "replay": replay,
        "name": _name_recording(replay),
        "lead": _make_headline([replay]),
        "charts": [
            _make_context_chart(replay, number),
            _make_cost_chart(strategies, number),
            _make_cache_chart(replay, number),
        ],
        "ways": [_make_strategy_row(replay, strategy) for strategy in strategies],
        "compactions": [
            (
                f"before call {compaction.call + 1:,}",
                REASON_TEXTS.get(compaction.reason, compaction.reason),
                f"{compaction.tokens_before:,} \u2192 {compaction.tokens_after:,}",
                f"{compaction.messages_before:,} \u2192 {compaction.messages_after:,}",
                compaction.author,
            )
            for compaction in replay.compactions
        ],
        "misses": [
            (
                cause,
                f"{count:,}",
                f"{sum(call.missed_tokens for call in replay.everthread.calls if call.miss == cause):,}",
            )
            for cause, count in replay.everthread.misses.most_common()
        ],
        "facts": _make_fact_rows(facts, replay.strategy("truncated").facts) if facts else [],
        # Facts that left the context come first: a reader wants to check those.
        "named": [
            (one_line_excerpt(text, 120), kind, FACT_LOCATION_LABELS[location])
            for kind, text, location in listed_facts
        ],
        "unnamed": len(facts.facts) - len(listed_facts) if facts else 0,
    }


def _make_strategy_row(replay: Replay, strategy: StrategyResult) -> tuple[str, ...]:
    calls_text = f"{len(strategy.calls):,}" + (
        "" if strategy.refused_call is None else ", then refused"
    )
    return (
        strategy.label,
        calls_text,
        f"{strategy.peak:,}",
        f"{strategy.mean:,.0f}",
        f"{strategy.read:,}",
        f"{strategy.written:,}",
        f"{strategy.uncached:,}",
        format_dollars(strategy.input_cost),
        format_dollars(strategy.cost),
        "–"
        if strategy is replay.everthread
        else format_share(replay.share_saved_against(strategy)),
    )


def _make_fact_rows(facts: FactCounts, truncated: FactCounts | None) -> list[tuple[str, ...]]:
    """Return a row for each kind of fact: in the context, found by a search, lost, left by truncation."""
    rows = []
    for kind, counts in facts.kinds.items():
        styled_counts = zip(("kept", "found-part", "lost"), counts, strict=True)
        segments = [Segment(style, f"{count:,}", count) for style, count in styled_counts if count]
        chart_bar = draw_bar(segments, sum(counts), f"{counts[0]} of {sum(counts)} in the context")
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


def _make_context_chart(replay: Replay, number: int) -> Chart:
    strategies = [strategy for strategy in replay.strategies if strategy.name != "uncached"]
    lines = [
        Line(
            strategy.label,
            LINE_STYLES[strategy.name],
            [call.use.prompt for call in strategy.calls],
        )
        for strategy in strategies
    ]
    marks = [
        Mark(
            compaction.call,
            f"compaction before call {compaction.call + 1}: "
            f"{compaction.tokens_before:,} to {compaction.tokens_after:,} tokens",
        )
        for compaction in replay.compactions
    ]
    text = (
        f"Tokens of each request. Ours has at most {replay.everthread.peak:,} of a window of {replay.window:,} and is "
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


def _make_cost_chart(strategies: Sequence[StrategyResult], number: int) -> Chart:
    priced_strategies = [strategy for strategy in strategies if strategy.cost is not None]
    lines = [
        Line(
            strategy.label,
            LINE_STYLES[strategy.name],
            [*accumulate(float(call.cost or 0) for call in strategy.calls)],
        )
        for strategy in priced_strategies
    ]
    text = "Dollars spent up to each call. " + " ".join(
        f"{strategy.label}: {format_dollars(strategy.cost)}." for strategy in priced_strategies
    )
    return Chart(f"cost-{number}", "Cost so far", text, "$", lines)


def _make_cache_chart(replay: Replay, number: int) -> Chart:
    calls = replay.everthread.calls
    lines = make_cache_lines(
        read=[call.use.read for call in calls],
        written=[call.use.write for call in calls],
        uncached=[call.use.input for call in calls],
    )
    marks = [
        Mark(index, f"cache miss before call {index + 1}: {call.miss}", "miss")
        for index, call in enumerate(calls)
        if call.missed_tokens
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
