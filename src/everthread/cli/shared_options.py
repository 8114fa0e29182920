"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from everthread.config import load_config

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Another store: a URL or a SQLite file. Default: the configured one.",
    ),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only what belongs to this tenant.")]
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


Limit = Annotated[int, number_option(minimum=1, maximum=100_000, help_text="Show at most N.")]
Offset = Annotated[int, number_option(help_text="Skip the first N.")]
SessionId = Annotated[
    str, typer.Argument(metavar="ID", help="A session's id or its first characters.")
]
Port = Annotated[
    int, number_option(maximum=65535, help_text="Where to listen; 0 finds a free one.")
]
LogFile = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="Write a JSON line there for each request and compaction.",
    ),
]
UpstreamUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="NAME=URL",
        help="A provider, instead of the configured ones; `local`: the small model here. Repeatable.",
    ),
]
GatewayMode = Annotated[
    Literal["managed", "observe", "off"] | None,
    typer.Option(
        "--mode",
        metavar="MODE",
        help="Instead of the configured mode: `managed` compacts, `observe` only records, `off` does neither.",
    ),
]

DEFAULT_WINDOW = 128_000
MIN_WINDOW = 1_000
"""A smaller window holds no conversation."""


WindowOption = Annotated[
    int | None,
    number_option(minimum=MIN_WINDOW, help_text="The model's window, in tokens."),
]
CountingModel = Annotated[
    str | None,
    typer.Option("--model", help="Count as this model does. Default: the one in the file."),
]


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
