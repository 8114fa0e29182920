"""`everthread sessions …`: stored conversations: list, move, delete, undo; `session_views` shows and finds them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from everthread.cli import session_views
from everthread.cli.options import AsJson, Limit, Offset, SessionId, StoreUrl, Tenant, ago, iso, with_store
from everthread.cli.output import console, json_text, print_json, print_table, say, short, size, visible
from everthread.cli.session_views import state_of, threads, title_of
from everthread.core.messages import counted, excerpt
from everthread.errors import EverthreadError, InputError, StoreDamagedError, TranscriptError

if TYPE_CHECKING:
    from everthread.lab.importers.log import Log
    from everthread.store.models import Session, ThreadRow
    from everthread.store.store import Store


Write = Callable[[str], int]
MOST_LOST = 20
"""Of what is lost in a damaged store so many are named."""


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

    lost: list[str] = []

    async def work(opened: Store) -> list[str]:
        wanted = await _wanted(opened, session_ids, tenant)
        for thread in wanted:
            try:
                lines = await opened.export(thread)
            except StoreDamagedError:
                lines, missing = await opened.salvage(thread)
                lost.extend(missing)
            write("".join(f"{json_text(line)}\n" for line in lines))
        return wanted

    with _target(output) as write:
        exported = with_store(store, work)
    if output is not None:
        typer.echo(f"{counted(len(exported), 'thread')}, {size(Path(output).stat().st_size)}: {visible(output)}")
    if lost:
        for words in lost[:MOST_LOST]:
            typer.echo(f"cannot be read: {visible(words)}", err=True)
        words = f"The store is damaged: {counted(len(lost), 'thing')} could not be read, all else was written."
        typer.echo(words, err=True)
        raise typer.Exit(1)


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
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE", help="Exports, conversations or logs of other programs; `-`: standard input."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option("--from", metavar="PROGRAM", help="Every session of claude-code, codex, pi or opencode here."),
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose the threads of other programs become.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Store threads: exported ones, or conversations of other programs. What is there already stays as it is."""
    from everthread.lab.importers.reader import find_logs

    if bool(files) == (client is not None):
        raise InputError("give the files to import, or --from with the name of a program")
    given = [str(path) for path in find_logs(client)] if client else list(files or ())
    if not given:
        raise InputError(f"no sessions of {client} were found on this machine")
    imported, passed = _import_all(given, store, tenant, one_by_one=client is not None or len(given) > 1)
    if as_json:
        print_json({"threads": [thread for thread, _ in imported], "passed_over": passed})
        return
    for line in passed:
        typer.echo(visible(f"passed over: {line}"), err=True)
    new = sum(count for _, count in imported)
    named = ", ".join(short(thread) for thread, _ in imported[:5]) + (", …" if len(imported) > 5 else "")
    typer.echo(f"{counted(len(imported), 'thread')} imported, {counted(new, 'message')} new: {named or 'none'}")


def _import_all(
    files: Sequence[str], store: str | None, tenant: str | None, *, one_by_one: bool
) -> tuple[list[tuple[str, int]], list[str]]:
    """The threads with the count of their new messages, and the files that hold none. A single bad file is an error."""
    from everthread.lab.importers.reader import import_log

    passed: list[str] = []

    async def work(opened: Store) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for file in files:
            try:
                read = _read_import(file)
                if isinstance(read, list):
                    imported = await opened.import_lines(read)
                    found += [(thread, (await opened.session(thread)).messages) for thread in imported]
                else:
                    found.append(await import_log(opened, read, tenant=tenant))
            except TranscriptError as error:
                told = str(error) if str(error).startswith(file) else f"{_source(file)}: {error}"
                if not one_by_one:
                    raise TranscriptError(
                        f"{told.removesuffix('; nothing was imported')}; nothing was imported"
                    ) from error
                passed.append(told)
        return found

    return with_store(store, work, create=True), passed


def _source(file: str) -> str:
    return "standard input" if file == "-" else file


def _read_import(file: str) -> list[dict[str, Any]] | Log:
    """The lines of an export, or the conversation that another program wrote down."""
    from everthread.lab.importers.reader import EXPORT, parse_log, read_text

    source, text = read_text(file)
    if not text.strip():
        raise TranscriptError(f"{source}: is empty")
    if not _is_export(text, EXPORT):
        log = parse_log(text, source)
        if not log.said:
            raise TranscriptError(f"{source}: holds no message")
        return log
    return [_line(source, number, line) for number, line in enumerate(text.rstrip().split("\n"), 1)]


def _is_export(text: str, kind: str) -> bool:
    """By its first line, also where a later one is spoilt."""
    try:
        first = json.loads(text.lstrip().split("\n", 1)[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("type") == kind


def _line(source: str, number: int, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TranscriptError(f"{source}: line {number} is not JSON: {error}; nothing was imported") from error
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise TranscriptError(f"{source}: line {number} is no line of an export; nothing was imported")
    return value


app = typer.Typer(help="Stored conversations: find, read, move and undo them.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of the list: a thread by its first session, or with `--all` any session."""

    session: Session
    state: str
    messages: int
    last: float
    title: str
    tokens: int | None = None
    compactions: int | None = None
    """Both are known of threads."""
    side_calls: int = 0

    @property
    def label(self) -> str:
        """The title, then the model: where there is little room, that is what can be missed."""
        return " · ".join(filter(None, (excerpt(self.title, 70), excerpt(self.session.model, 30))))

    def plain(self) -> dict[str, Any]:
        session = self.session
        names = ("id", "thread", "parent", "kind", "tenant", "platform", "user", "model", "client", "client_session")
        return {name: getattr(session, name) for name in names} | {
            "title": self.title,
            "messages": self.messages,
            "tokens": self.tokens,
            "compactions": self.compactions,
            "side_calls": self.side_calls,
            "state": self.state,
            "started": iso(session.started),
            "last": iso(self.last),
        }


def listing(
    every: Annotated[bool, typer.Option("--all", help="Every session, continuations and reverted ones too.")] = False,
    limit: Limit = 20,
    offset: Offset = 0,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """List threads, the last used first: how much was said in them, and how often they were compacted."""

    async def work(opened: Store) -> list[Listed]:
        if every:
            found = await opened.list_sessions(tenant=tenant, limit=limit + 1, offset=offset)
            return [await _session(opened, session) for session in found]
        rows = await opened.list_threads(tenant=tenant, limit=limit + 1, offset=offset)
        return [await _thread(opened, row) for row in rows]

    found = with_store(store, work, or_empty=True)
    shown, more = found[:limit], len(found) > limit
    if as_json:
        print_json({"sessions": [row.plain() for row in shown], "offset": offset, "more": more})
        return
    if not shown:
        console.print("no sessions" if offset else "no sessions yet")
        return
    _print(shown, time.time(), every=every)
    if more:
        console.print(f"… there are more (--offset {offset + limit} shows them)")


def _print(shown: list[Listed], now: float, *, every: bool) -> None:
    cells: dict[str, list[object]] = {
        "title…": [row.label or "(no title)" for row in shown],
        "id": [short(row.session.id) for row in shown],
        "last used": [ago(row.last, now) for row in shown],
        "messages>": [row.messages for row in shown],
    }
    if not every:
        cells |= {"tokens>": [row.tokens for row in shown], "compactions>": [row.compactions for row in shown]}
    # What every row says says nothing.
    for name, usual, values in (
        ("side calls>", 0, [row.side_calls for row in shown]),
        ("kind", "main", [row.session.label for row in shown]),
        ("state", "live", [row.state for row in shown]),
    ):
        cells |= {name: [*values]} if set(values) != {usual} else {}
    print_table("sessions" if every else "threads", [*cells], zip(*cells.values(), strict=True))


async def _thread(store: Store, row: ThreadRow) -> Listed:
    title = await title_of(store, row.first)
    return Listed(
        row.first, state_of(row.tip), row.messages, row.active, title, row.tokens, row.compactions, row.side_calls
    )


async def _session(store: Store, session: Session) -> Listed:
    return Listed(
        session, state_of(session), session.messages, await _last(store, session), await title_of(store, session)
    )


async def _last(store: Store, session: Session) -> float:
    """When something was last said there."""
    last = await store.messages(session.id, start=session.messages - 1, limit=1) if session.messages else []
    return last[0].created if last else session.started


def state(
    session_id: SessionId,
    every: Annotated[bool, typer.Option("--all", help="Files that were only read, too; every row.")] = False,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show how things stand in a thread: files, commands and tests with their last outcome, open errors, to-do list."""
    from everthread.conversation.thread_state import changed_files, load_thread_state, state_figures

    async def work(opened: Store) -> dict[str, Any]:
        thread = (await opened.resolve(session_id, tenant=tenant)).thread
        return {"thread": thread, **state_figures(await load_thread_state(opened, thread))}

    found = with_store(store, work)
    if as_json:
        print_json(found)
        return
    most = None if every else 20
    place = [found["directory"], f"branch {found['branch']}" if found["branch"] else ""]
    title = ", ".join(filter(None, (f"thread {short(found['thread'])}", counted(found["messages"], "message"), *place)))
    say(Text(visible(title), "bold"))
    files = found["files"] if every else changed_files(found)
    tables: list[tuple[str, list[str], list[tuple[object, ...]]]] = [
        ("files", ["file…", "last", "turn>"], [(one["path"], one["last"], one["turn"]) for one in files]),
        (
            "commands and tests",
            ["command…", "outcome~", "turn>"],
            [(one["command"], one["outcome"], one["turn"]) for one in found["commands"]],
        ),
        ("open errors", ["of…", "error~"], [(one["source"], " ".join(one["lines"])) for one in found["open_errors"]]),
        ("running", ["process~"], [(process,) for process in found["processes"]]),
        ("to do", ["what~", "state"], [(one["text"], one["status"]) for one in found["todo"]]),
    ]
    for name, columns, rows in tables:
        if rows:
            left = f", the last {most} of {len(rows):,}" if most and len(rows) > most else ""
            print_table(f"{name}{left}", columns, rows[:most])
    if not any(rows for _, _, rows in tables):
        say("no tool was called in this thread")


def undo(session_id: SessionId, tenant: Tenant = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Take back a thread's last compaction: it goes on with every message it had, and those said since."""

    async def work(opened: Store) -> Session:
        return await opened.undo((await opened.resolve(session_id, tenant=tenant)).id)

    now_live = with_store(store, work)
    if as_json:
        print_json({"thread": now_live.thread, "session": now_live.id, "messages": now_live.messages})
    else:
        where = f"thread {short(now_live.thread)} goes on in session {short(now_live.id)}"
        console.print(Text(f"undone: {where}, with {counted(now_live.messages, 'message')}"), soft_wrap=True)


def delete(
    session_id: SessionId,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    tenant: Tenant = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Delete a thread and its subagents' for good. Its costs stay in the accounts; branches keep what they share."""

    async def look(opened: Store) -> tuple[str, str]:
        found = await opened.resolve(session_id, tenant=tenant)
        others = len(await opened.subagents(found.thread))
        also = f" and {counted(others, 'subagent thread')}" if others else ""
        title = await title_of(opened, found)
        return found.thread, f"thread {short(found.thread)}{also}" + (f" ({title})" if title else "")

    thread, what = with_store(store, look)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"deleting {what} needs --yes, as nobody can be asked here")
        if not typer.confirm(f"Delete {what} for good?", err=True):
            typer.echo("nothing was deleted", err=True)
            raise typer.Exit(1)
    count = with_store(store, lambda opened: opened.delete_thread(thread))
    if as_json:
        print_json({"thread": thread, "sessions": count})
    else:
        console.print(Text(f"deleted: {what}, {counted(count, 'session')}"), soft_wrap=True)


app.command("list")(listing)
app.command("state")(state)
app.command("show")(session_views.show)
app.command("tree")(session_views.tree)
app.command("search")(session_views.search)
app.command("export")(export)
app.command("import")(import_)
app.command("undo")(undo)
app.command("delete")(delete)
