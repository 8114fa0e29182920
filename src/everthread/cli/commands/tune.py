"""`everthread tune`: propose a threshold for each model, from replays of the person's own sessions."""

from __future__ import annotations

import re
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.options import AsJson, number_option
from everthread.cli.output import print_json, print_table, print_text, show_progress
from everthread.core.messages import count_noun
from everthread.core.prices import format_dollars
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
SECONDS = {"h": 3_600, "d": 86_400, "w": 604_800}


LogsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="LOG", help="Logs. Default: the sessions on this machine."),
]
LastOption = Annotated[
    str,
    typer.Option(
        metavar="30d", help="Without LOG: only sessions this recent (h, d, w)."
    ),
]
MostOption = Annotated[
    int,
    number_option(
        minimum=1, help_text="Without LOG: at most this many sessions, the newest."
    ),
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
    as_json: AsJson = False,
) -> None:
    """Propose a threshold for each model, from replays of your own sessions.

    Proposed is the cheapest threshold that keeps nearly as much in the context as the configured one.
    """
    from everthread.config import load_config
    from everthread.factory.conversations import session_options
    from everthread.lab.threshold_search import SHARES, tune_thresholds

    recordings = _read_logs(logs, last, most)
    done = 0
    with show_progress(len(recordings) * (len(SHARES) + 1)) as progress:

        def show(source: str) -> None:
            nonlocal done
            progress(done, source)(1, 1)
            done += 1

        tunings = tune_thresholds(
            recordings, session_options(load_config()), progress=show
        )
    if as_json:
        print_json({"models": [_as_json(tuning) for tuning in tunings]})
    else:
        for tuning in tunings:
            _print_tuning(tuning)
        _print_skipped(recordings)
    if apply:
        _apply(tunings)
    elif not as_json and any(
        tuning.proposed and not tuning.proposed.is_current for tuning in tunings
    ):
        print_text(
            "`everthread tune --apply` writes these thresholds to the configuration."
        )


def _read_logs(files: list[str] | None, last: str, most: int) -> list[Log]:
    from everthread.lab.importers.read_logs import find_latest, read_log

    if files:
        return [read_log(file) for file in files]
    match = re.fullmatch(r"(\d{1,5})([hdw])", last)
    if match is None:
        raise InputError(
            f"--last {last!r} is not allowed; give a number with h, d or w, such as 30d"
        )
    since = time.time() - int(match[1]) * SECONDS[match[2]]
    return [read_log(file) for file in find_latest(limit=most, since=since)]


def _print_tuning(tuning: Tuning) -> None:
    sessions = count_noun(tuning.sessions, "session")
    title = f"{tuning.model}: {sessions}, {count_noun(tuning.calls, 'call')}, window {tuning.window:,}"
    print_table(title, COLUMNS, [_row(one, tuning) for one in tuning.tried])
    proposed = tuning.proposed
    if proposed is None:
        print_text("The model has no price in the table: nothing is proposed.")
    elif proposed.is_current:
        print_text("The configured threshold is the best of these.")
    else:
        dollars = f"{format_dollars(proposed.dollars)} instead of {format_dollars(tuning.current.dollars)}"
        print_text(
            f"Proposed: {proposed.share:.0%} of the window ({proposed.tokens:,} tokens): {dollars}."
        )


def _print_skipped(recordings: list[Log]) -> None:
    unnamed = [log for log in recordings if not log.model]
    if unnamed:
        sessions = count_noun(len(unnamed), "session")
        print_text(f"Skipped: {sessions} without the name of a model.")


def _row(one: TriedThreshold, tuning: Tuning) -> list[object]:
    mark = (
        " (configured)"
        if one.is_current
        else " (proposed)"
        if one is tuning.proposed
        else ""
    )
    return [
        f"{one.share:.0%}{mark}",
        one.tokens,
        format_dollars(one.dollars),
        one.mean_context,
        one.compactions,
        f"{one.in_context:.0%}",
    ]


def _as_json(tuning: Tuning) -> dict[str, Any]:
    values = asdict(tuning)
    for one in (*values["tried"], values["proposed"]):
        if one is not None and one["dollars"] is not None:
            one["dollars"] = round(float(one["dollars"]), 4)
    return values


def _apply(tunings: list[Tuning]) -> None:
    """Write the proposed thresholds; everything else in the file stays."""
    from everthread.config import config_path, load_config
    from everthread.config.file import set_keys

    configured = (
        load_config()
        .model_dump(exclude_unset=True)
        .get("compression", {})
        .get("models", {})
    )
    values: dict[tuple[str, ...], Any] = {}
    for tuning in tunings:
        if tuning.proposed is not None and not tuning.proposed.is_current:
            chosen = {
                "threshold": round(tuning.proposed.share, 2),
                "threshold_tokens": tuning.proposed.tokens,
            }
            values["compression", "models", tuning.model] = {
                **configured.get(tuning.model, {}),
                **chosen,
            }
    if not values or not set_keys(config_path(), values):
        print_text("The configuration is unchanged.")
        return
    print_text(f"Written to {config_path()}: compression.models.")
