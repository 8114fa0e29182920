"""Print the strategies, compactions, cache misses and kept facts of replays."""

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


def _describe_idle_compaction(replay: Replay, figures: dict[str, Any]) -> str:
    compactions_text = count_noun(figures["idle_compactions"], "compaction")
    return (
        f"{Path(replay.source).name}: with idle compaction {format_dollars(figures['dollars'])} "
        f"instead of {format_dollars(figures['dollars_without'])} "
        f"(saves {format_dollars(figures['saved'])}), {compactions_text} before the cache expired, "
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


def _print_replay(replay: Replay, *, show_uncached: bool) -> None:
    everthread = replay.everthread
    strategies = [
        strategy for strategy in replay.strategies if show_uncached or strategy.name != "uncached"
    ]
    calls_text = count_noun(len(everthread.calls), "call")
    name = Path(replay.source).name
    title = f"{name}: {calls_text}, {replay.model}, window {replay.window:,}, compaction from {replay.threshold:,}"
    print_table(
        f"{title}, {replay.engine}",
        STRATEGY_COLUMNS,
        [_make_strategy_row(replay, strategy) for strategy in strategies],
    )
    share = replay.share_saved_by_caching()
    if show_uncached and share is not None:
        print_text(
            f"Caching alone (system_and_3, no compaction) saves {share:.1%} of the input's cost against no caching."
        )
    if replay.recorded_cost is not None:
        print_text(f"The log itself states ${replay.recorded_cost:,.2f} for these calls.")
    for strategy in strategies:
        if strategy.refused_call is not None:
            print_text(
                f"{strategy.label}: call {strategy.refused_call + 1:,} did not fit into the window; "
                "the conversation ended there."
            )
    _print_compactions(replay)
    _print_misses(everthread)
    _print_facts(replay)
    for note in replay.notes:
        print_text(f"Note: {note}")
    times_text = "from the log" if replay.times_from == "log" else replay.times_from
    print_text(f"Replayed in {replay.seconds:.1f} s; times of calls: {times_text}.")


def _print_compactions(replay: Replay) -> None:
    print_table(
        "Compactions" if replay.compactions else "Compactions: none",
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
            for compaction in replay.compactions
        ],
    )


def _print_misses(strategy: StrategyResult) -> None:
    rows = [
        (
            cause,
            call_count,
            sum(call.missed_tokens for call in strategy.calls if call.miss == cause),
        )
        for cause, call_count in strategy.misses.most_common()
    ]
    print_table("Cache misses", ["cause", "calls>", "tokens>"], rows)


def _make_strategy_row(replay: Replay, strategy: StrategyResult) -> tuple[object, ...]:
    saved_share = None if strategy is replay.everthread else replay.share_saved_against(strategy)
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
        "" if saved_share is None else _format_saving(replay, strategy, saved_share),
    )


def _format_saving(replay: Replay, strategy: StrategyResult, saved_share: float) -> str:
    """Format the saving. If one of the two strategies ended early, add how many calls were compared."""
    shared_count = replay.count_shared_calls(strategy)
    covers_all_calls = shared_count == len(strategy.calls) == len(replay.everthread.calls)
    return (
        f"{saved_share:.1%}" if covers_all_calls else f"{saved_share:.1%} in {shared_count:,} calls"
    )


def _print_facts(replay: Replay) -> None:
    facts = replay.everthread.facts
    if facts is None or not facts.total:
        return
    truncated_facts = replay.strategy("truncated").facts
    rows = [
        (
            kind,
            sum(kind_counts[:2]),
            *kind_counts,
            truncated_facts.kinds[kind][0] if truncated_facts else "",
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
            truncated_facts.retained if truncated_facts else "",
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


def _print_sums(replays: list[Replay], *, show_uncached: bool) -> None:
    from everthread.lab.replay.result import sum_costs

    names = [
        (strategy.name, strategy.label)
        for strategy in replays[0].strategies
        if show_uncached or strategy.name != "uncached"
    ]
    rows = [
        (
            label,
            sum(len(replay.strategy(name).calls) for replay in replays),
            format_dollars(sum_costs(replay.strategy(name).cost for replay in replays)),
        )
        for name, label in names
    ]
    print_table(f"All {len(replays)} conversations", ["way", "calls>", "in all>"], rows)
