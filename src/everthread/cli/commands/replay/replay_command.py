"""`everthread replay FILE…` and `--latest`: play recorded conversations again and print what they cost and kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.commands.replay.played_logs import PlayedLog, play_logs
from everthread.cli.commands.replay.replay_tables import print_played_logs
from everthread.cli.commands.replay.threshold_comparison import compare_thresholds, parse_thresholds
from everthread.cli.output import explain_write_errors, print_json, print_text
from everthread.cli.shared_options import WindowOption, number_option
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.config import Config
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
    number_option(help_text="Seconds before each message of the user, if the log has no times."),
]
StepOption = Annotated[
    float,
    number_option(help_text="Seconds before each tool result, if the log has no times."),
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
    str | None, typer.Option(metavar="FILE", help="Write a page with charts to this file.")
]
UncachedOption = Annotated[
    bool,
    typer.Option(
        "--uncached",
        help="Also show the way without compaction and without caching.",
    ),
]
CallsJsonOption = Annotated[
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
    as_json: CallsJsonOption = False,
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
        options = replace(options, compact_when_idle=False)
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
        compare_thresholds(logs, shares, economics_values, options, as_json=as_json, **arguments)
        return
    played_logs = play_logs(logs, options, with_idle=idle, **arguments)
    if html is not None:
        _write_page(html, played_logs, show_uncached=uncached)
    if as_json:
        print_json({"replays": [played_log.as_dict() for played_log in played_logs]})
        return
    print_played_logs(played_logs, show_uncached=uncached)
    if html is not None:
        print_text(f"The page with the charts: {html}")


def _choose_files(files: list[str] | None, *, latest: bool) -> list[str]:
    """Return the given files, or else the newest session on this machine."""
    from everthread.lab.importers.find_logs import find_latest_logs

    if latest and files:
        raise InputError("give files or --latest, not both")
    if not latest and not files:
        raise InputError("give a file, or --latest for the newest session on this machine")
    return files or find_latest_logs()


def _write_page(file: str, played_logs: Sequence[PlayedLog], *, show_uncached: bool) -> None:
    from everthread.lab.replay.report import render_report

    replays = [played_log.replay for played_log in played_logs]
    verdicts = [played_log.verdict for played_log in played_logs]
    command = f"everthread {shlex.join(sys.argv[1:])}"
    date = f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    page = render_report(replays, verdicts, command=command, date=date, show_uncached=show_uncached)
    with explain_write_errors(file):
        Path(file).write_text(page, "utf-8")


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
        options = replace(options, threshold=threshold, threshold_tokens=None, models={})
    if economics is not None:
        options = replace(options, economics=economics)
    if ttl is not None:
        if ttl not in ("5m", "1h"):
            raise InputError(f"--ttl {ttl!r} is not allowed; it must be 5m or 1h")
        options = replace(options, cache_ttl=ttl)
    if recall is not None:
        options = replace(options, recall=replace(options.recall, enabled=recall))
    return options
