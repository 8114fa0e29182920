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
    """Parse shares of the window from per cent, such as `15,25,30`."""
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
    """Print a table with the cost, the size of the context and the facts kept for each threshold.

    `economics_values` say whether to weigh a compaction in dollars or to do it at the threshold. Models without a price
    use only the threshold.
    """
    replays_by_trial = _replay_at_thresholds(
        logs, shares, economics_values, options=options, **arguments
    )
    rows: list[dict[str, Any]] = [
        {
            "threshold": share,
            "economics": economics,
            "tokens": sorted({replay.threshold for replay in trial_replays}),
        }
        | _sum_figures(trial_replays)
        for (share, economics), trial_replays in sorted(
            replays_by_trial.items(), key=lambda item: item[0]
        )
    ]
    trial_replays = replays_by_trial[shares[0], economics_values[0]]
    windows = sorted({replay.window for replay in trial_replays})
    if as_json:
        print_json({"windows": windows, "thresholds": rows})
        return
    models = ", ".join(dict.fromkeys(replay.model for replay in trial_replays))
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
    """Replay the same conversations at each threshold, both fixed and weighed."""
    from everthread.lab.replay import replay as play

    replays_by_trial: dict[tuple[float, bool], list[Replay]] = {}
    with show_progress(len(logs) * len(shares) * len(economics_values)) as start_piece:
        for number, (economics, share, log) in enumerate(product(economics_values, shares, logs)):
            fixed_threshold_replays = replays_by_trial.get((share, False))
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
            report_step = start_piece(
                number, f"{log.source} at {_format_row_name(share, economics)}"
            )
            replay = play(
                log,
                options=trial_options,
                with_baselines=False,
                with_facts=True,
                progress=report_step,
                **arguments,
            )
            replays_by_trial.setdefault((share, economics), []).append(replay)
    return replays_by_trial


def _format_row_name(share: float, is_weighed: bool) -> str:
    return f"{share:.0%}, {'weighed' if is_weighed else 'fixed'}"


def _sum_figures(replays: Sequence[Replay]) -> dict[str, float | None]:
    from everthread.lab.replay.result import sum_costs

    strategies = [replay.everthread for replay in replays]
    cost = sum_costs(strategy.cost for strategy in strategies)
    prompt_sizes = [call.use.prompt for strategy in strategies for call in strategy.calls]
    fact_counts = [strategy.facts for strategy in strategies if strategy.facts is not None]
    fact_count = max(sum(counts.total for counts in fact_counts), 1)
    shares = {"in_context": "retained", "by_recall": "recoverable", "lost": "lost"}
    return {
        "dollars": None if cost is None else round(float(cost), 4),
        "mean_context": round(sum(prompt_sizes) / max(len(prompt_sizes), 1)),
        "peak": max(prompt_sizes, default=0),
        "compactions": sum(len(replay.compactions) for replay in replays),
    } | {
        name: round(sum(getattr(counts, field) for counts in fact_counts) / fact_count, 4)
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
