"""`everthread sessions state`: files, commands, errors and the to-do list of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.formats import shorten_id
from everthread.cli.output import print_json, print_text
from everthread.cli.shared_options import JsonOption, SessionArgument, StoreOption, TenantOption
from everthread.cli.store_access import with_session
from everthread.cli.tables import MAX_ROWS, print_table
from everthread.core.text import count_noun

if TYPE_CHECKING:
    from everthread.store.records import Session
    from everthread.store.store import Store


def state(
    session_id: SessionArgument,
    show_all: Annotated[
        bool, typer.Option("--all", help="Files that were only read, too; every row.")
    ] = False,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the state of a thread: files, commands and tests with their last outcome, open errors, to-do list."""
    from everthread.thread.lookup.work_state import (
        describe_state,
        list_changed_files,
        load_thread_state,
    )

    async def load_figures(store: Store, session: Session) -> dict[str, Any]:
        thread_id = session.thread
        return {"thread": thread_id, **describe_state(await load_thread_state(store, thread_id))}

    figures = with_session(store_url, session_id, load_figures, tenant=tenant)
    if as_json:
        print_json(figures)
        return
    facts = [f"thread {shorten_id(figures['thread'])}", count_noun(figures["messages"], "message")]
    if figures["directory"]:
        facts.append(figures["directory"])
    if figures["branch"]:
        facts.append(f"branch {figures['branch']}")
    print_text((", ".join(facts), "bold"))
    files = figures["files"] if show_all else list_changed_files(figures)
    _print_state_tables(figures, files, max_rows=None if show_all else MAX_ROWS)


def _print_state_tables(figures: dict[str, Any], files: list[Any], *, max_rows: int | None) -> None:
    """Print a table for each part of the state that is not empty."""
    errors = [
        {"of": entry["source"], "error": " ".join(entry["lines"])}
        for entry in figures["open_errors"]
    ]
    processes = [{"process": entry} for entry in figures["processes"]]
    tables: list[tuple[str, dict[str, str], list[Any]]] = [
        ("files", {"file…": "path", "last": "last", "turn>": "turn"}, files),
        (
            "commands and tests",
            {"command…": "command", "outcome~": "outcome", "turn>": "turn"},
            figures["commands"],
        ),
        ("open errors", {"of…": "of", "error~": "error"}, errors),
        ("running", {"process~": "process"}, processes),
        ("to do", {"what~": "text", "state": "status"}, figures["todo"]),
    ]
    for name, columns, rows in tables:
        if rows:
            cells = ([entry[key] for key in columns.values()] for entry in rows)
            print_table(name, [*columns], cells, max_rows=max_rows)
    if not any(rows for _, _, rows in tables):
        print_text("no tool was called in this thread")
