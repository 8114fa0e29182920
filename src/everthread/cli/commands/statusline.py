"""`everthread statusline`: one line about the context, for the status command of any client."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import JsonOption
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.lab.status import ContextStatus

STATUS_LINE_SETTING = {"type": "command", "command": "everthread statusline"}


def statusline(
    log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A log. Default: the session named on standard input, or the newest.",
        ),
    ] = None,
    install: Annotated[
        bool,
        typer.Option("--install", help="Set it as Claude Code's status line, after asking."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --install: do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print one line about a session: context used, threshold, cache, dollars.

    Claude Code calls it with a JSON object on standard input. Without one, the newest log on this machine is read.
    """
    if install:
        _install(ask_first=not yes)
        return
    status = _read_status(log)
    if as_json:
        print_json(asdict(status))
    else:
        typer.echo(status.as_line())


def _read_status(file: str | None) -> ContextStatus:
    from everthread.config import load_config
    from everthread.lab.importers.find_logs import find_latest_logs
    from everthread.lab.importers.read_logs import read_log
    from everthread.lab.status import read_client_status, read_log_status

    config = load_config()
    hook_input = _read_input() if file is None else {}
    client_status = read_client_status(hook_input, config)
    if client_status is not None:
        return client_status
    transcript = hook_input.get("transcript_path")
    if file is None and isinstance(transcript, str) and Path(transcript).is_file():
        file = transcript
    return read_log_status(read_log(file or find_latest_logs()[0]), config)


def _read_input() -> dict[str, Any]:
    """Return the JSON object on standard input; empty if there is none."""
    if sys.stdin is None or sys.stdin.isatty():
        return {}
    try:
        value = json.load(sys.stdin)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _install(*, ask_first: bool) -> None:
    """Set the status line in Claude Code's settings. Everything else in the file stays."""
    file = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude") / "settings.json"
    try:
        settings = json.loads(file.read_text("utf-8")) if file.exists() else {}
    except ValueError as error:
        raise InputError(f"{file}: is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise InputError(f"{file}: is not an object")
    if settings.get("statusLine") == STATUS_LINE_SETTING:
        print_text(f"{file} has it already.")
        return
    replaced_text = (
        f" instead of {json.dumps(settings['statusLine'])}" if "statusLine" in settings else ""
    )
    if ask_first and not typer.confirm(f"Set Everthread's status line in {file}{replaced_text}?"):
        print_text("Nothing was changed.")
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({**settings, "statusLine": STATUS_LINE_SETTING}, indent=2) + "\n",
        "utf-8",
    )
    print_text(f"Set in {file}.")
