"""`/sessions`, `/search`, `/new`, `/resume`, `/branch`: this conversation among the others."""

from __future__ import annotations

from typing import Any

from everthread.agent.slash.base import CommandResult, Here, counted, one_line
from everthread.core.found import moment
from everthread.core.redaction import redact
from everthread.core.transcript import user_text
from everthread.errors import InputError
from everthread.store.models import NewSession, SearchQuery, Session, ThreadRow
from everthread.store.store import Store

LISTED, MOST = 10, 100
FOUND = 10
TITLE = 60
LOOKED_AT = 4
"""So many threads are looked at for each that is listed."""
LOOKED_THROUGH = 20
"""So many messages are looked through for the first words of the user."""


async def sessions(here: Here, argument: str) -> CommandResult:
    if argument and not argument.isdecimal():
        raise InputError(f"{argument!r} is no number; /sessions 20 lists the last 20 conversations")
    count = min(int(argument or LISTED), MOST)
    rows = await here.store.list_threads(tenant=here.conversation.session.tenant, limit=LOOKED_AT * count)
    listed = [await _row(here, row) for row in [row for row in rows if _is_talk(here, row)][:count]]
    lines = [_listed(item) for item in listed]
    return CommandResult("\n".join(lines) or "There are no conversations yet.", {"threads": listed})


async def search(here: Here, argument: str) -> CommandResult:
    if not argument:
        raise InputError('say what to look for: /search retry budget, or /search "an exact phrase"')
    hits = await here.store.search(SearchQuery(argument, tenant=here.conversation.session.tenant, limit=FOUND))
    lines, data = [], []
    for hit in hits:
        place = f"#{hit.message}" if hit.message is not None else hit.output or ""
        who = " ".join(filter(None, (hit.role, hit.tool)))
        lines.append(f"- `{hit.thread[:8]}` {place} {who}, {moment(hit.created)}: {one_line(hit.snippet, 200)}")
        data.append({"thread": hit.thread, "message": hit.message, "output": hit.output, "snippet": hit.snippet})
    return CommandResult("\n".join(lines) or f"Nothing was found for {argument!r}.", {"hits": data})


async def new(here: Here, argument: str) -> CommandResult:
    session = here.conversation.session
    fresh = NewSession(tenant=session.tenant, platform=session.platform, user=session.user, title=argument)
    made = await here.conversation.another(new=fresh)
    await made.close()
    text = f"A new conversation: `{made.id[:8]}`. `/resume {session.thread[:8]}` goes back."
    return CommandResult(text, {"thread": made.id, "previous": session.thread}, switch=made.session.id)


async def resume(here: Here, argument: str) -> CommandResult:
    if not argument:
        listed = await sessions(here, "")
        return CommandResult(f"{listed.text}\n\n`/resume ID` goes on with one of them.", listed.data)
    found = await here.store.resolve(argument, tenant=here.conversation.session.tenant)
    tip = await here.store.session(await here.store.get_compression_tip(found.id))
    title = await _title(here.store, tip)
    text = f"Going on with `{tip.thread[:8]}` {title}: {counted(tip.messages, 'message')} in view."
    return CommandResult(text, {"thread": tip.thread, "session": tip.id}, switch=tip.id)


async def branch(here: Here, argument: str) -> CommandResult:
    old = here.conversation.id
    made = await here.conversation.branch(title=argument)
    await made.close()
    text = f"A branch: `{made.id[:8]}`. `{old[:8]}` stays as it is."
    return CommandResult(text, {"thread": made.id, "parent": old}, switch=made.session.id)


def _is_talk(here: Here, row: ThreadRow) -> bool:
    """Subagents' threads are no conversations of a person; where nothing was said nothing can go on."""
    return row.first.id == here.conversation.id or (row.first.kind != "subagent" and row.messages > 0)


async def _row(here: Here, row: ThreadRow) -> dict[str, Any]:
    title = await _title(here.store, row.tip if row.tip.title else row.first)
    return {
        "thread": row.first.id, "title": title, "messages": row.messages, "tokens": row.tokens,
        "compactions": row.compactions, "active": row.active, "here": row.first.id == here.conversation.id,
    }  # fmt: skip


def _listed(item: dict[str, Any]) -> str:
    sizes = f"{counted(item['messages'], 'message')}, {counted(item['compactions'], 'compaction')}"
    mark = " (this one)" if item["here"] else ""
    return f"- `{item['thread'][:8]}`{mark} {item['title'] or '(nothing said)'}: {sizes}, {moment(item['active'])}"


async def _title(store: Store, session: Session) -> str:
    """Its title, or the first words of the user."""
    if session.title:
        return one_line(redact(session.title), TITLE)
    first = await store.history(session.id, limit=LOOKED_THROUGH)
    # A secret is known by what stands around it: more is read than shown.
    return next((one_line(redact(words[:4_000]), TITLE) for item in first if (words := user_text(item.body))), "")
