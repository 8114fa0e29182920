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

    unreadable_items: list[str] = []

    async def write_threads(store: Store) -> list[str]:
        thread_ids = await _find_thread_ids_to_export(store, session_ids, tenant)
        for thread_id in thread_ids:
            try:
                lines = await store.export(thread_id)
            except StoreDamagedError:
                lines, unreadable_in_thread = await store.salvage(thread_id)
                unreadable_items.extend(unreadable_in_thread)
            write("".join(f"{encode_json(line)}\n" for line in lines))
        return thread_ids

    with _open_target(output) as write:
        exported_ids = with_store(store_url, write_threads)
    if output is not None:
        print_text(
            f"{count_noun(len(exported_ids), 'thread')}, {filesize.decimal(Path(output).stat().st_size)}: {output}"
        )
    if unreadable_items:
        print_notes(unreadable_items, "cannot be read")
        items_text = count_noun(len(unreadable_items), "item")
        typer.echo(
            f"The store is damaged: {items_text} could not be read, all else was written.",
            err=True,
        )
        raise typer.Exit(1)


async def _find_thread_ids_to_export(
    store: Store, session_ids: list[str] | None, tenant: str | None
) -> list[str]:
    """Return the id of each thread once, before those of its subagents."""
    if session_ids:
        root_ids = [(await store.resolve(prefix, tenant=tenant)).thread for prefix in session_ids]
    else:
        root_ids = (await list_thread_ids(store, tenant))[::-1]
    thread_ids: dict[str, None] = {}
    for root_id in root_ids:
        thread_ids |= dict.fromkeys([root_id, *(await store.list_subagents(root_id))])
    return list(thread_ids)


SESSIONS_PER_QUERY = 2_000


async def list_thread_ids(store: Store, tenant: str | None) -> list[str]:
    """Return every thread's id, the last started first, so that a thread in use does not move between pages."""
    thread_ids: dict[str, None] = {}
    offset = 0
    while page := await store.list_sessions(tenant=tenant, limit=SESSIONS_PER_QUERY, offset=offset):
        thread_ids |= dict.fromkeys(session.thread for session in page)
        offset += len(page)
    return list(thread_ids)


@contextmanager
def _open_target(file: str | None) -> Iterator[Callable[[str], int]]:
    """Open standard output, or a new file that only the user can read and that is removed after a failure."""
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
