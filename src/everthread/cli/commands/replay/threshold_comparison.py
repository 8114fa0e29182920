"""`everthread replay --thresholds`: replay the same conversations at several thresholds and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from everthread.cli.output import print_json, print_text
from everthread.cli.progress import show_progress
from everthread.cli.tables import print_table
from everthread.core.costs.prices import format_dollars
from everthread.core.text import count_noun
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.lab.importers.log import Log
    from everthread.lab.replay.result import Replay
    from everthread.thread.options import SessionOptions


def parse_thresholds(text: str) -> list[float]:
    """Read shares of the window in per cent: `15,25,30`."""
    try:
        shares = sorted({float(percent) / 100 for percent in text.split(",")})
    except ValueError:
        shares = [0.0]
    if not all(0.05 <= share <= 0.95 for share in shares):
        raise InputError(
            f"--thresholds {text!r} is not allowed; give per cent from 5 to 95, such as 15,30,50"
        )
    return shares


THRESHOLD_COLUMNS = (
    "threshold",
    "in tokens>",
    "dollars>",
    "mean context>",
    "peak>",
    "compactions>",
    "in context>",
    "by recall>",
    "lost>",
)


def compare_thresholds(
    logs: Sequence[Log],
    shares: Sequence[float],
    economics_values: Sequence[bool],
    options: SessionOptions,
    *,
    as_json: bool,
    **arguments: Any,
) -> None:
    """Print a table with a row for each threshold: cost, size of the context, facts kept.

    `economics_values`: whether to weigh a compaction in dollars or do it at the threshold; unpriced models use only the
    threshold.
    """
    replays = _replay_at_thresholds(logs, shares, economics_values, options=options, **arguments)
    rows: list[dict[str, Any]] = [
        {
            "threshold": share,
            "economics": economics,
            "tokens": sorted({replayed.threshold for replayed in played}),
        }
        | _sum_figures(played)
        for (share, economics), played in sorted(replays.items(), key=lambda item: item[0])
    ]
    played = replays[shares[0], economics_values[0]]
    windows = sorted({replayed.window for replayed in played})
    if as_json:
        print_json({"windows": windows, "thresholds": rows})
        return
    models = ", ".join(dict.fromkeys(replayed.model for replayed in played))
    sizes = " and ".join(f"{size:,}" for size in windows)
    print_table(
        f"{count_noun(len(logs), 'conversation')}, {models}, window {sizes}",
        THRESHOLD_COLUMNS,
        [_format_row(row) for row in rows],
    )
    print_text(
        "Thresholds are in per cent of the window. Fixed: compacted at the threshold. Weighed: when it pays, from half "
        "the threshold on if the cache is cold, and at the end of a turn if it is warm."
    )
    print_text(
        "Where each of the user's messages, files, commands, errors and ids is at the end: in the context, found by a "
        "search, or lost. Summaries are written without a model here; a model's would cost its own tokens."
    )


def _replay_at_thresholds(
    logs: Sequence[Log],
    shares: Sequence[float],
    economics_values: Sequence[bool],
    *,
    options: SessionOptions,
    **arguments: Any,
) -> dict[tuple[float, bool], list[Replay]]:
    """Replay the same conversations at each threshold, fixed and weighed."""
    from everthread.lab.replay import replay as play

    replays: dict[tuple[float, bool], list[Replay]] = {}
    with show_progress(len(logs) * len(shares) * len(economics_values)) as progress:
        for number, (economics, share, log) in enumerate(product(economics_values, shares, logs)):
            fixed_threshold_replays = replays.get((share, False))
            if (
                economics
                and fixed_threshold_replays
                and all(
                    fixed_replay.everthread.cost is None for fixed_replay in fixed_threshold_replays
                )
            ):
                continue
            trial_options = replace(
                options,
                threshold=share,
                threshold_tokens=None,
                models={},
                economics=economics,
            )
            report_step = progress(number, f"{log.source} at {_format_row_name(share, economics)}")
            replayed = play(
                log,
                options=trial_options,
                with_baselines=False,
                with_facts=True,
                progress=report_step,
                **arguments,
            )
            replays.setdefault((share, economics), []).append(replayed)
    return replays


def _format_row_name(share: float, is_weighed: bool) -> str:
    return f"{share:.0%}, {'weighed' if is_weighed else 'fixed'}"


def _sum_figures(replays: Sequence[Replay]) -> dict[str, float | None]:
    from everthread.lab.replay.result import sum_costs

    strategies = [counts.everthread for counts in replays]
    cost = sum_costs(strategy.cost for strategy in strategies)
    prompts = [call.use.prompt for strategy in strategies for call in strategy.calls]
    facts = [strategy.facts for strategy in strategies if strategy.facts is not None]
    count = max(sum(counts.total for counts in facts), 1)
    shares = {"in_context": "retained", "by_recall": "recoverable", "lost": "lost"}
    return {
        "dollars": None if cost is None else round(float(cost), 4),
        "mean_context": round(sum(prompts) / max(len(prompts), 1)),
        "peak": max(prompts, default=0),
        "compactions": sum(len(counts.compactions) for counts in replays),
    } | {
        name: round(sum(getattr(counts, field) for counts in facts) / count, 4)
        for name, field in shares.items()
    }


def _format_row(row: dict[str, Any]) -> list[object]:
    figures = (row["mean_context"], row["peak"], row["compactions"])
    shares = (f"{row[name]:.1%}" for name in ("in_context", "by_recall", "lost"))
    tokens = ", ".join(f"{size:,}" for size in row["tokens"])
    return [
        _format_row_name(row["threshold"], row["economics"]),
        tokens,
        format_dollars(row["dollars"]),
        *figures,
        *shares,
    ]
