"""`everthread sessions …`: list, export, import, undo and delete threads; `session_views` has show, tree and search."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli import session_views
from everthread.cli.options import AsJson, Limit, Offset, SessionId, StoreUrl, Tenant
from everthread.cli.output import (
    MAX_ROWS,
    encode_json,
    format_size,
    print_json,
    print_next_page_hint,
    print_notes,
    print_one_line_rows,
    print_table,
    print_text,
    shorten_id,
)
from everthread.cli.session_views import (
    describe_state,
    list_thread_ids,
    load_short_title,
)
from everthread.cli.store_access import with_store
from everthread.cli.times import format_age, format_iso
from everthread.core.messages import count_noun, excerpt
from everthread.errors import (
    EverthreadError,
    InputError,
    StoreDamagedError,
    TranscriptError,
)

if TYPE_CHECKING:
    from everthread.lab.importers.log import LogStream
    from everthread.store.records import Session, ThreadRow
    from everthread.store.store import Store


app = typer.Typer(
    help="Stored conversations: find, read, move and undo them.", no_args_is_help=True
)


@app.command()
def export(
    session_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID", help="Sessions' ids or their first characters."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every thread.")] = False,
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
    tenant: Tenant = None,
    store: StoreUrl = None,
) -> None:
    """Write threads and their subagents' as JSON lines: everything, word for word, credentials in it included."""
    if every == bool(session_ids):
        raise InputError("give the ids of what to export, or --all")

    lost: list[str] = []

    async def work(opened: Store) -> list[str]:
        threads = await _threads_to_export(opened, session_ids, tenant)
        for thread in threads:
            try:
                lines = await opened.export(thread)
            except StoreDamagedError:
                lines, missing = await opened.salvage(thread)
                lost.extend(missing)
            write("".join(f"{encode_json(line)}\n" for line in lines))
        return threads

    with _open_target(output) as write:
        exported = with_store(store, work)
    if output is not None:
        print_text(
            f"{count_noun(len(exported), 'thread')}, {format_size(Path(output).stat().st_size)}: {output}"
        )
    if lost:
        print_notes(lost, "cannot be read")
        summary = f"The store is damaged: {count_noun(len(lost), 'item')} could not be read, all else was written."
        typer.echo(summary, err=True)
        raise typer.Exit(1)


async def _threads_to_export(
    store: Store, session_ids: list[str] | None, tenant: str | None
) -> list[str]:
    """Each thread once, before its subagents."""
    if session_ids:
        roots = [
            (await store.resolve(prefix, tenant=tenant)).thread
            for prefix in session_ids
        ]
    else:
        roots = (await list_thread_ids(store, tenant))[::-1]
    families = [[root, *(await store.subagents(root))] for root in roots]
    return list(dict.fromkeys(thread for family in families for thread in family))


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
        raise InputError(
            f"{file}: exists already; name a file that does not"
        ) from error
    except OSError as error:
        raise InputError(
            f"{file}: cannot be written: {error.strerror or error}"
        ) from error
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


@app.command("import")
def import_(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Exports, conversations or logs of other programs; `-`: standard input.",
        ),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PROGRAM",
            help="Every session of claude-code, codex, pi or opencode here.",
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant of the imported threads.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import exported threads, or conversations of other programs.

    Of a conversation that is stored already only new messages are added. An exported thread that is stored already is
    refused.
    """
    from everthread.lab.importers.read_logs import find_logs

    if bool(files) == (client is not None):
        raise InputError(
            "give the files to import, or --from with the name of a program"
        )
    sources = find_logs(client) if client else list(files or ())
    imported, skipped, notes = _import_all(
        sources, store, tenant, skip_bad=client is not None or len(sources) > 1
    )
    if as_json:
        print_json(
            {
                "threads": [thread for thread, _ in imported],
                "skipped": skipped,
                "notes": notes,
            }
        )
        return
    print_notes(skipped, "skipped")
    print_notes(notes)
    new = sum(count for _, count in imported)
    ids = ", ".join(shorten_id(thread) for thread, _ in imported[:5]) + (
        ", …" if len(imported) > 5 else ""
    )
    typer.echo(
        f"{count_noun(len(imported), 'thread')} imported, {count_noun(new, 'message')} new: {ids or 'none'}"
    )


def _import_all(
    files: Sequence[str], store: str | None, tenant: str | None, *, skip_bad: bool
) -> tuple[list[tuple[str, int]], list[str], list[str]]:
    """Import logs; return threads with the count of new messages, reasons for skipped files, and unread parts."""
    from everthread.lab.importers.read_logs import import_stream

    skipped: list[str] = []
    notes: list[str] = []

    async def work(opened: Store) -> list[tuple[str, int]]:
        imported: list[tuple[str, int]] = []
        for file in files:
            try:
                content = _read_import(file)
                if isinstance(content, list):
                    threads = await opened.import_lines(content)
                    imported += [
                        (thread, (await opened.session(thread)).messages)
                        for thread in threads
                    ]
                else:
                    imported.append(await import_stream(opened, content, tenant=tenant))
                    log = content.log
                    notes.extend(f"{log.source}: {warning}" for warning in log.warnings)
            except TranscriptError as error:
                source = "standard input" if file == "-" else file
                reason = (
                    str(error) if str(error).startswith(file) else f"{source}: {error}"
                )
                if not skip_bad:
                    raise TranscriptError(f"{reason}; nothing was imported") from error
                skipped.append(reason)
        return imported

    return with_store(store, work, create=True), skipped, notes


def _read_import(file: str) -> list[dict[str, Any]] | LogStream:
    """The lines of an export, or the conversation in another program's log."""
    from everthread.lab.importers.log import LogStream
    from everthread.lab.importers.read_logs import (
        EXPORT,
        open_lines,
        parse_log,
        read_text,
        stream_log,
    )

    log_lines = open_lines(file)
    if log_lines is not None and log_lines.first.get("type") != EXPORT:
        return _check_messages(stream_log(log_lines, file))
    source, text = read_text(file)
    if not text.strip():
        raise TranscriptError(f"{source}: is empty")
    head = None
    lines = text.strip().split("\n")
    # The first line says what it is: a later one may be damaged.
    with contextlib.suppress(ValueError, RecursionError):
        head = json.loads(lines[0])
    if isinstance(head, dict) and head.get("type") == EXPORT:
        return [
            _parse_line(source, number, line) for number, line in enumerate(lines, 1)
        ]
    log = parse_log(text, source)
    return _check_messages(LogStream(log, log.entries))


def _check_messages(stream: LogStream) -> LogStream:
    """Return the stream with its first message read; raise `TranscriptError` if there is none."""
    entries = iter(stream.entries)
    first = next(entries, None)
    if first is None:
        raise TranscriptError(f"{stream.log.source}: holds no message")
    return replace(stream, entries=itertools.chain([first], entries))


def _parse_line(source: str, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(
            f"{source}: line {number} is not JSON: {error}"
        ) from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise TranscriptError(f"{source}: line {number} is not a line of an export")
    return value


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row of the list: a thread with its first session, or with `--all` any session."""

    session: Session
    state: str
    messages: int
    last: float
    title: str
    tokens: int | None = None
    compactions: int | None = None
    """Tokens and compactions are counted for threads only."""
    side_calls: int = 0

    @property
    def kind(self) -> str:
        """The thread's kind, with the number of side calls that are folded into it."""
        if not self.side_calls:
            return self.session.label
        return f"{self.session.label} +{count_noun(self.side_calls, 'side call')}"

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
            "last": format_iso(self.last),
        }


@app.command("list")
def listing(
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Every session, continuations and reverted ones too."
        ),
    ] = False,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List threads, the last used first, with their messages, tokens and compactions."""

    async def work(opened: Store) -> list[ListRow]:
        if every:
            sessions = await opened.list_sessions(
                tenant=tenant, limit=limit + 1, offset=offset
            )
            return [await _session_row(opened, session) for session in sessions]
        threads = await opened.list_threads(
            tenant=tenant, limit=limit + 1, offset=offset
        )
        return [await _thread_row(opened, row) for row in threads]

    rows = with_store(store, work, empty_if_missing=True)
    more = len(rows) > limit
    rows = rows[:limit]
    if as_json:
        print_json(
            {
                "sessions": [row.as_json() for row in rows],
                "offset": offset,
                "more": more,
            }
        )
        return
    if not rows:
        print_text("no sessions" if offset else "no sessions yet")
        return
    _print_list(rows, time.time(), every=every)
    if more:
        print_next_page_hint(offset + limit)


def _print_list(rows: list[ListRow], now: float, *, every: bool) -> None:
    """Print one line for each row, in the same form whatever they hold, so that other programs can read it."""
    columns: dict[str, Callable[[ListRow], object]] = {
        "title…": lambda row: excerpt(row.title, 70) or "(no title)",
        "id": lambda row: shorten_id(row.session.id),
        "last used": lambda row: format_age(row.last, now),
        "messages>": lambda row: row.messages,
    }
    if every:
        columns |= {
            "kind": lambda row: row.session.label,
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
    print_one_line_rows("sessions" if every else "threads", list(columns), values)


async def _thread_row(store: Store, row: ThreadRow) -> ListRow:
    title = await load_short_title(store, row.first)
    return ListRow(
        row.first,
        describe_state(row.tip),
        messages=row.messages,
        last=row.active,
        title=title,
        tokens=row.tokens,
        compactions=row.compactions,
        side_calls=row.side_calls,
    )


async def _session_row(store: Store, session: Session) -> ListRow:
    messages = (
        await store.messages(session.id, start=session.messages - 1, limit=1)
        if session.messages
        else []
    )
    last = messages[0].created if messages else session.started
    return ListRow(
        session,
        describe_state(session),
        session.messages,
        last,
        await load_short_title(store, session),
    )


@app.command()
def state(
    session_id: SessionId,
    every: Annotated[
        bool, typer.Option("--all", help="Files that were only read, too; every row.")
    ] = False,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a thread: files, commands and tests with their last outcome, open errors, to-do list."""
    from everthread.thread.facts import changed_files, load_thread_state, state_figures

    async def work(opened: Store) -> dict[str, Any]:
        thread = (await opened.resolve(session_id, tenant=tenant)).thread
        return {
            "thread": thread,
            **state_figures(await load_thread_state(opened, thread)),
        }

    figures = with_store(store, work)
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
    files = figures["files"] if every else changed_files(figures)
    errors = [
        {"of": one["source"], "error": " ".join(one["lines"])}
        for one in figures["open_errors"]
    ]
    processes = [{"process": one} for one in figures["processes"]]
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
            cells = ([one[key] for key in columns.values()] for one in rows)
            print_table(name, [*columns], cells, max_rows=None if every else MAX_ROWS)
    if not any(rows for _, _, rows in tables):
        print_text("no tool was called in this thread")


@app.command()
def undo(
    session_id: SessionId,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Undo a thread's last compaction: all its messages are back in the context."""

    async def work(opened: Store) -> Session:
        return await opened.undo((await opened.resolve(session_id, tenant=tenant)).id)

    session = with_store(store, work)
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
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a thread and its subagents' for good. Its costs stay in the accounts; branches keep what they share."""

    async def describe(opened: Store) -> tuple[str, str]:
        session = await opened.resolve(session_id, tenant=tenant)
        subagents = len(await opened.subagents(session.thread))
        also = f" and {count_noun(subagents, 'subagent thread')}" if subagents else ""
        title = await load_short_title(opened, session)
        return session.thread, f"thread {shorten_id(session.thread)}{also}" + (
            f" ({title})" if title else ""
        )

    thread, description = with_store(store, describe)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(
                f"deleting {description} needs --yes, as nobody can be asked here"
            )
        if not typer.confirm(f"Delete {description} for good?", err=True):
            typer.echo("nothing was deleted", err=True)
            raise typer.Exit(1)
    count = with_store(store, lambda opened: opened.delete_thread(thread))
    if as_json:
        print_json({"thread": thread, "sessions": count})
    else:
        print_text(f"deleted: {description}, {count_noun(count, 'session')}")


for name in ("show", "tree", "search"):
    app.command(name)(getattr(session_views, name))
