"""`everthread sessions list|show|tree|search|export|import|undo|delete`."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from everthread.cli import search, show, transfer, tree
from everthread.cli.family import state_of, title_of
from everthread.cli.output import console, counted, excerpt, print_json, print_table, short
from everthread.cli.running import AsJson, Limit, Offset, SessionId, StoreUrl, Tenant, with_store
from everthread.cli.times import ago, iso
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.store.models import Session, ThreadRow
    from everthread.store.store import Store

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

    @property
    def label(self) -> str:
        """The title, then the model: where there is little room, that is what can be missed."""
        return " · ".join(filter(None, (excerpt(self.title, 70), excerpt(self.session.model, 30))))

    def plain(self) -> dict[str, Any]:
        session = self.session
        names = ("id", "thread", "parent", "kind", "tenant", "platform", "user", "model")
        return {name: getattr(session, name) for name in names} | {
            "title": self.title,
            "messages": self.messages,
            "tokens": self.tokens,
            "compactions": self.compactions,
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
    sizes = [] if every else ["tokens>", "compactions>"]
    rows = [
        (
            short(row.session.id), ago(row.last, now), row.session.kind, row.messages,
            *(() if every else (row.tokens, row.compactions)), row.state, row.label,
        )
        for row in shown
    ]  # fmt: skip
    columns = ["id", "last used", "kind", "messages>", *sizes, "state", "title…"]
    print_table("sessions" if every else "threads", columns, rows)


async def _thread(store: Store, row: ThreadRow) -> Listed:
    title = await title_of(store, row.first)
    return Listed(row.first, state_of(row.tip), row.messages, row.active, title, row.tokens, row.compactions)


async def _session(store: Store, session: Session) -> Listed:
    return Listed(
        session, state_of(session), session.messages, await _last(store, session), await title_of(store, session)
    )


async def _last(store: Store, session: Session) -> float:
    """When something was last said there."""
    last = await store.messages(session.id, start=session.messages - 1, limit=1) if session.messages else []
    return last[0].created if last else session.started


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

    async def work(opened: Store) -> int:
        return await opened.delete_thread(thread)

    thread, what = with_store(store, look)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"deleting {what} needs --yes, as nobody can be asked here")
        if not typer.confirm(f"Delete {what} for good?", err=True):
            typer.echo("nothing was deleted", err=True)
            raise typer.Exit(1)
    count = with_store(store, work)
    if as_json:
        print_json({"thread": thread, "sessions": count})
    else:
        console.print(Text(f"deleted: {what}, {counted(count, 'session')}"), soft_wrap=True)


app.command("list")(listing)
app.command("show")(show.show)
app.command("tree")(tree.tree)
app.command("search")(search.search)
app.command("export")(transfer.export)
app.command("import")(transfer.import_)
app.command("undo")(undo)
app.command("delete")(delete)
