"""`everthread sessions list`: threads, or every session."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from everthread.cli.formats import describe_state, shorten_id
from everthread.cli.output import print_json, print_next_page_hint, print_text
from everthread.cli.shared_options import (
    JsonOption,
    LimitOption,
    OffsetOption,
    StoreOption,
    TenantOption,
)
from everthread.cli.store_access import load_short_title, with_store
from everthread.cli.tables import print_one_line_rows
from everthread.cli.times import format_age, format_iso
from everthread.core.field_values import pick_fields
from everthread.core.text import count_noun, excerpt

if TYPE_CHECKING:
    from everthread.store.records import Session, ThreadRow
    from everthread.store.store import Store


IDENTITY_FIELDS = ("id", "thread", "parent", "kind", "tenant", "platform")
ORIGIN_FIELDS = ("user", "model", "client", "client_session")


@dataclass(frozen=True, slots=True)
class ListRow:
    """A row of the list: a thread with its first session, or with `--all` any session."""

    session: Session
    state: str
    message_count: int
    last_used: float
    title: str
    token_count: int | None = None
    compaction_count: int | None = None
    """None for a session: tokens and compactions are counted for threads only."""
    side_call_count: int = 0

    @property
    def kind(self) -> str:
        """The thread's kind, with the number of side calls that are folded into it."""
        if not self.side_call_count:
            return self.session.shown_kind
        return f"{self.session.shown_kind} +{count_noun(self.side_call_count, 'side call')}"

    def as_json(self) -> dict[str, Any]:
        session = self.session
        identity = pick_fields(session, IDENTITY_FIELDS)
        origin = pick_fields(session, ORIGIN_FIELDS)
        figures = {
            "title": self.title,
            "messages": self.message_count,
            "tokens": self.token_count,
            "compactions": self.compaction_count,
            "side_calls": self.side_call_count,
            "state": self.state,
            "started": format_iso(session.started),
            "last": format_iso(self.last_used),
        }
        return identity | origin | figures


def list_threads(
    show_all: Annotated[
        bool,
        typer.Option("--all", help="Every session, continuations and reverted ones too."),
    ] = False,
    limit: LimitOption = 20,
    offset: OffsetOption = 0,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """List threads, the last used first, with their messages, tokens and compactions."""

    async def load_rows(store: Store) -> list[ListRow]:
        if show_all:
            sessions = await store.list_sessions(tenant=tenant, limit=limit + 1, offset=offset)
            return [await _make_session_row(store, session) for session in sessions]
        threads = await store.list_threads(tenant=tenant, limit=limit + 1, offset=offset)
        return [await _make_thread_row(store, thread) for thread in threads]

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
        "messages>": lambda row: row.message_count,
    }
    if show_all:
        columns |= {
            "kind": lambda row: row.session.shown_kind,
            "state": lambda row: row.state,
        }
    else:
        columns |= {
            "tokens>": lambda row: row.token_count,
            "compactions>": lambda row: row.compaction_count,
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
        message_count=row.message_count,
        last_used=row.last_active,
        title=title,
        token_count=row.token_count,
        compaction_count=row.compaction_count,
        side_call_count=row.side_call_count,
    )


async def _make_session_row(store: Store, session: Session) -> ListRow:
    last_used = session.started
    if session.message_count:
        last_messages = await store.list_messages(
            session.id, start=session.message_count - 1, limit=1
        )
        if last_messages:
            last_used = last_messages[0].created
    return ListRow(
        session,
        describe_state(session),
        message_count=session.message_count,
        last_used=last_used,
        title=await load_short_title(store, session),
    )
