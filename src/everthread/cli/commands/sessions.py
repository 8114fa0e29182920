"""`everthread sessions …`: list, undo and delete threads; the other subcommands are registered here."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.output import (
    MAX_ROWS,
    print_json,
    print_next_page_hint,
    print_one_line_rows,
    print_table,
    print_text,
    shorten_id,
)
from everthread.cli.session_search import search
from everthread.cli.session_transfer import export_threads, import_files
from everthread.cli.session_tree import tree
from everthread.cli.session_views import describe_state, load_short_title, show
from everthread.cli.shared_options import (
    AsJson,
    Limit,
    Offset,
    SessionId,
    StoreUrl,
    Tenant,
)
from everthread.cli.store_access import with_store
from everthread.cli.times import format_age, format_iso
from everthread.core.messages import count_noun, excerpt
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.records import Session, ThreadRow
    from everthread.store.store import Store


app = typer.Typer(
    help="Stored conversations: find, read, move and undo them.", no_args_is_help=True
)


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row of the list: a thread with its first session, or with `--all` any session."""

    session: Session
    state: str
    messages: int
    last_used: float
    title: str
    tokens: int | None = None
    compactions: int | None = None
    """None for a session: tokens and compactions are counted for threads only."""
    side_calls: int = 0

    @property
    def kind(self) -> str:
        """The thread's kind, with the number of side calls that are folded into it."""
        if not self.side_calls:
            return self.session.shown_kind
        return f"{self.session.shown_kind} +{count_noun(self.side_calls, 'side call')}"

    def as_json(self) -> dict[str, Any]:
        session = self.session
        names = (
            "id",
            "thread",
            "parent",
            "kind",
            "tenant",
            "platform",
            "user",
            "model",
            "client",
            "client_session",
        )
        return {name: getattr(session, name) for name in names} | {
            "title": self.title,
            "messages": self.messages,
            "tokens": self.tokens,
            "compactions": self.compactions,
            "side_calls": self.side_calls,
            "state": self.state,
            "started": format_iso(session.started),
            "last": format_iso(self.last_used),
        }


@app.command("list")
def list_sessions_or_threads(
    show_all: Annotated[
        bool,
        typer.Option(
            "--all", help="Every session, continuations and reverted ones too."
        ),
    ] = False,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List threads, the last used first, with their messages, tokens and compactions."""

    async def load_rows(store: Store) -> list[ListRow]:
        if show_all:
            sessions = await store.list_sessions(
                tenant=tenant, limit=limit + 1, offset=offset
            )
            return [await _make_session_row(store, session) for session in sessions]
        threads = await store.list_threads(
            tenant=tenant, limit=limit + 1, offset=offset
        )
        return [await _make_thread_row(store, row) for row in threads]

    rows = with_store(store_url, load_rows, empty_if_missing=True)
    has_more = len(rows) > limit
    rows = rows[:limit]
    if as_json:
        print_json(
            {
                "sessions": [row.as_json() for row in rows],
                "offset": offset,
                "more": has_more,
            }
        )
        return
    if not rows:
        print_text("no sessions" if offset else "no sessions yet")
        return
    _print_list(rows, time.time(), show_all=show_all)
    if has_more:
        print_next_page_hint(offset + limit)


def _print_list(rows: list[ListRow], now: float, *, show_all: bool) -> None:
    """Print one line for each row, always in the same form, so that other programs can read it."""
    columns: dict[str, Callable[[ListRow], object]] = {
        "title…": lambda row: excerpt(row.title, 70) or "(no title)",
        "id": lambda row: shorten_id(row.session.id),
        "last used": lambda row: format_age(row.last_used, now),
        "messages>": lambda row: row.messages,
    }
    if show_all:
        columns |= {
            "kind": lambda row: row.session.shown_kind,
            "state": lambda row: row.state,
        }
    else:
        columns |= {
            "tokens>": lambda row: row.tokens,
            "compactions>": lambda row: row.compactions,
            "kind": lambda row: row.kind,
        }
    columns["model"] = lambda row: excerpt(row.session.model, 30)
    values = [[value(row) for value in columns.values()] for row in rows]
    print_one_line_rows("sessions" if show_all else "threads", list(columns), values)


async def _make_thread_row(store: Store, row: ThreadRow) -> ListRow:
    title = await load_short_title(store, row.first)
    return ListRow(
        row.first,
        describe_state(row.tip),
        messages=row.messages,
        last_used=row.last_active,
        title=title,
        tokens=row.tokens,
        compactions=row.compactions,
        side_calls=row.side_calls,
    )


async def _make_session_row(store: Store, session: Session) -> ListRow:
    last_messages = (
        await store.messages(session.id, start=session.messages - 1, limit=1)
        if session.messages
        else []
    )
    last_used = last_messages[0].created if last_messages else session.started
    return ListRow(
        session,
        describe_state(session),
        session.messages,
        last_used,
        await load_short_title(store, session),
    )


@app.command()
def state(
    session_id: SessionId,
    show_all: Annotated[
        bool, typer.Option("--all", help="Files that were only read, too; every row.")
    ] = False,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a thread: files, commands and tests with their last outcome, open errors, to-do list."""
    from everthread.thread.lookup.thread_state import (
        describe_state,
        list_changed_files,
        load_thread_state,
    )

    async def load_state(store: Store) -> dict[str, Any]:
        thread = (await store.resolve(session_id, tenant=tenant)).thread
        return {
            "thread": thread,
            **describe_state(await load_thread_state(store, thread)),
        }

    figures = with_store(store_url, load_state)
    if as_json:
        print_json(figures)
        return
    branch = f"branch {figures['branch']}" if figures["branch"] else ""
    facts = (count_noun(figures["messages"], "message"), figures["directory"], branch)
    print_text(
        (
            ", ".join(
                filter(None, (f"thread {shorten_id(figures['thread'])}", *facts))
            ),
            "bold",
        )
    )
    files = figures["files"] if show_all else list_changed_files(figures)
    _print_state_tables(figures, files, max_rows=None if show_all else MAX_ROWS)


def _print_state_tables(
    figures: dict[str, Any], files: list[Any], *, max_rows: int | None
) -> None:
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


@app.command()
def undo(
    session_id: SessionId,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Undo a thread's last compaction: all its messages are back in the context."""

    async def undo_compaction(store: Store) -> Session:
        return await store.undo((await store.resolve(session_id, tenant=tenant)).id)

    session = with_store(store_url, undo_compaction)
    if as_json:
        print_json(
            {
                "thread": session.thread,
                "session": session.id,
                "messages": session.messages,
            }
        )
    else:
        text = f"thread {shorten_id(session.thread)} goes on in session {shorten_id(session.id)}"
        print_text(f"undone: {text}, with {count_noun(session.messages, 'message')}")


@app.command()
def delete(
    session_id: SessionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    tenant: Tenant = None,
    store_url: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a thread and its subagents' for good. Its costs stay in the accounts; branches keep what they share."""

    async def describe(store: Store) -> tuple[str, str]:
        session = await store.resolve(session_id, tenant=tenant)
        subagents = len(await store.subagents(session.thread))
        subagents_text = (
            f" and {count_noun(subagents, 'subagent thread')}" if subagents else ""
        )
        title = await load_short_title(store, session)
        return (
            session.thread,
            f"thread {shorten_id(session.thread)}{subagents_text}"
            + (f" ({title})" if title else ""),
        )

    thread, description = with_store(store_url, describe)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                f"deleting {description} needs --yes, as nobody can be asked here"
            )
        if not typer.confirm(f"Delete {description} for good?", err=True):
            typer.echo("nothing was deleted", err=True)
            raise typer.Exit(1)
    count = with_store(store_url, lambda store: store.delete_thread(thread))
    if as_json:
        print_json({"thread": thread, "sessions": count})
    else:
        print_text(f"deleted: {description}, {count_noun(count, 'session')}")


app.command("export")(export_threads)
app.command("import")(import_files)
app.command()(show)
app.command()(tree)
app.command()(search)
