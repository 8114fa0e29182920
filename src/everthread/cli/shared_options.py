"""Options and arguments that several commands share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from everthread.config import load_config

if TYPE_CHECKING:
    from everthread.config import Config


StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Another store: a URL or a SQLite file. Default: the configured one.",
    ),
]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Only what belongs to this tenant.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MAX_NUMBER = 2**62
"""Maximum of a number option; a database cannot store much larger numbers."""


def number_option(
    *,
    help_text: str,
    minimum: float = 0,
    maximum: float = MAX_NUMBER,
    metavar: str = "N",
) -> Any:
    """Return an option that takes a number within bounds. The error names the bounds."""

    def check(value: float | None) -> float | None:
        if value is not None and not minimum <= value <= maximum:
            bounds = (
                f"of at least {minimum:,}"
                if maximum == MAX_NUMBER
                else f"from {minimum:,} to {maximum:,}"
            )
            raise typer.BadParameter(f"a number {bounds} is needed, not {value}")
        return value

    return typer.Option(metavar=metavar, callback=check, help=help_text)


Limit = Annotated[
    int, number_option(minimum=1, maximum=100_000, help_text="Show at most N.")
]
Offset = Annotated[int, number_option(help_text="Skip the first N.")]
SessionId = Annotated[
    str, typer.Argument(metavar="ID", help="A session's id or its first characters.")
]


PLATFORM = "terminal"
"""The platform of these sessions in usage and insights."""
RESUME_WITHOUT_ID = "?"
"""The value of `--resume` without an id. No real id looks like this."""

ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        "-r",
        metavar="[ID]",
        help="Continue a thread; without an id, one of the last.",
    ),
]
ContinueOption = Annotated[
    bool,
    typer.Option("--continue", "-c", help="Continue the thread that was used last."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", help="The model's name. Default: the configured one."
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="Where the model's API is, such as http://localhost:8000/v1.",
    ),
]
Workspace = Annotated[
    str, typer.Option("--workspace", "-w", help="Where its tools work.")
]
YesOption = Annotated[
    bool,
    typer.Option(
        "--yes", "-y", help="Allow every command and every write without asking."
    ),
]


def with_base_url(config: Config, base_url: str | None) -> Config:
    """Return the configuration with another address of the model; the address determines the provider."""
    if base_url is None:
        return config
    from everthread.config import parse_config

    checked_url = parse_config(
        f"model: {{base_url: {json.dumps(base_url)}}}", source="--base-url"
    ).model.base_url
    model = config.model.model_copy(
        update={"base_url": checked_url, "provider": "auto"}
    )
    return config.model_copy(update={"model": model})


class ResumeCommand(TyperCommand):
    """A command whose `--resume` may be given without an id. Typer has no option with an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, fill_missing_ids(args))


def fill_missing_ids(args: list[str]) -> list[str]:
    """Insert `RESUME_WITHOUT_ID` after every `--resume` that no id follows."""
    result: list[str] = []
    for index, argument in enumerate(args):
        result.append(argument)
        if argument == "--":
            return [*result, *args[index + 1 :]]
        if argument in ("--resume", "-r") and (
            index + 1 == len(args) or args[index + 1].startswith("-")
        ):
            result.append(RESUME_WITHOUT_ID)
    return result


DEFAULT_WINDOW = 128_000
MIN_WINDOW = 1_000
"""A smaller window holds no conversation."""


def resolve_window_option(option: int | None) -> tuple[int, str]:
    """Return the window and its source: the option, the configuration, or the default."""
    if option is not None:
        return option, "option"
    configured = load_config().model.context_length
    return (configured, "configuration") if configured else (DEFAULT_WINDOW, "default")


SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="From then on: 2026-01-31, 2026-01-31T14:30, or 7d, 12h, 30m ago.",
    ),
]
UntilOption = Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")]
