"""`everthread continue LOG --in codex|claude`: continue a session of one agent in another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import JsonOption, number_option


def continue_(
    log: Annotated[
        str,
        typer.Argument(help="A log of any agent; `latest` is the newest on this machine."),
    ],
    client: Annotated[
        str,
        typer.Option("--in", metavar="AGENT", help="The agent to continue in: codex or claude."),
    ],
    folder: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="The project's folder. Default: the current one."),
    ] = None,
    window: Annotated[
        int,
        number_option(minimum=8_000, help_text="The window of the other agent's model, in tokens."),
    ] = 200_000,
    as_json: JsonOption = False,
) -> None:
    """Continue a session of one agent in another: write its compacted context as a log of the other.

    The log of the first agent is not changed. No model is asked.
    """
    from everthread.lab.handover import hand_over
    from everthread.lab.importers.find_logs import find_latest_logs
    from everthread.lab.importers.read_logs import read_log

    source = find_latest_logs()[0] if log == "latest" else log
    handover = hand_over(
        read_log(source), client, window=window, folder=Path(folder) if folder else None
    )
    if as_json:
        print_json(
            {
                "file": str(handover.file),
                "command": handover.command,
                "messages": handover.message_count,
                "tokens": handover.token_count,
            }
        )
        return
    size_text = f"{handover.message_count:,} messages, {handover.token_count:,} tokens"
    print_text(f"Written for {handover.client}: {size_text}, {handover.file}")
    print_text(f"Continue with: {handover.command}")
