"""`everthread sessions export|import`: whole threads as lines of JSON, and back."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.family import threads
from everthread.cli.output import counted, json_text, print_json, short, size, visible
from everthread.cli.running import AsJson, StoreUrl, Tenant, with_store
from everthread.errors import EverthreadError, InputError, TranscriptError

if TYPE_CHECKING:
    from everthread.store.store import Store

Write = Callable[[str], int]


def export(
    session_ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Sessions' ids, or how they begin.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every thread.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="A new file. Default: standard output.")
    ] = None,
    tenant: Tenant = None,
    store: StoreUrl = None,
) -> None:
    """Write threads and their subagents' as JSON lines: everything, word for word, credentials in it included."""
    if every == bool(session_ids):
        raise InputError("give the ids of what to export, or --all")

    async def work(opened: Store) -> list[str]:
        wanted = await _wanted(opened, session_ids, tenant)
        for thread in wanted:
            write("".join(f"{json_text(line)}\n" for line in await opened.export(thread)))
        return wanted

    with _target(output) as write:
        exported = with_store(store, work)
    if output is not None:
        typer.echo(f"{counted(len(exported), 'thread')}, {size(Path(output).stat().st_size)}: {visible(output)}")


async def _wanted(store: Store, session_ids: list[str] | None, tenant: str | None) -> list[str]:
    """Each thread once, before its subagents."""
    if session_ids:
        roots = [(await store.resolve(prefix, tenant=tenant)).thread for prefix in session_ids]
    else:
        roots = (await threads(store, tenant))[::-1]
    families = [[root, *(await store.subagents(root))] for root in roots]
    return list(dict.fromkeys(thread for family in families for thread in family))


@contextmanager
def _target(file: str | None) -> Iterator[Write]:
    """Where lines go: standard output, or a new file that only the user may read and that is there whole or not."""
    if file is None:
        yield lambda text: sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    try:
        target = os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8")
    except FileExistsError as error:
        raise InputError(f"{file}: exists already; name a file that does not") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be written: {error.strerror or error}") from error
    try:
        with target:
            yield target.write
    except BaseException as error:
        path.unlink()
        if isinstance(error, OSError):
            raise EverthreadError(f"{file}: cannot be written: {error.strerror or error}") from error
        raise


def import_(
    file: Annotated[str, typer.Argument(help="What `sessions export` wrote, or `-` for standard input.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Store exported threads. Either all of a file is imported, or nothing."""
    source = "standard input" if file == "-" else file
    lines = _read_lines(file, source)

    async def work(opened: Store) -> list[str]:
        return await opened.import_lines(lines)

    try:
        imported = with_store(store, work, create=True)
    except TranscriptError as error:
        raise TranscriptError(f"{source}: {error}; nothing was imported") from error
    if as_json:
        print_json({"threads": imported})
    else:
        typer.echo(f"{counted(len(imported), 'thread')} imported: {', '.join(map(short, imported))}")


def _read_lines(file: str, source: str) -> list[dict[str, Any]]:
    try:
        text = (sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()).decode("utf-8-sig")
    except OSError as error:
        raise TranscriptError(f"{source}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{source}: is not UTF-8 text (byte {error.start})") from error
    if not text.strip():
        raise TranscriptError(f"{source}: is empty")
    return [_line(source, number, line) for number, line in enumerate(text.rstrip().split("\n"), 1)]


def _line(source: str, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{source}: line {number} is not JSON: {error}; nothing was imported") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise TranscriptError(f"{source}: line {number} is no line of an export; nothing was imported")
    return value
