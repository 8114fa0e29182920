"""Render replays as one self-contained HTML page with figures, charts and tables."""

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
from everthread.core.text import count_noun
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
from everthread.gateway.dashboard.page_text import clean, format_share, one_line_excerpt
from everthread.gateway.dashboard.summary_lines import split_summary
from everthread.lab.replay.result import (
    FactCounts,
    FactLocation,
    PlayedCompaction,
    Replay,
    StrategyResult,
    sum_costs,
)
from everthread.thread.policy.compaction_reason import describe_reason

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
    """Render one HTML page. `verdicts` has the sentences for each replay, in the same order."""
    sections = []
    for number, replay in enumerate(replays, 1):
        section = _make_section(replay, number, show_uncached=show_uncached)
        verdict = verdicts[number - 1] if verdicts else ()
        section["verdict"] = [clean(line) for line in verdict]
        sections.append(section)
    return _render_page(
        "report.html",
        title="Replay" if len(replays) == 1 else f"{len(replays)} replays",
        command=clean(command),
        date=date,
        script=_read_static("charts.js"),
        overview=[_make_overview_row(replay) for replay in replays] if len(replays) > 1 else [],
        lead=_make_headline(replays),
        replays=sections,
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
        rows=[[_format_cell(cell) for cell in row] for row in rows],
    )


def _format_cell(cell: object) -> str:
    return clean(f"{cell:,}" if isinstance(cell, int) else str(cell))


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


def _name_recording(replay: Replay) -> str:
    """Return the file name of a recording, without its folder."""
    return clean(Path(replay.source).name)


def _make_overview_row(replay: Replay) -> tuple[str, ...]:
    facts = replay.everthread.facts
    retained_text = "\u2013"
    if facts is not None and facts.total:
        retained_text = format_share(facts.retained / facts.total)
    cached_strategy = replay.strategy("cached")
    return (
        _name_recording(replay),
        f"{len(replay.everthread.calls):,}",
        f"{replay.everthread.peak:,}",
        f"{len(replay.compactions):,}",
        format_dollars(replay.everthread.cost),
        format_share(replay.share_saved_against(cached_strategy)),
        "" if cached_strategy.refused_call is None else "yes",
        retained_text,
    )


def _make_headline(replays: Sequence[Replay]) -> list[Figure]:
    """Return the large figures about calls beyond the window, kept facts, and dollars."""
    shared_count = 0
    our_costs = []
    caching_costs = []
    for replay in replays:
        cached_strategy = replay.strategy("cached")
        call_count_of_replay = replay.count_shared_calls(cached_strategy)
        shared_count += call_count_of_replay
        our_costs.append(replay.everthread.cost_of_first(call_count_of_replay))
        caching_costs.append(cached_strategy.cost_of_first(call_count_of_replay))
    call_count = sum(len(replay.everthread.calls) for replay in replays)
    call_count_beyond_window = call_count - shared_count
    compactions_text = count_noun(sum(len(replay.compactions) for replay in replays), "compaction")
    peak = max(replay.everthread.peak for replay in replays)
    peak_text = f"{compactions_text}, prompts of at most {peak:,} tokens"
    if call_count_beyond_window:
        detail = f"of {call_count:,} in all; {peak_text}"
        lead_figure = Figure(
            count_noun(call_count_beyond_window, "call"), "beyond the window", detail
        )
    else:
        lead_figure = Figure(count_noun(call_count, "call"), "within the window", peak_text)
    spent_dollars = sum_costs(replay.everthread.cost for replay in replays)
    price_note = "" if spent_dollars else "the model has no price in the table"
    return [
        replace(lead_figure, is_lead=True),
        *_make_facts_figure(replays),
        Figure(format_dollars(spent_dollars), "in all", price_note),
        *_make_saving_figure(sum_costs(our_costs), sum_costs(caching_costs), shared_count),
    ]


def _make_facts_figure(replays: Sequence[Replay]) -> list[Figure]:
    """Return a figure with the share of the facts that was kept; no figure if no facts were looked for."""
    fact_counts = [replay.everthread.facts or FactCounts() for replay in replays]
    fact_count = sum(facts.total for facts in fact_counts)
    if not fact_count:
        return []
    context_share = sum(facts.retained for facts in fact_counts) / fact_count
    recalled_share = sum(facts.recoverable for facts in fact_counts) / fact_count
    detail = f"{format_share(context_share)} in the last prompt, {format_share(recalled_share)} more by recall"
    return [
        Figure(
            format_share(context_share + recalled_share),
            f"of {fact_count:,} facts kept",
            detail,
        )
    ]


def _make_saving_figure(
    our_cost: Decimal | None, caching_cost: Decimal | None, call_count: int
) -> list[Figure]:
    """Return a figure with the dollars that were saved or paid more; no figure without prices."""
    if our_cost is None or not caching_cost:
        return []
    if our_cost > caching_cost:
        label = f"more, {format_share(float(our_cost / caching_cost - 1))}"
        preposition = "than"
    else:
        label = f"saved, {format_share(float(1 - our_cost / caching_cost))}"
        preposition = "of"
    calls_text = f"the same {count_noun(call_count, 'call')} with caching alone"
    detail = f"{preposition} {format_dollars(caching_cost)} for {calls_text}"
    return [Figure(format_dollars(abs(caching_cost - our_cost)), label, detail)]


def _make_section(replay: Replay, number: int, *, show_uncached: bool) -> dict[str, Any]:
    """Return the template's values for one replay."""
    strategies = [
        strategy for strategy in replay.strategies if show_uncached or strategy.name != "uncached"
    ]
    facts = replay.everthread.facts or FactCounts()
    # Facts that left the context come first: a reader wants to check those.
    listed_facts = sorted(facts.facts, key=lambda fact: -fact[2])[:MAX_FACTS]
    fact_rows = []
    if facts.total:
        fact_rows = _make_fact_rows(facts, replay.strategy("truncated").facts)
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
        "compactions": [_make_compaction_row(compaction) for compaction in replay.compactions],
        "misses": _make_miss_rows(replay.everthread),
        "facts": fact_rows,
        "named": [
            (one_line_excerpt(text, 120), kind, FACT_LOCATION_LABELS[location])
            for kind, text, location in listed_facts
        ],
        "unnamed": facts.total - len(listed_facts),
    }


def _make_compaction_row(compaction: PlayedCompaction) -> tuple[str, ...]:
    return (
        f"before call {compaction.call + 1:,}",
        describe_reason(compaction.reason),
        f"{compaction.tokens_before:,} \u2192 {compaction.tokens_after:,}",
        f"{compaction.messages_before:,} \u2192 {compaction.messages_after:,}",
        compaction.author,
    )


def _make_miss_rows(strategy: StrategyResult) -> list[tuple[str, ...]]:
    """Return a row for each cause of a cache miss, with its calls and the tokens that they did not read."""
    rows: list[tuple[str, ...]] = []
    for cause, call_count in strategy.misses.most_common():
        tokens = sum(call.missed_tokens for call in strategy.calls if call.miss == cause)
        rows.append((cause, f"{call_count:,}", f"{tokens:,}"))
    return rows


def _make_strategy_row(replay: Replay, strategy: StrategyResult) -> tuple[str, ...]:
    calls_text = f"{len(strategy.calls):,}"
    if strategy.refused_call is not None:
        calls_text += ", then refused"
    share_text = "–"
    if strategy is not replay.everthread:
        share_text = format_share(replay.share_saved_against(strategy))
    return (
        strategy.label,
        calls_text,
        f"{strategy.peak:,}",
        f"{strategy.mean_prompt_tokens:,.0f}",
        f"{strategy.read:,}",
        f"{strategy.written:,}",
        f"{strategy.uncached:,}",
        format_dollars(strategy.input_cost),
        format_dollars(strategy.cost),
        share_text,
    )


def _make_fact_rows(facts: FactCounts, truncated_facts: FactCounts | None) -> list[tuple[str, ...]]:
    """Return a row for each kind of fact with its counts by location, and the count that truncation left."""
    rows = []
    for kind, counts in facts.kinds.items():
        styled_counts = zip(("kept", "found-part", "lost"), counts, strict=True)
        segments = [Segment(style, f"{count:,}", count) for style, count in styled_counts if count]
        chart_bar = draw_bar(segments, sum(counts), f"{counts[0]} of {sum(counts)} in the context")
        truncated_count = truncated_facts.kinds[kind][0] if truncated_facts else 0
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
    lines = []
    for strategy in strategies:
        prompt_sizes = [call.use.prompt for call in strategy.calls]
        lines.append(Line(strategy.label, LINE_STYLES[strategy.name], prompt_sizes))
    marks = []
    for compaction in replay.compactions:
        sizes = f"{compaction.tokens_before:,} to {compaction.tokens_after:,} tokens"
        mark_text = f"compaction before call {compaction.call + 1}: {sizes}"
        marks.append(Mark(compaction.call, mark_text))
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
    lines = []
    sentences = ["Dollars spent up to each call."]
    for strategy in strategies:
        if strategy.cost is None:
            continue
        sums = list(accumulate(float(call.cost or 0) for call in strategy.calls))
        lines.append(Line(strategy.label, LINE_STYLES[strategy.name], sums))
        sentences.append(f"{strategy.label}: {format_dollars(strategy.cost)}.")
    return Chart(f"cost-{number}", "Cost so far", " ".join(sentences), "$", lines)


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
