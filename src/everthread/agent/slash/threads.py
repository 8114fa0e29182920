"""Slash commands for threads: compress, undo, pin, memory, sessions, search, new, resume, branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from everthread.agent.memory import FILES, SHELVES, Memory, Shelf
from everthread.agent.slash.command import CommandResult, Here, counted, one_line, paragraphs
from everthread.compaction.summary import Compaction
from everthread.conversation.thread_state import add_pin
from everthread.core.messages import Message
from everthread.core.redaction import redact
from everthread.core.search.lookup import moment
from everthread.core.transcript import user_text
from everthread.errors import InputError, NothingToUndoError
from everthread.store.index import searchable_text
from everthread.store.models import NewSession, SearchQuery, Session, ThreadRow
from everthread.store.store import Store

PREVIEW = "--preview"
SHOWN = 20


async def compress(here: Here, argument: str) -> CommandResult:
    words = argument.split()
    focus = " ".join(word for word in words if word != PREVIEW) or None
    before = len(here.conversation.messages)
    if PREVIEW in words:
        return _previewed(await here.conversation.preview(focus), here.conversation.messages)
    done = await here.conversation.compress(focus)
    if not done.changed:
        return CommandResult(f"Nothing was changed: {done.reason}.", _figures(done, before))
    after = len(here.conversation.messages)
    sizes = f"{counted(before, 'message')} → {after:,}, {done.tokens_before:,} → {done.tokens_after:,} tokens"
    text = paragraphs(
        f"Compacted: {sizes}. The summary was written by {done.author} and {_checked(done)}.",
        [*done.steps, *(f"Warning: {warning}" for warning in done.warnings)],
        "`/undo` takes it back.",
    )
    return CommandResult(text, _figures(done, before) | {"messages_after": after})


async def undo(here: Here, _argument: str) -> CommandResult:
    try:
        session = await here.conversation.undo()
    except NothingToUndoError:
        return CommandResult("There is nothing to undo: this conversation has not been compacted.", {"undone": False})
    count, tokens = len(here.conversation.messages), here.conversation.tokens
    text = f"The last compaction was taken back: {counted(count, 'message')}, about {tokens:,} tokens in view again."
    return CommandResult(text, {"session": session.id, "messages": count, "tokens": tokens})


def _previewed(made: Compaction, messages: Sequence[Message]) -> CommandResult:
    made = replace(made, tokens_after=min(made.tokens_after, made.tokens_before))  # else it would not be done
    figures = _figures(made, len(messages))
    if not made.covered and not made.phases:
        return CommandResult(f"Nothing would be changed: {made.reason}.", figures)
    sizes = f"{made.tokens_before:,} tokens to at most {made.tokens_after:,}"
    covered = f"of {counted(len(messages), 'message')} {len(made.covered):,} would be summarised"
    phases = [f"{item.name}: {item.before:,} → {item.after:,} tokens. {item.note}".rstrip() for item in made.phases]
    going = [messages[index] for index in made.covered]
    text = paragraphs(
        f"A compaction would take {sizes}: {covered}. Nothing was changed.",
        [*phases, *made.steps],
        "Out of view:" if going else "",
        [_line(message) for message in going[:SHOWN]],
        f"… and {len(going) - SHOWN:,} more" if len(going) > SHOWN else "",
    )
    return CommandResult(text, figures)


def _line(message: Message) -> str:
    return f"{message['role']}: {one_line(redact(searchable_text(message)[:4_000]), 90)}"


def _checked(done: Compaction) -> str:
    checked = done.verification
    if not checked.facts and not checked.checked:
        return "had nothing to be checked against"
    return (
        f"checked: {checked.present + checked.added:,} of {checked.facts:,} top facts in it, {checked.added:,} added; "
        f"{checked.unverified:,} of {checked.checked:,} names unverified"
    )


def _figures(made: Compaction, before: int) -> dict[str, Any]:
    return {
        "changed": made.changed, "reason": made.reason, "messages_before": before, "covered": len(made.covered),
        "tokens_before": made.tokens_before, "tokens_after": made.tokens_after, "author": made.author,
        "verification": asdict(made.verification), "steps": list(made.steps), "warnings": list(made.warnings),
    }  # fmt: skip


RULE = "Rules for this conversation:\n- {rule}"


async def pin(here: Here, argument: str) -> CommandResult:
    rule = " ".join(argument.split())
    if not rule:
        raise InputError("say which rule: /pin Never touch the invoices folder")
    await add_pin(here.store, here.conversation.id, rule)
    await here.conversation.add({"role": "user", "content": RULE.format(rule=rule)})
    return CommandResult(
        f"Pinned: {rule}\n\nIt stays in view, word for word, through every compaction.", {"rule": rule}
    )


async def memory(here: Here, argument: str) -> CommandResult:
    kept = here.agent.memory if here.agent else None
    if kept is None:
        raise InputError("this conversation has no memory; it belongs to no agent")
    verb, _, rest = argument.partition(" ")
    if verb in ("", "show", "list"):
        return _shown(kept)
    shelf, text = _which(rest.strip())
    if verb == "add":
        change = await kept.add(shelf, text)
        note = " A credential in it was left out." if change.redacted else ""
        said = f"Kept in {FILES[shelf]}: {change.entry}.{note} New sessions see it."
    elif verb == "remove":
        change = await kept.remove(shelf, text)
        said = f"Removed from {FILES[shelf]}: {change.entry}"
    else:
        raise InputError(f"/memory {verb} is unknown; use show, add or remove")
    return CommandResult(said, {"shelf": shelf, "entry": change.entry})


def _which(rest: str) -> tuple[Shelf, str]:
    """`user TEXT` is about the user, everything else for the agent's own file."""
    first, _, text = rest.partition(" ")
    return (first, text.strip()) if first in SHELVES and text.strip() else ("memory", rest)


def _shown(kept: Memory) -> CommandResult:
    entries = {shelf: kept.entries(shelf) for shelf in SHELVES}
    blocks = [
        block
        for shelf, items in entries.items()
        for block in (
            f"**{FILES[shelf]}**{'' if items else ': nothing yet'}",
            "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)),
        )
    ]
    data: dict[str, Any] = {"folder": str(kept.folder)}
    data |= {str(shelf): items for shelf, items in entries.items()}
    return CommandResult(paragraphs(*blocks), data)


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
