"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer

from everthread.config import load_config
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.gateway.contracts import Mode
    from everthread.gateway.router import Upstream

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Another store: a URL or a SQLite file. Default: the configured one.",
    ),
]
TenantOption = Annotated[
    str | None, typer.Option("--tenant", help="Only the threads of this tenant.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
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
            bounds = f"from {minimum:,} to {maximum:,}"
            if maximum == MAX_NUMBER:
                bounds = f"of at least {minimum:,}"
            raise typer.BadParameter(f"a number {bounds} is needed, not {value}")
        return value

    return typer.Option(metavar=metavar, callback=check, help=help_text)


LimitOption = Annotated[int, number_option(minimum=1, maximum=100_000, help_text="Show at most N.")]
OffsetOption = Annotated[int, number_option(help_text="Skip the first N.")]
SessionArgument = Annotated[
    str, typer.Argument(metavar="ID", help="A session's id or its first characters.")
]
PortOption = Annotated[
    int, number_option(maximum=65535, help_text="The port to listen on; 0 finds a free one.")
]
LogFileOption = Annotated[
    Path | None,
    typer.Option(
        "--log",
        metavar="FILE",
        help="Write a JSON line to this file for each request and compaction.",
    ),
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="NAME=URL",
        help="A provider, instead of the configured ones; `local`: the small model here. Repeatable.",
    ),
]
ModeOption = Annotated[
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
CountingModelOption = Annotated[
    str | None,
    typer.Option(
        "--model", help="Count with this model's tokenizer. Default: the model named in the file."
    ),
]


def resolve_window_option(option: int | None) -> tuple[int, str]:
    """Return the window and its source: the option, the configuration, or the default."""
    if option is not None:
        return option, "option"
    configured = load_config().model.context_length
    if configured:
        return configured, "configuration"
    return DEFAULT_WINDOW, "default"


SinceOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Start of the period: 2026-01-31, 2026-01-31T14:30, or 7d, 12h, 30m ago.",
    ),
]
UntilOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="End of the period, written alike.")
]


def parse_upstream(text: str, mode: Mode) -> Upstream:
    """Read `NAME=URL` of the command line. The upstream gets the clients' own keys."""
    from everthread.factory.upstreams import is_local
    from everthread.gateway.router import Upstream

    name, _, url = text.partition("=")
    if is_local(url or name):
        return Upstream(name.partition(":")[0], url or name, mode=mode)
    parts = urlsplit(url)
    if not name or parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
        raise InputError(
            "--upstream is not NAME=URL, such as vllm=http://127.0.0.1:8000/v1, without a password in it"
        )
    if "anthropic" in name.lower():
        return Upstream(name, url, ("claude-*",), "anthropic", mode=mode)
    return Upstream(name, url, mode=mode)
