"""Options and arguments that several commands share, and how they are read: the store, a thread, a window, a time."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from everthread.config import load_config
from everthread.errors import InputError, NoStoreError

if TYPE_CHECKING:
    from everthread.config import Config
    from everthread.store.models import ThreadRow
    from everthread.store.store import Store


T = TypeVar("T")

StoreUrl = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="Another store: a URL or a SQLite file. Default: the configured one."),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only what belongs to this tenant.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LARGEST = 2**62
"""Near the largest number a database holds."""


def number_option(*, text: str, least: float = 0, most: float = LARGEST, metavar: str = "N") -> Any:
    """An option that is a number within bounds. The error names the bounds."""

    def check(value: float | None) -> float | None:
        if value is not None and not least <= value <= most:
            bounds = f"of at least {least:,}" if most == LARGEST else f"from {least:,} to {most:,}"
            raise typer.BadParameter(f"a number {bounds} is needed, not {value}")
        return value

    return typer.Option(metavar=metavar, callback=check, help=text)


Limit = Annotated[int, number_option(least=1, most=100_000, text="Show at most N.")]
Offset = Annotated[int, number_option(text="Skip the first N.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="A session's id or its first characters.")]


def store_address(url: str | None) -> str:
    """The address of the store: the given one, or the configured one."""
    from everthread import factory

    return url or factory.store_url(load_config())


def with_store(
    url: str | None, work: Callable[[Store], Awaitable[T]], *, create: bool = False, or_empty: bool = False
) -> T:
    """Run `work` on the store at `url`, or on the configured one; return its result.

    `create`: make the store if there is none. `or_empty`: where no store is configured and none exists yet, use an
    empty temporary one instead of an error.
    """
    from everthread import factory

    try:
        store = factory.open_store(store_address(url), create=create)
    except NoStoreError:
        if not or_empty or url or load_config().store.url:
            raise
        with tempfile.TemporaryDirectory(prefix="everthread-") as folder:
            return _run_and_close(factory.open_store(Path(folder) / factory.STORE_FILE), work)
    return _run_and_close(store, work)


def _run_and_close(store: Store, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except UnicodeEncodeError as error:
        raise InputError(f"the argument is not valid text: {error.object!r}") from error


def watch_end_signals() -> asyncio.Event:
    """An event that Ctrl-C and SIGTERM set, in the running loop."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


PLATFORM = "terminal"
"""The platform of these sessions in usage and insights."""
NO_ID = "?"
"""The value of `--resume` without an id. No real id looks like this."""

Resume = Annotated[
    str | None,
    typer.Option("--resume", "-r", metavar="[ID]", help="Continue a thread; without an id, one of the last."),
]
Continue = Annotated[bool, typer.Option("--continue", "-c", help="Continue the thread that was used last.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="The model's name. Default: the configured one.")]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="Where the model's API is, such as http://localhost:8000/v1."),
]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Where its tools work.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Allow every command and every write without asking.")]


def with_base_url(config: Config, base_url: str | None) -> Config:
    """The configuration with another address of the model; the provider follows from the address."""
    if base_url is None:
        return config
    from everthread.config import parse_config

    checked = parse_config(f"model: {{base_url: {json.dumps(base_url)}}}", source="--base-url").model.base_url
    model = config.model.model_copy(update={"base_url": checked, "provider": "auto"})
    return config.model_copy(update={"model": model})


class ResumeCommand(TyperCommand):
    """A command whose `--resume` may be given without an id. Typer has no option with an optional value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, fill_missing_ids(args))


def fill_missing_ids(args: list[str]) -> list[str]:
    """Insert `NO_ID` after every `--resume` that no id follows."""
    filled: list[str] = []
    for at, word in enumerate(args):
        filled.append(word)
        if word == "--":
            return [*filled, *args[at + 1 :]]
        if word in ("--resume", "-r") and (at + 1 == len(args) or args[at + 1].startswith("-")):
            filled.append(NO_ID)
    return filled


async def list_recent_threads(store: Store, count: int) -> list[ThreadRow]:
    """Threads that hold messages, the last used first, without those of subagents."""
    rows = await store.list_threads(limit=4 * count)
    return [row for row in rows if row.first.kind != "subagent" and row.messages][:count]


async def find_latest_thread(store: Store) -> str:
    """The id of the thread that was used last."""
    rows = await list_recent_threads(store, 1)
    if not rows:
        raise InputError("there is no thread to continue yet; leave --continue and --resume out")
    return rows[0].first.id


DEFAULT_WINDOW = 128_000


def resolve_window_option(option: int | None) -> tuple[int, str]:
    """The window and its source: the option, the configuration, or the default."""
    if option is not None:
        return option, "option"
    configured = load_config().model.context_length
    return (configured, "configuration") if configured else (DEFAULT_WINDOW, "default")


Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="From then on: 2026-01-31, 2026-01-31T14:30, or 7d, 12h, 30m ago.")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")]

MINUTE, HOUR, DAY = 60, 3_600, 86_400
UNITS = {"s": 1, "m": MINUTE, "min": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
RELATIVE_DAYS = 30

_AGO = re.compile(r"(\d{1,6}) ?(s|m|min|h|d|w)")


def local_time(seconds: float) -> datetime | None:
    """The local time; None where no calendar has that date."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def format_iso(seconds: float | None) -> str | None:
    """Format the local time with its UTC offset, for programs."""
    at = None if seconds is None else local_time(seconds)
    return None if at is None else at.isoformat(timespec="milliseconds")


def format_age(seconds: float, now: float) -> str:
    """Format how long ago, up to a month; then the day. A clock may be a minute ahead."""
    age = now - seconds
    if not -MINUTE < age < RELATIVE_DAYS * DAY:
        at = local_time(seconds)
        return "unknown" if at is None else f"{at:%Y-%m-%d}"
    if age < MINUTE:
        return "just now"
    size, unit = next((size, unit) for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")) if age >= size)
    return f"{age // size:.0f} {unit} ago"


def parse_time(text: str | None, now: float) -> float | None:
    """Read a time: `2026-01-31`, `2026-01-31T14:30`, or `7d`, `12h`, `30m` for so long ago."""
    if text is None:
        return None
    relative = _AGO.fullmatch(text.strip().lower())
    if relative:
        return now - int(relative[1]) * UNITS[relative[2]]
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"{text!r} is not a time: give a date (2026-01-31), a time (2026-01-31T14:30), or an age (7d, 12h, 30m)"
        ) from error
