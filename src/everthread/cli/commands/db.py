"""`everthread db check|migrate|backup|vacuum`: care for the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everthread.cli.options import AsJson, StoreUrl
from everthread.cli.output import format_size, print_json, print_text
from everthread.cli.store_access import store_address, with_store
from everthread.core.messages import count_noun
from everthread.errors import InputError, StoreError

if TYPE_CHECKING:
    from everthread.store.records import StoreHealth
    from everthread.store.store import Store


app = typer.Typer(
    help="The store: check, migrate, back up and compact it.", no_args_is_help=True
)


@app.command()
def check(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Check the store; list the problems and exit with 1 if it is damaged."""
    health = with_store(store, lambda opened: opened.check())
    if as_json:
        print_json(dataclasses.asdict(health))
    else:
        facts = [
            health.backend,
            f"schema {health.schema}",
            format_size(health.size),
            count_noun(health.sessions, "session"),
            count_noun(health.messages, "message"),
        ]
        print_text(f"{health.location}: {', '.join(facts)}")
        for problem in health.problems:
            print_text(f"problem: {problem}")
        print_text(
            "not sound: restore a backup, or export what can be read"
            if health.problems
            else "sound"
        )
    if health.problems:
        raise typer.Exit(1)


@app.command()
def migrate(
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup",
            metavar="FILE",
            help="First copy the store as it is to a new file.",
        ),
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Update the store's schema, or make the store. Every command that opens a store also updates it."""
    from everthread import factory

    location, before, after = factory.migrate_store(store_address(store), backup=backup)
    if as_json:
        print_json({"location": location, "before": before, "after": after})
    elif before == after:
        print_text(f"{location}: schema {after}, nothing to do")
    else:
        print_text(f"{location}: schema {before} -> {after}")


@app.command()
def backup(
    file: Annotated[str, typer.Argument(help="A new file.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Copy the whole store to a file, while other processes may use it."""
    try:
        with_store(store, lambda opened: opened.backup(file))
        written = Path(file).stat().st_size
    except OSError as error:
        raise InputError(
            f"{file}: cannot be written: {error.strerror or error}"
        ) from error
    if as_json:
        print_json({"file": file, "size": written})
    else:
        print_text(f"{file}: {format_size(written)}")


@app.command()
def vacuum(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Free the space of deleted threads and optimise the search index. A damaged store is not changed."""

    async def work(opened: Store) -> tuple[StoreHealth, StoreHealth]:
        before = await opened.check()
        if before.problems:
            raise StoreError(
                f"{before.location}: is not sound, `everthread db check` says why; it was not touched"
            )
        await opened.vacuum()
        return before, await opened.check()

    before, after = with_store(store, work)
    if as_json:
        print_json(
            {"location": after.location, "before": before.size, "after": after.size}
        )
    else:
        print_text(
            f"{after.location}: {format_size(before.size)} -> {format_size(after.size)}"
        )
