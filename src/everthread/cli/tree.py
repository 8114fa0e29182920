"""`everthread sessions tree ID`: how a thread's sessions hang together."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text
from rich.tree import Tree

from everthread.cli.family import state_of, title_of
from everthread.cli.output import console, counted, excerpt, print_json, share, short
from everthread.cli.running import AsJson, SessionId, StoreUrl, Tenant, with_store
from everthread.cli.times import ago, duration, iso

if TYPE_CHECKING:
    from everthread.store.models import CompactionRecord, Session
    from everthread.store.store import Store


@dataclass(frozen=True, slots=True)
class Member:
    """A session, and the compaction that made it."""

    session: Session
    made_by: CompactionRecord | None
    title: str


def tree(session_id: SessionId, tenant: Tenant = None, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show a thread's continuations, reverted sessions, branches and subagents, with what compactions saved."""

    async def work(opened: Store) -> list[Member]:
        return await family(opened, (await opened.resolve(session_id, tenant=tenant)).thread)

    members = with_store(store, work)
    if as_json:
        print_json({"thread": members[0].session.thread, "sessions": [_plain(member) for member in members]})
    else:
        console.print(_drawn(members, time.time()))


async def family(store: Store, thread: str) -> list[Member]:
    """Every session of a thread and of the threads that began in it, and in those."""
    members: list[Member] = []
    known, waiting = {thread}, [thread]
    while waiting:
        current = waiting.pop()
        made = {record.session: record for record in await store.compactions(current)}
        sessions = await store.thread_sessions(current)
        title = await title_of(store, sessions[0])
        members += [Member(session, made.get(session.id), title) for session in sessions]
        fresh = [child.id for child in await store.started_by(current) if child.id not in known]
        known |= set(fresh)
        waiting += fresh
    return members


def _plain(member: Member) -> dict[str, Any]:
    session, made = member.session, member.made_by
    names = ("id", "thread", "parent", "kind", "model", "messages", "end_reason", "branched_at")
    plain = {name: getattr(session, name) for name in names}
    plain |= {"title": member.title, "started": iso(session.started), "ended": iso(session.ended)}
    if made is None:
        return plain | {"compaction": None}
    record = made.record
    return plain | {
        "compaction": {
            "tokens_before": record.tokens_before,
            "tokens_after": record.tokens_after,
            "covered": len(record.covered),
            "author": record.author,
            "reason": record.reason,
            "focus": record.focus,
            "duration": record.duration,
            "cost": None if record.cost is None else float(record.cost),
            "warnings": list(record.warnings),
            "reverted": iso(made.reverted),
        }
    }


def _drawn(members: list[Member], now: float) -> Tree:
    """Continuations stand below each other: a thread of a hundred compactions is a list, not a staircase."""
    top = Tree(Text())
    threads: dict[str, Tree] = {}
    nodes: dict[str, Tree] = {}
    for member in members:
        session = member.session
        parent = nodes.get(session.parent or "")
        if not threads:
            top.label = Text(f"thread {short(session.thread)}  {member.title}", "bold")
            threads[session.thread] = top
        elif session.thread not in threads:
            label = Text(f"{session.kind} {short(session.thread)}  {member.title}", "bold")
            threads[session.thread] = (parent or top).add(label)
        under = parent if session.kind == "reverted" and parent else threads[session.thread]
        nodes[session.id] = under.add(_label(member, now))
    return top


def _label(member: Member, now: float) -> Text:
    session, made = member.session, member.made_by
    facts = [counted(session.messages, "message"), state_of(session), ago(session.started, now)]
    label = Text.assemble((short(session.id), "cyan"), f" {session.kind}", ("  " + " · ".join(facts), "dim"))
    if made is not None:
        record = made.record
        label.append(f"  {record.tokens_before:,} → {record.tokens_after:,} tokens", "green")
        saved = share(record.tokens_before - record.tokens_after, record.tokens_before)
        author = f", by {excerpt(record.author, 30)}" if record.author else ""
        label.append(f" ({saved} saved{author}, {duration(record.duration)})", "dim")
    return label
