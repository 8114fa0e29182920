"""`everthread sessions tree`: the sessions of a thread, its branches and its subagents."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from everthread.cli.formats import describe_state, format_share, shorten_id
from everthread.cli.output import WrappingConsole, console, print_json
from everthread.cli.shared_options import JsonOption, SessionArgument, StoreOption, TenantOption
from everthread.cli.store_access import load_short_title, with_session
from everthread.cli.times import format_age, format_iso
from everthread.compaction.journal.journal import describe_author
from everthread.core.field_values import pick_fields
from everthread.core.text import count_noun, excerpt

if TYPE_CHECKING:
    from everthread.store.records import CompactionRecord, Session
    from everthread.store.store import Store


MAX_LINE_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class RelatedSession:
    """A session of a thread or of one that began in it, and the compaction that started the session."""

    session: Session
    compaction: CompactionRecord | None
    title: str


def tree(
    session_id: SessionArgument,
    tenant: TenantOption = None,
    store_url: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a thread's continuations, reverted sessions, branches and subagents, with what compactions saved."""
    related_sessions = with_session(
        store_url,
        session_id,
        lambda store, session: load_related_sessions(store, session.thread),
        tenant=tenant,
    )
    if as_json:
        print_json(
            {
                "thread": related_sessions[0].session.thread,
                "sessions": [
                    _related_session_as_json(related_session)
                    for related_session in related_sessions
                ],
            }
        )
    else:
        tree_console = console
        if not console.is_terminal:
            # Each session is one whole line.
            tree_console = WrappingConsole(highlight=False, emoji=False, width=MAX_LINE_CHARS)
        tree_console.print(_draw_tree(related_sessions, time.time()))


async def load_related_sessions(store: Store, thread_id: str) -> list[RelatedSession]:
    """Return every session of a thread and of the threads that began in it, recursively."""
    related_sessions: list[RelatedSession] = []
    known_thread_ids = {thread_id}
    waiting_thread_ids = [thread_id]
    while waiting_thread_ids:
        next_thread_id = waiting_thread_ids.pop()
        compaction_by_session_id = {
            record.session: record for record in await store.list_compactions(next_thread_id)
        }
        sessions = await store.list_thread_sessions(next_thread_id)
        title = await load_short_title(store, sessions[0])
        related_sessions += [
            RelatedSession(session, compaction_by_session_id.get(session.id), title)
            for session in sessions
        ]
        child_ids = [
            child.id
            for child in await store.list_child_threads(next_thread_id)
            if child.id not in known_thread_ids
        ]
        known_thread_ids |= set(child_ids)
        waiting_thread_ids += child_ids
    return related_sessions


def _related_session_as_json(related_session: RelatedSession) -> dict[str, Any]:
    session = related_session.session
    names = ("id", "thread", "parent", "kind", "model", "end_reason", "branched_at")
    return pick_fields(session, names) | {
        "messages": session.message_count,
        "title": related_session.title,
        "compaction": _compaction_as_json(related_session.compaction),
        "started": format_iso(session.started),
        "ended": format_iso(session.ended),
    }


def _compaction_as_json(compaction: CompactionRecord | None) -> dict[str, Any] | None:
    if compaction is None:
        return None
    record = compaction.record
    names = ("tokens_before", "tokens_after", "author", "reason", "focus", "duration")
    return pick_fields(record, names) | {
        "covered": len(record.covered),
        "cost": None if record.cost is None else float(record.cost),
        "warnings": list(record.warnings),
        "reverted": format_iso(compaction.reverted_at),
    }


def _draw_tree(related_sessions: list[RelatedSession], now: float) -> Tree:
    """Draw continuations below each other: a hundred compactions are a list, not a staircase."""
    root = Tree(Text())
    tree_by_thread_id: dict[str, Tree] = {}
    tree_by_session_id: dict[str, Tree] = {}
    for related_session in related_sessions:
        session = related_session.session
        parent_tree = tree_by_session_id.get(session.parent or "")
        if not tree_by_thread_id:
            root.label = Text(
                f"thread {shorten_id(session.thread)}  {related_session.title}", "bold"
            )
            tree_by_thread_id[session.thread] = root
        elif session.thread not in tree_by_thread_id:
            label = Text(
                f"{session.kind} {shorten_id(session.thread)}  {related_session.title}", "bold"
            )
            tree_by_thread_id[session.thread] = (parent_tree or root).add(label)
        container = (
            parent_tree
            if session.kind == "reverted" and parent_tree
            else tree_by_thread_id[session.thread]
        )
        tree_by_session_id[session.id] = container.add(_render_label(related_session, now))
    return root


def _render_label(related_session: RelatedSession, now: float) -> Text:
    session = related_session.session
    facts = [
        count_noun(session.message_count, "message"),
        describe_state(session),
        format_age(session.started, now),
    ]
    label = Text.assemble(
        (shorten_id(session.id), "cyan"),
        f" {session.kind}",
        ("  " + " · ".join(facts), "dim"),
    )
    if related_session.compaction is not None:
        record = related_session.compaction.record
        label.append(f"  {record.tokens_before:,} → {record.tokens_after:,} tokens", "green")
        saved_text = format_share(record.tokens_before - record.tokens_after, record.tokens_before)
        author_text = f", by {excerpt(describe_author(record.author), 30)}" if record.author else ""
        label.append(f" ({saved_text} saved{author_text}, {record.duration:.1f} s)", "dim")
    return label
