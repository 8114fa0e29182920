"""`everthread tune`: propose a threshold for each model, from replays of the user's own sessions."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import print_json, print_text
from everthread.cli.progress import show_progress
from everthread.cli.shared_options import JsonOption, number_option
from everthread.cli.tables import print_table
from everthread.cli.times import UNIT_SECONDS
from everthread.core.costs.prices import format_dollars
from everthread.core.text import count_noun
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.lab.importers.log import Log
    from everthread.lab.threshold_search import TriedThreshold, Tuning

COLUMNS = (
    "threshold",
    "in tokens>",
    "dollars>",
    "mean context>",
    "compactions>",
    "facts in the context>",
)
LogsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOG", help="Logs. Default: the sessions on this machine."),
]
LastOption = Annotated[
    str,
    typer.Option(metavar="30d", help="Without LOG: only sessions this recent (h, d, w)."),
]
MostOption = Annotated[
    int,
    number_option(minimum=1, help_text="Without LOG: at most this many sessions, the newest."),
]
ApplyOption = Annotated[
    bool,
    typer.Option(
        "--apply",
        help="Write the proposed thresholds to the configuration, for each model.",
    ),
]


def tune(
    logs: LogsArgument = None,
    last: LastOption = "30d",
    most: MostOption = 10,
    apply: ApplyOption = False,
    as_json: JsonOption = False,
) -> None:
    """Propose a threshold for each model, from replays of your own sessions.

    The proposal is the cheapest threshold that keeps nearly as much in the context as the configured threshold does.
    """
    from everthread.config import load_config
    from everthread.factory.conversations import make_session_options
    from everthread.lab.threshold_search import TRIED_SHARES, tune_thresholds

    recordings = _read_logs(logs, last, most)
    finished_count = 0
    with show_progress(len(recordings) * (len(TRIED_SHARES) + 1)) as start_piece:

        def report_finished(source: str) -> None:
            nonlocal finished_count
            report_step = start_piece(finished_count, source)
            report_step(1, 1)
            finished_count += 1

        tunings = tune_thresholds(
            recordings, make_session_options(load_config()), progress=report_finished
        )
    if as_json:
        print_json({"models": [_tuning_as_json(tuning) for tuning in tunings]})
    else:
        for tuning in tunings:
            _print_tuning(tuning)
        _print_skipped(recordings)
    if apply:
        _write_thresholds(tunings)
    elif not as_json and any(
        tuning.proposed and not tuning.proposed.is_current for tuning in tunings
    ):
        print_text("`everthread tune --apply` writes these thresholds to the configuration.")


def _read_logs(files: list[str] | None, max_age: str, limit: int) -> list[Log]:
    from everthread.lab.importers.find_logs import find_latest_logs
    from everthread.lab.importers.read_logs import read_log

    if files:
        return [read_log(file) for file in files]
    match = re.fullmatch(r"(\d{1,5})([hdw])", max_age)
    if match is None:
        raise InputError(
            f"--last {max_age!r} is not allowed; give a number with h, d or w, such as 30d"
        )
    start_time = time.time() - int(match[1]) * UNIT_SECONDS[match[2]]
    return [read_log(file) for file in find_latest_logs(limit=limit, since=start_time)]


def _print_tuning(tuning: Tuning) -> None:
    sessions_text = count_noun(tuning.sessions, "session")
    title = f"{tuning.model}: {sessions_text}, {count_noun(tuning.calls, 'call')}, window {tuning.window:,}"
    print_table(title, COLUMNS, [_format_trial(trial, tuning) for trial in tuning.tried])
    proposed = tuning.proposed
    if proposed is None:
        print_text("The model has no price in the table: nothing is proposed.")
    elif proposed.is_current:
        print_text("The configured threshold is the best of these.")
    else:
        dollars_text = f"{format_dollars(proposed.dollars)} instead of {format_dollars(tuning.current.dollars)}"
        print_text(
            f"Proposed: {proposed.share:.0%} of the window ({proposed.tokens:,} tokens): {dollars_text}."
        )


def _print_skipped(recordings: list[Log]) -> None:
    logs_without_model = [log for log in recordings if not log.model]
    if logs_without_model:
        sessions_text = count_noun(len(logs_without_model), "session")
        print_text(f"Skipped: {sessions_text} without the name of a model.")


def _format_trial(trial: TriedThreshold, tuning: Tuning) -> list[object]:
    name = f"{trial.share:.0%}"
    if trial.is_current:
        name += " (configured)"
    elif trial is tuning.proposed:
        name += " (proposed)"
    return [
        name,
        trial.tokens,
        format_dollars(trial.dollars),
        trial.mean_context,
        trial.compactions,
        f"{trial.in_context:.0%}",
    ]


def _tuning_as_json(tuning: Tuning) -> dict[str, Any]:
    values = asdict(tuning)
    for trial in (*values["tried"], values["proposed"]):
        if trial is not None and trial["dollars"] is not None:
            trial["dollars"] = round(float(trial["dollars"]), 4)
    return values


def _write_thresholds(tunings: list[Tuning]) -> None:
    """Write the proposed thresholds; everything else in the file stays."""
    from everthread.config import config_path, load_config
    from everthread.config.file_edits import set_keys

    configuration = load_config().model_dump(exclude_unset=True)
    configured_models = configuration.get("compression", {}).get("models", {})
    values: dict[tuple[str, ...], Any] = {}
    for tuning in tunings:
        if tuning.proposed is not None and not tuning.proposed.is_current:
            thresholds = {
                "threshold": round(tuning.proposed.share, 2),
                "threshold_tokens": tuning.proposed.tokens,
            }
            values["compression", "models", tuning.model] = {
                **configured_models.get(tuning.model, {}),
                **thresholds,
            }
    if not values or not set_keys(config_path(), values):
        print_text("The configuration is unchanged.")
        return
    print_text(f"Written to {config_path()}: compression.models.")
