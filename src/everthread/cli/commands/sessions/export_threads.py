"""`everthread sessions export`: write threads to files."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize

from everthread.cli.output import encode_json, print_notes, print_text
from everthread.cli.shared_options import StoreOption, TenantOption
from everthread.cli.store_access import with_store
from everthread.core.text import count_noun
from everthread.errors import EverthreadError, InputError, StoreDamagedError

if TYPE_CHECKING:
    from everthread.store.store import Store


def export_threads(
    session_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Sessions' ids or their first characters."),
    ] = None,
    export_all: Annotated[bool, typer.Option("--all", help="Every thread.")] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            metavar="FILE",
            help="A new file. Default: standard output.",
        ),
    ] = None,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
) -> None:
    """Write threads and their subagents' as JSON lines: everything, word for word, credentials in it included."""
    if export_all == bool(session_ids):
        raise InputError("give the ids of what to export, or --all")

    unreadable: list[str] = []

    async def write_threads(store: Store) -> list[str]:
        threads = await _find_threads_to_export(store, session_ids, tenant)
        for thread in threads:
            try:
                lines = await store.export(thread)
            except StoreDamagedError:
                lines, unreadable_items = await store.salvage(thread)
                unreadable.extend(unreadable_items)
            write("".join(f"{encode_json(line)}\n" for line in lines))
        return threads

    with _open_target(output) as write:
        exported = with_store(store_url, write_threads)
    if output is not None:
        print_text(
            f"{count_noun(len(exported), 'thread')}, {filesize.decimal(Path(output).stat().st_size)}: {output}"
        )
    if unreadable:
        print_notes(unreadable, "cannot be read")
        items = count_noun(len(unreadable), "item")
        typer.echo(
            f"The store is damaged: {items} could not be read, all else was written.",
            err=True,
        )
        raise typer.Exit(1)


async def _find_threads_to_export(
    store: Store, session_ids: list[str] | None, tenant: str | None
) -> list[str]:
    """Return each thread once, before its subagents."""
    if session_ids:
        roots = [(await store.resolve(prefix, tenant=tenant)).thread for prefix in session_ids]
    else:
        roots = (await list_thread_ids(store, tenant))[::-1]
    threads: dict[str, None] = {}
    for root in roots:
        threads |= dict.fromkeys([root, *(await store.subagents(root))])
    return list(threads)


SESSIONS_PER_QUERY = 2_000


async def list_thread_ids(store: Store, tenant: str | None) -> list[str]:
    """Return every thread's id, the newest first. Sorted by start: a thread in use must not move between pages."""
    threads: dict[str, None] = {}
    offset = 0
    while page := await store.list_sessions(tenant=tenant, limit=SESSIONS_PER_QUERY, offset=offset):
        threads |= dict.fromkeys(session.thread for session in page)
        offset += len(page)
    return list(threads)


@contextmanager
def _open_target(file: str | None) -> Iterator[Callable[[str], int]]:
    """Write to standard output, or to a new file readable by the user alone, which is removed after a failure."""
    if file is None:
        yield lambda text: sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
        return
    path = Path(file)
    try:
        target = os.fdopen(
            os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600),
            "w",
            encoding="utf-8",
        )
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
            raise EverthreadError(
                f"{file}: cannot be written: {error.strerror or error}"
            ) from error
        raise
