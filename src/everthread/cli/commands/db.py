"""`everthread db check|migrate|backup|vacuum`: maintain the store."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize

from everthread.cli.output import explain_write_errors, print_json, print_text
from everthread.cli.shared_options import JsonOption, StoreOption
from everthread.cli.store_access import find_store_address, with_store
from everthread.core.text import count_noun
from everthread.errors import StoreError

if TYPE_CHECKING:
    from everthread.store.records import StoreHealth
    from everthread.store.store import Store


app = typer.Typer(help="The store: check, migrate, back up and compact it.", no_args_is_help=True)


@app.command()
def check(store_url: StoreOption = None, as_json: JsonOption = False) -> None:
    """Check the store; list the problems and exit with 1 if it is damaged."""
    health = with_store(store_url, lambda store: store.check())
    if as_json:
        print_json(dataclasses.asdict(health))
    else:
        facts = [
            health.backend,
            f"schema {health.schema}",
            filesize.decimal(health.size),
            count_noun(health.sessions, "session"),
            count_noun(health.messages, "message"),
        ]
        print_text(f"{health.location}: {', '.join(facts)}")
        for problem in health.problems:
            print_text(f"problem: {problem}")
        if health.problems:
            print_text("not sound: restore a backup, or export what can be read")
        else:
            print_text("sound")
    if health.problems:
        raise typer.Exit(1)


@app.command()
def migrate(
    backup: Annotated[
        str | None,
        typer.Option(
            "--backup",
            metavar="FILE",
            help="First copy the store to this new file.",
        ),
    ] = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Update the store's schema, or make the store. Every command that opens a store also updates it."""
    from everthread import factory

    location, old_schema, new_schema = factory.migrate_store(
        find_store_address(store_url), backup=backup
    )
    if as_json:
        print_json({"location": location, "before": old_schema, "after": new_schema})
    elif old_schema == new_schema:
        print_text(f"{location}: schema {new_schema}, nothing to do")
    else:
        print_text(f"{location}: schema {old_schema} -> {new_schema}")


@app.command()
def backup(
    file: Annotated[str, typer.Argument(help="A new file.")],
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy the whole store to a file, while other processes may use it."""
    with explain_write_errors(file):
        with_store(store_url, lambda store: store.backup(file))
        size = Path(file).stat().st_size
    if as_json:
        print_json({"file": file, "size": size})
    else:
        print_text(f"{file}: {filesize.decimal(size)}")


@app.command()
def vacuum(store_url: StoreOption = None, as_json: JsonOption = False) -> None:
    """Free the space of deleted threads and optimise the search index. A damaged store is not changed."""

    async def compact_store(store: Store) -> tuple[StoreHealth, StoreHealth]:
        health_before = await store.check()
        if health_before.problems:
            raise StoreError(
                f"{health_before.location}: is damaged, `everthread db check` lists the problems; nothing was changed"
            )
        await store.vacuum()
        return health_before, await store.check()

    health_before, health_after = with_store(store_url, compact_store)
    if as_json:
        print_json(
            {
                "location": health_after.location,
                "before": health_before.size,
                "after": health_after.size,
            }
        )
    else:
        print_text(
            f"{health_after.location}: {filesize.decimal(health_before.size)} -> {filesize.decimal(health_after.size)}"
        )
