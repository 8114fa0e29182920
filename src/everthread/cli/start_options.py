"""The options that `chat` and `run` share."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from everthread.cli.usable_model import choose_model
from everthread.config import Config, load_config, parse_config
from everthread.errors import InputError

RESUME_WITHOUT_ID = "?"
"""The value of `--resume` without an id. No real id looks like this."""


ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        "-r",
        metavar="[ID]",
        help="Continue a thread; without an id, a recent one.",
    ),
]
ContinueOption = Annotated[
    bool,
    typer.Option("--continue", "-c", help="Continue the thread that was used last."),
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="The model's name. Default: the configured one."),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="Address of the model's API, such as http://localhost:8000/v1.",
    ),
]
WorkspaceOption = Annotated[
    str, typer.Option("--workspace", "-w", help="The folder in which its tools work.")
]
YesOption = Annotated[
    bool,
    typer.Option("--yes", "-y", help="Allow every command and every write without asking."),
]


def with_base_url(config: Config, base_url: str | None) -> Config:
    """Return the configuration with another address of the model, which also determines the provider."""
    if base_url is None:
        return config
    checked_url = parse_config(
        f"model: {{base_url: {json.dumps(base_url)}}}", source="--base-url"
    ).model.base_url
    model = config.model.model_copy(update={"base_url": checked_url, "provider": "auto"})
    return config.model_copy(update={"model": model})


class ResumeCommand(TyperCommand):
    """A command whose `--resume` may be given without an id. Typer has no option with an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, fill_missing_ids(args))


def fill_missing_ids(args: list[str]) -> list[str]:
    """Insert `RESUME_WITHOUT_ID` after every `--resume` that no id follows."""
    filled_args: list[str] = []
    for index, argument in enumerate(args):
        filled_args.append(argument)
        if argument == "--":
            return [*filled_args, *args[index + 1 :]]
        if argument in ("--resume", "-r") and (
            index + 1 == len(args) or args[index + 1].startswith("-")
        ):
            filled_args.append(RESUME_WITHOUT_ID)
    return filled_args


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options that `chat` and `run` share."""

    config: Config
    model: str | None
    thread_id: str | None
    workspace: Path
    can_ask: bool
    """Whether questions can be put to a person."""
    resume_options: str
    """Options that a later command needs to reach the same server."""


def read_start_options(
    *,
    model: str | None,
    base_url: str | None,
    resume: str | None,
    continue_: bool,
    workspace: str,
    can_ask: bool,
) -> StartOptions:
    """Check the options. Without a thread to resume, also choose the model."""
    directory = Path(workspace).expanduser().resolve()
    if not directory.is_dir():
        raise InputError(f"--workspace {workspace}: there is no such directory")
    config = with_base_url(load_config(), base_url)
    thread_id = RESUME_WITHOUT_ID if continue_ and resume is None else resume
    model = model if thread_id else choose_model(config, model, can_ask=can_ask)
    resume_options = "" if base_url is None else f" --base-url {shlex.quote(base_url)}"
    return StartOptions(
        config,
        model,
        thread_id=thread_id,
        workspace=directory,
        can_ask=can_ask,
        resume_options=resume_options,
    )
