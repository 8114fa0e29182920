"""Options and arguments that several commands share, and what they mean: the store, a thread, a window, a time."""

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
"""More than a database counts."""


def number_option(*, text: str, least: float = 0, most: float = LARGEST, metavar: str = "N") -> Any:
    """An option that is a number within bounds; a refusal tells the bounds, the help does not have to."""

    def check(value: float | None) -> float | None:
        if value is not None and not least <= value <= most:
            bounds = f"of at least {least:,}" if most == LARGEST else f"from {least:,} to {most:,}"
            raise typer.BadParameter(f"a number {bounds} is needed, not {value}")
        return value

    return typer.Option(metavar=metavar, callback=check, help=text)


Limit = Annotated[int, number_option(least=1, most=100_000, text="Show at most so many.")]
Offset = Annotated[int, number_option(text="Leave out so many first.")]
SessionId = Annotated[str, typer.Argument(metavar="ID", help="A session's id, or how it begins.")]


def store_address(url: str | None) -> str:
    """The store a command works on: the one it was given, or the configured one."""
    from everthread import factory

    return url or factory.store_url(load_config())


def with_store(
    url: str | None, work: Callable[[Store], Awaitable[T]], *, create: bool = False, or_empty: bool = False
) -> T:
    """What `work` makes of the store at `url`, or of the configured one. Commands print afterwards.

    `create`: the store is made if there is none. `or_empty`: who never said where conversations are kept, and has none
    yet, is shown an empty store, not an error; it is gone afterwards.
    """
    from everthread import factory

    try:
        store = factory.open_store(store_address(url), create=create)
    except NoStoreError:
        if not or_empty or url or load_config().store.url:
            raise
        with tempfile.TemporaryDirectory(prefix="everthread-") as folder:
            return _worked(factory.open_store(Path(folder) / factory.STORE_FILE), work)
    return _worked(store, work)


def _worked(store: Store, work: Callable[[Store], Awaitable[T]]) -> T:
    async def run() -> T:
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except UnicodeEncodeError as error:
        raise InputError(f"what was given is no valid text: {error.object!r}") from error


def end_signal() -> asyncio.Event:
    """What Ctrl-C or a request to end sets, in the running loop."""
    enough = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, enough.set)
    return enough


PLATFORM = "terminal"
"""Where these sessions come from, as accounts have it."""
NO_ID = "?"
"""What `--resume` means where no id follows it. No id looks like this."""

Resume = Annotated[
    str | None,
    typer.Option("--resume", "-r", metavar="[ID]", help="Go on with a thread; without an id, with one of the last."),
]
Continue = Annotated[bool, typer.Option("--continue", "-c", help="Go on with the thread that was used last.")]
Model = Annotated[str | None, typer.Option("--model", "-m", help="The model's name. Default: the configured one.")]
BaseUrl = Annotated[
    str | None,
    typer.Option("--base-url", metavar="URL", help="Where the model's API is, such as http://localhost:8000/v1."),
]
Workspace = Annotated[str, typer.Option("--workspace", "-w", help="Where its tools work.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Allow every command and every write, unasked.")]


def with_base_url(config: Config, base_url: str | None) -> Config:
    """The configuration with another address of the model; who serves it follows from that."""
    if base_url is None:
        return config
    from everthread.config import parse_config

    given = parse_config(f"model: {{base_url: {json.dumps(base_url)}}}", source="--base-url").model.base_url
    own = config.model.model_copy(update={"base_url": given, "provider": "auto"})
    return config.model_copy(update={"model": own})


class ResumeCommand(TyperCommand):
    """A command whose `--resume` may stand without an id."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_ids(args))


def with_ids(args: list[str]) -> list[str]:
    """The arguments with a stand-in for the id where none follows."""
    given: list[str] = []
    for at, word in enumerate(args):
        given.append(word)
        if word == "--":
            return [*given, *args[at + 1 :]]
        if word in ("--resume", "-r") and (at + 1 == len(args) or args[at + 1].startswith("-")):
            given.append(NO_ID)
    return given


async def recent(store: Store, count: int) -> list[ThreadRow]:
    """Threads in which something was said, the last used first; those of subagents are no threads of a person."""
    rows = await store.list_threads(limit=4 * count)
    return [row for row in rows if row.first.kind != "subagent" and row.messages][:count]


async def latest(store: Store) -> str:
    """The thread that was used last."""
    found = await recent(store, 1)
    if not found:
        raise InputError("there is no thread to go on with yet; leave --continue and --resume out")
    return found[0].first.id


DEFAULT_WINDOW = 128_000


def window_or_default(asked: int | None) -> tuple[int, str]:
    """The window and where it comes from: the option, the configuration, or the default."""
    if asked is not None:
        return asked, "option"
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


def moment(seconds: float) -> datetime | None:
    """The local time; None for what no calendar holds."""
    try:
        return datetime.fromtimestamp(seconds, tz=UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return None


def iso(seconds: float | None) -> str | None:
    """The local time with its distance from UTC, for programs."""
    at = None if seconds is None else moment(seconds)
    return None if at is None else at.isoformat(timespec="milliseconds")


def ago(seconds: float, now: float) -> str:
    """How long ago, up to a month; then the day. A clock that is a minute ahead is no reason to say so."""
    passed = now - seconds
    if not -MINUTE < passed < RELATIVE_DAYS * DAY:
        at = moment(seconds)
        return "unknown" if at is None else f"{at:%Y-%m-%d}"
    if passed < MINUTE:
        return "just now"
    size, unit = next((size, unit) for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")) if passed >= size)
    return f"{passed // size:.0f} {unit} ago"


def duration(seconds: float) -> str:
    """`1.4 s`, `2 min 5 s`, `3 h 20 min`."""
    if seconds < MINUTE:
        return f"{seconds:.1f} s"
    big, small, names = (HOUR, MINUTE, ("h", "min")) if seconds >= HOUR else (MINUTE, 1, ("min", "s"))
    whole, rest = divmod(seconds, big)
    return f"{whole:.0f} {names[0]} {rest // small:.0f} {names[1]}"


def read_time(text: str | None, now: float) -> float | None:
    """The moment a person means: `2026-01-31`, `2026-01-31T14:30`, or `7d`, `12h`, `30m` for so long ago."""
    if text is None:
        return None
    relative = _AGO.fullmatch(text.strip().lower())
    if relative:
        return now - int(relative[1]) * UNITS[relative[2]]
    try:
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise InputError(
            f"{text!r} is no time: give a date (2026-01-31), a time (2026-01-31T14:30), or how long ago (7d, 12h, 30m)"
        ) from error
