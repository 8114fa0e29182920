"""`everthread replay FILE…` and `--latest`: play recorded conversations again and print what they cost and kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import print_json, print_table, print_text, show_progress
from everthread.cli.shared_options import number_option
from everthread.cli.threshold_comparison import compare_thresholds, parse_thresholds
from everthread.core.costs.prices import format_dollars
from everthread.core.messages import count_noun
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.config import Config
    from everthread.lab.importers.log import Log
    from everthread.lab.replay.result import Replay, StrategyResult
    from everthread.thread.options import SessionOptions


FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="Conversations: JSON, JSONL, exports, logs of Claude Code, Codex, Copilot CLI, Gemini CLI, pi, "
        "opencode; `-`: standard input.",
    ),
]
LatestOption = Annotated[
    bool,
    typer.Option(
        "--latest",
        help="The newest session of any of these programs on this machine.",
    ),
]
WindowOption = Annotated[
    int | None, number_option(minimum=1_000, help_text="The model's window, in tokens.")
]
ModelOption = Annotated[
    str | None, typer.Option(help="The model's name. Default: the one in the log.")
]
EngineOption = Annotated[
    str | None, typer.Option(help="The context engine. Default: as configured.")
]
ThresholdOption = Annotated[
    float | None,
    number_option(
        minimum=0.05,
        maximum=0.95,
        help_text="Compact from this part of the window on, such as 0.3.",
    ),
]
ThresholdsOption = Annotated[
    str | None,
    typer.Option(
        metavar="15,30,50",
        help="Compare thresholds, in per cent of the window, fixed and weighed: dollars, context, kept.",
    ),
]
EconomicsOption = Annotated[
    bool | None,
    typer.Option(
        "--economics/--no-economics",
        help="Weigh in dollars when to compact. Default: as configured.",
    ),
]
TtlOption = Annotated[
    str | None,
    typer.Option(
        help="The lifetime of Claude's cache: 5m or 1h. Default: as recorded, else as configured."
    ),
]
PauseOption = Annotated[
    float,
    number_option(
        help_text="Seconds before each message of the user, where the log has no times."
    ),
]
StepOption = Annotated[
    float,
    number_option(
        help_text="Seconds before each tool result, where the log has no times."
    ),
]
RecallOption = Annotated[
    bool | None,
    typer.Option(
        "--recall/--no-recall",
        help="Inject recalled passages. Default: as configured.",
    ),
]
IdleOption = Annotated[
    bool,
    typer.Option(
        "--idle",
        help="Also replay with idle compaction, and show the difference.",
    ),
]
HtmlOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Write a page with charts here.")
]
UncachedOption = Annotated[
    bool,
    typer.Option(
        "--uncached",
        help="Also show the way without compaction and without caching.",
    ),
]
AsJsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON: every call of every way.")
]


def replay(
    files: FilesArgument = None,
    latest: LatestOption = False,
    window: WindowOption = None,
    model: ModelOption = None,
    engine: EngineOption = None,
    threshold: ThresholdOption = None,
    thresholds: ThresholdsOption = None,
    economics: EconomicsOption = None,
    ttl: TtlOption = None,
    pause: PauseOption = 60.0,
    step: StepOption = 15.0,
    recall: RecallOption = None,
    idle: IdleOption = False,
    html: HtmlOption = None,
    uncached: UncachedOption = False,
    as_json: AsJsonOption = False,
) -> None:
    """Replay recorded conversations: context, compactions, cache, cost and facts kept.

    Nothing is sent anywhere: the recorded answers are the model's, the provider's cache and prices are simulated.
    """
    from everthread.config import load_config
    from everthread.lab.importers.read_logs import read_log

    sources = _choose_files(files, latest=latest)
    config = load_config()
    options = _override_options(config, threshold, ttl, recall, economics)
    if idle:
        options = replace(options, idle=False)
    engine_name = engine or config.context.engine
    arguments: dict[str, Any] = {
        "model": model,
        "window": window,
        "engine": engine_name,
        "engine_options": dict(config.engines.get(engine_name, {})),
        "pause": pause,
        "step": step,
        "ttl": ttl,
    }
    shares = parse_thresholds(thresholds) if thresholds is not None else []
    logs = [read_log(file) for file in sources]
    if all((model or log.model) == config.model.default for log in logs):
        arguments["window"] = window or config.model.context_length
    if shares:
        tries_both = economics is None and options.economics
        economics_values = (False, True) if tries_both else (options.economics,)
        compare_thresholds(
            logs, shares, economics_values, options, as_json=as_json, **arguments
        )
        return
    played_logs = _play_logs(logs, options, idle=idle, **arguments)
    if html is not None:
        _write_page(html, played_logs, show_uncached=uncached)
    if as_json:
        print_json({"replays": [played_log.as_dict() for played_log in played_logs]})
        return
    _print_played_logs(played_logs, show_uncached=uncached)
    if html is not None:
        print_text(f"The page with the charts: {html}")


@dataclass(frozen=True, slots=True)
class PlayedLog:
    """The replay of a log, its verdict, and the replay with idle compaction if one was asked for."""

    replay: Replay
    verdict: list[str]
    with_idle: Replay | None

    def as_dict(self) -> dict[str, Any]:
        values = self.replay.as_dict() | {"verdict": self.verdict}
        if self.with_idle is not None:
            values["idle"] = compare_idle_compaction(self.replay, self.with_idle)
        return values


def _play_logs(
    logs: Sequence[Log], options: SessionOptions, *, idle: bool, **arguments: Any
) -> list[PlayedLog]:
    from everthread.lab.replay import replay as play

    idle_options = replace(options, idle=True)
    played_logs = []
    with show_progress(len(logs)) as progress:
        for number, log in enumerate(logs):
            replayed = play(
                log, options=options, progress=progress(number, log.source), **arguments
            )
            with_idle = (
                play(log, options=idle_options, with_baselines=False, **arguments)
                if idle
                else None
            )
            played_logs.append(
                PlayedLog(replayed, _write_verdict(log, replayed), with_idle)
            )
    return played_logs


def _print_played_logs(
    played_logs: Sequence[PlayedLog], *, show_uncached: bool
) -> None:
    for played_log in played_logs:
        for line in played_log.verdict:
            print_text(line)
        _print_replay(played_log.replay, show_uncached=show_uncached)
    for played_log in played_logs:
        if played_log.with_idle is not None:
            figures = compare_idle_compaction(played_log.replay, played_log.with_idle)
            print_text(_describe_idle_compaction(played_log.replay, figures))
    if len(played_logs) > 1:
        _print_sums(
            [played_log.replay for played_log in played_logs],
            show_uncached=show_uncached,
        )


def compare_idle_compaction(without_idle: Replay, with_idle: Replay) -> dict[str, Any]:
    """Return the figures of a replay with idle compaction beside those without."""
    costs = [replayed.everthread.cost for replayed in (without_idle, with_idle)]
    cost_without, cost_with = (
        None if cost is None else round(float(cost), 4) for cost in costs
    )
    return {
        "dollars_without": cost_without,
        "dollars": cost_with,
        "saved": None
        if cost_without is None or cost_with is None
        else round(cost_without - cost_with, 4),
        "idle_compactions": sum(
            replayed.reason == "idle" for replayed in with_idle.compactions
        ),
        "mean_context_without": round(without_idle.everthread.mean),
        "mean_context": round(with_idle.everthread.mean),
    }


def _describe_idle_compaction(replayed: Replay, figures: dict[str, Any]) -> str:
    compactions = count_noun(figures["idle_compactions"], "compaction")
    return (
        f"{Path(replayed.source).name}: with idle compaction {format_dollars(figures['dollars'])} "
        f"instead of {format_dollars(figures['dollars_without'])} "
        f"(saves {format_dollars(figures['saved'])}), {compactions} before the cache expired, "
        f"mean context {figures['mean_context']:,} instead of "
        f"{figures['mean_context_without']:,} tokens."
    )


def _choose_files(files: list[str] | None, *, latest: bool) -> list[str]:
    """Return the files to replay: those given, or the newest session on this machine."""
    from everthread.lab.importers.find_logs import find_latest_logs

    if latest and files:
        raise InputError("give files or --latest, not both")
    if not latest and not files:
        raise InputError(
            "give a file, or --latest for the newest session on this machine"
        )
    return files or find_latest_logs()


def _write_verdict(log: Log, replayed: Replay) -> list[str]:
    from everthread.lab.replay.verdict import write_verdict
    from everthread.lab.summary_comparison import compare_log

    is_readable = any(compaction.summary is not None for compaction in log.compactions)
    return write_verdict(replayed, compare_log(log) if is_readable else None)


def _write_page(
    file: str, played_logs: Sequence[PlayedLog], *, show_uncached: bool
) -> None:
    from everthread.lab.replay.report import render_report

    replays = [played_log.replay for played_log in played_logs]
    verdicts = [played_log.verdict for played_log in played_logs]
    command = f"everthread {shlex.join(sys.argv[1:])}"
    date = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    try:
        Path(file).write_text(
            render_report(
                replays,
                verdicts,
                command=command,
                date=date,
                show_uncached=show_uncached,
            ),
            "utf-8",
        )
    except OSError as error:
        raise InputError(
            f"{file}: cannot be written: {error.strerror or error}"
        ) from error


def _override_options(
    config: Config,
    threshold: float | None,
    ttl: str | None,
    recall: bool | None,
    economics: bool | None,
) -> SessionOptions:
    """Return the configured options, overridden by the options of the command line."""
    from everthread.factory.conversations import make_session_options

    options = make_session_options(config)
    if threshold is not None:
        options = replace(
            options, threshold=threshold, threshold_tokens=None, models={}
        )
    if economics is not None:
        options = replace(options, economics=economics)
    if ttl is not None:
        if ttl not in ("5m", "1h"):
            raise InputError(f"--ttl {ttl!r} is not allowed; it must be 5m or 1h")
        options = replace(options, cache_ttl=ttl)
    return (
        options
        if recall is None
        else replace(options, recall=replace(options.recall, enabled=recall))
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
        strategy
        for strategy in result.strategies
        if show_uncached or strategy.name != "uncached"
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
        print_text(
            f"The log itself states ${result.recorded_cost:,.2f} for these calls."
        )
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
    times = "from the log" if result.time_source == "log" else result.time_source
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
    saved = (
        None if strategy is result.everthread else result.share_saved_against(strategy)
    )
    return (
        strategy.label,
        f"{len(strategy.calls):,}" + ("" if strategy.refused_call is None else " ✗"),
        strategy.peak,
        round(strategy.mean),
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
            format_dollars(
                sum_costs(replayed.strategy(name).cost for replayed in results)
            ),
        )
        for name, label in names
    ]
    print_table(f"All {len(results)} conversations", ["way", "calls>", "in all>"], rows)
