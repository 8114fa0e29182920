"""Print replays: ways, compactions, cache misses and facts kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everthread.cli.commands.replay.played_logs import PlayedLog, compare_idle_compaction
from everthread.cli.output import print_text
from everthread.cli.tables import print_table
from everthread.core.costs.prices import format_dollars
from everthread.core.text import count_noun

if TYPE_CHECKING:
    from everthread.lab.replay.result import Replay, StrategyResult


def print_played_logs(played_logs: Sequence[PlayedLog], *, show_uncached: bool) -> None:
    for played_log in played_logs:
        for line in played_log.verdict:
            print_text(line)
        _print_replay(played_log.replay, show_uncached=show_uncached)
    for played_log in played_logs:
        if played_log.idle_replay is not None:
            figures = compare_idle_compaction(played_log.replay, played_log.idle_replay)
            print_text(_describe_idle_compaction(played_log.replay, figures))
    if len(played_logs) > 1:
        _print_sums(
            [played_log.replay for played_log in played_logs],
            show_uncached=show_uncached,
        )


def _describe_idle_compaction(replayed: Replay, figures: dict[str, Any]) -> str:
    compactions = count_noun(figures["idle_compactions"], "compaction")
    return (
        f"{Path(replayed.source).name}: with idle compaction {format_dollars(figures['dollars'])} "
        f"instead of {format_dollars(figures['dollars_without'])} "
        f"(saves {format_dollars(figures['saved'])}), {compactions} before the cache expired, "
        f"mean context {figures['mean_context']:,} instead of "
        f"{figures['mean_context_without']:,} tokens."
    )


STRATEGY_COLUMNS = (
    "way",
    "calls>",
    "peak>",
    "mean>",
    "cache read>",
    "written>",
    "uncached>",
    "input>",
    "in all>",
    "we save>",
)


def _print_replay(result: Replay, *, show_uncached: bool) -> None:
    everthread = result.everthread
    strategies = [
        strategy for strategy in result.strategies if show_uncached or strategy.name != "uncached"
    ]
    calls = count_noun(len(everthread.calls), "call")
    name = Path(result.source).name
    title = f"{name}: {calls}, {result.model}, window {result.window:,}, compaction from {result.threshold:,}"
    print_table(
        f"{title}, {result.engine}",
        STRATEGY_COLUMNS,
        [_make_strategy_row(result, strategy) for strategy in strategies],
    )
    saved = result.share_saved_by_caching()
    if show_uncached and saved is not None:
        print_text(
            f"Caching alone (system_and_3, no compaction) saves {saved:.1%} of the input's cost against no caching."
        )
    if result.recorded_cost is not None:
        print_text(f"The log itself states ${result.recorded_cost:,.2f} for these calls.")
    for strategy in strategies:
        if strategy.refused_call is not None:
            print_text(
                f"{strategy.label}: call {strategy.refused_call + 1:,} did not fit into the window; "
                "the conversation ended there."
            )
    _print_compactions(result)
    _print_misses(everthread)
    _print_facts(result)
    for note in result.notes:
        print_text(f"Note: {note}")
    times = "from the log" if result.times_from == "log" else result.times_from
    print_text(f"Replayed in {result.seconds:.1f} s; times of calls: {times}.")


def _print_compactions(result: Replay) -> None:
    print_table(
        "Compactions" if result.compactions else "Compactions: none",
        [
            "before call>",
            "why",
            "tokens before>",
            "after>",
            "messages before>",
            "after>",
        ],
        [
            (
                compaction.call + 1,
                compaction.reason,
                compaction.tokens_before,
                compaction.tokens_after,
                compaction.messages_before,
                compaction.messages_after,
            )
            for compaction in result.compactions
        ],
    )


def _print_misses(strategy: StrategyResult) -> None:
    misses = [
        (
            cause,
            count,
            sum(call.missed_tokens for call in strategy.calls if call.miss == cause),
        )
        for cause, count in strategy.misses.most_common()
    ]
    print_table("Cache misses", ["cause", "calls>", "tokens>"], misses)


def _make_strategy_row(result: Replay, strategy: StrategyResult) -> tuple[object, ...]:
    saved = None if strategy is result.everthread else result.share_saved_against(strategy)
    return (
        strategy.label,
        f"{len(strategy.calls):,}" + ("" if strategy.refused_call is None else " ✗"),
        strategy.peak,
        round(strategy.mean_prompt_tokens),
        strategy.read,
        strategy.written,
        strategy.uncached,
        format_dollars(strategy.input_cost),
        format_dollars(strategy.cost),
        "" if saved is None else _format_saving(result, strategy, saved),
    )


def _format_saving(result: Replay, strategy: StrategyResult, saved: float) -> str:
    """Format the saving. If one of the two strategies ended early, add the number of calls that were compared."""
    count = result.count_shared_calls(strategy)
    covers_all_calls = count == len(strategy.calls) == len(result.everthread.calls)
    return f"{saved:.1%}" if covers_all_calls else f"{saved:.1%} in {count:,} calls"


def _print_facts(result: Replay) -> None:
    facts = result.everthread.facts
    if facts is None or not facts.total:
        return
    truncated = result.strategy("truncated").facts
    rows = [
        (
            kind,
            sum(kind_counts[:2]),
            *kind_counts,
            truncated.kinds[kind][0] if truncated else "",
        )
        for kind, kind_counts in facts.kinds.items()
    ]
    kept_count = facts.retained + facts.recoverable
    rows.append(
        (
            "in all",
            kept_count,
            facts.retained,
            facts.recoverable,
            facts.lost,
            truncated.retained if truncated else "",
        )
    )
    headings = [
        "what was said",
        "kept>",
        "in the context>",
        "by recall>",
        "lost>",
        "kept by truncation>",
    ]
    print_table("Facts at the end", headings, rows)


def _print_sums(results: list[Replay], *, show_uncached: bool) -> None:
    from everthread.lab.replay.result import sum_costs

    names = [
        (strategy.name, strategy.label)
        for strategy in results[0].strategies
        if show_uncached or strategy.name != "uncached"
    ]
    rows = [
        (
            label,
            sum(len(replayed.strategy(name).calls) for replayed in results),
            format_dollars(sum_costs(replayed.strategy(name).cost for replayed in results)),
        )
        for name, label in names
    ]
    print_table(f"All {len(results)} conversations", ["way", "calls>", "in all>"], rows)
