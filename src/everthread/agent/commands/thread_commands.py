"""`/search`, `/sessions`, `/new`, `/resume` and `/branch`: other conversations."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from everthread.agent.commands.dispatch import CommandResult, CommandScope, command
from everthread.core.search.search_results import format_utc_time
from everthread.core.text import count_noun, excerpt
from everthread.errors import InputError
from everthread.store.records import NewSession, Session, ThreadRow
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from everthread.thread.lookup.thread_title import load_title

DEFAULT_LISTED_THREADS = 10
MAX_LISTED_THREADS = 100
MAX_HITS = 10
MAX_NEIGHBOUR_CHARS = 64
"""Characters of a neighbouring message, so that it fits on one line."""
MAX_TITLE_CHARS = 60
LOADED_PER_LISTED_THREAD = 4
"""Threads to load per thread to list, because some are skipped."""


@command("/search TEXT", "search all conversations")
async def run_search(scope: CommandScope, argument: str) -> CommandResult:
    if not argument:
        raise InputError('say what to look for: /search retry budget, or /search "an exact phrase"')
    query = SearchQuery(argument, tenant=scope.conversation.session.tenant, limit=MAX_HITS)
    hits = (await scope.store.find(query)).hits
    hit_messages = {hit.message for hit in hits}
    lines = []
    data = []
    for hit in hits:
        reference = f"#{hit.message}" if hit.message is not None else hit.output or ""
        author = " ".join(filter(None, (hit.role, hit.tool)))
        lines.append(
            f"- `{hit.thread[:8]}` {reference} {author}, {format_utc_time(hit.created)}: {excerpt(hit.snippet, 200)}"
        )
        neighbours = {"before": hit.before, "after": hit.after}
        lines += [
            f"  - {position} {excerpt(neighbour.as_line(hit_messages), MAX_NEIGHBOUR_CHARS)}"
            for position, neighbour in neighbours.items()
            if neighbour
        ]
        data.append(
            {
                "thread": hit.thread,
                "message": hit.message,
                "output": hit.output,
                "snippet": hit.snippet,
            }
            | {
                position: neighbour and asdict(neighbour)
                for position, neighbour in neighbours.items()
            }
        )
    if not lines:
        count = await scope.store.count_threads(tenant=scope.conversation.session.tenant)
        count_text = count_noun(count, "conversation")
        lines = [
            f"Nothing was found for {argument!r} in the messages and stored outputs of {count_text}."
        ]
    return CommandResult("\n".join(lines), {"hits": data})


@command("/sessions [COUNT]", "the last conversations")
async def run_sessions(scope: CommandScope, argument: str) -> CommandResult:
    if argument and not argument.isdecimal():
        raise InputError(
            f"{argument!r} is not a number; /sessions 20 lists the last 20 conversations"
        )
    count = min(int(argument or DEFAULT_LISTED_THREADS), MAX_LISTED_THREADS)
    rows = await scope.store.list_threads(
        tenant=scope.conversation.session.tenant, limit=LOADED_PER_LISTED_THREAD * count
    )
    current_thread = scope.conversation.id
    shown_rows = [
        row
        for row in rows
        if row.first.id == current_thread
        or (row.first.kind != "subagent" and row.message_count > 0)
    ]
    threads = [await _make_thread_figures(scope, row) for row in shown_rows[:count]]
    lines = [_format_thread(item) for item in threads]
    return CommandResult(
        "\n".join(lines) or "There are no conversations yet.", {"threads": threads}
    )


async def _make_thread_figures(scope: CommandScope, row: ThreadRow) -> dict[str, Any]:
    title = await _load_short_title(scope.store, row.tip if row.tip.title else row.first)
    return {
        "thread": row.first.id,
        "title": title,
        "messages": row.message_count,
        "tokens": row.token_count,
        "compactions": row.compaction_count,
        "active": row.last_active,
        "here": row.first.id == scope.conversation.id,
    }


def _format_thread(thread: dict[str, Any]) -> str:
    sizes = f"{count_noun(thread['messages'], 'message')}, {count_noun(thread['compactions'], 'compaction')}"
    mark = " (this one)" if thread["here"] else ""
    title = thread["title"] or "(nothing said)"
    return f"- `{thread['thread'][:8]}`{mark} {title}: {sizes}, {format_utc_time(thread['active'])}"


async def _load_short_title(store: Store, session: Session) -> str:
    return excerpt(await load_title(store, session), MAX_TITLE_CHARS)


@command("/new [TITLE]", "start a new conversation")
async def run_new(scope: CommandScope, argument: str) -> CommandResult:
    session = scope.conversation.session
    session_to_open = NewSession(
        tenant=session.tenant,
        platform=session.platform,
        user=session.user,
        title=argument,
    )
    conversation = await scope.conversation.open_another(new=session_to_open)
    await conversation.close()
    text = f"A new conversation: `{conversation.id[:8]}`. `/resume {session.thread[:8]}` goes back."
    return CommandResult(
        text,
        {"thread": conversation.id, "previous": session.thread},
        next_session=conversation.session.id,
    )


@command("/resume [ID]", "continue another conversation")
async def run_resume(scope: CommandScope, argument: str) -> CommandResult:
    if not argument:
        listing = await run_sessions(scope, "")
        return CommandResult(f"{listing.text}\n\n`/resume ID` continues one of them.", listing.data)
    session = await scope.store.resolve(argument, tenant=scope.conversation.session.tenant)
    tip = await scope.store.load_session(await scope.store.get_compression_tip(session.id))
    title = await _load_short_title(scope.store, tip)
    text = f"Continuing `{tip.thread[:8]}` {title}: {count_noun(tip.message_count, 'message')} in the prompt."
    current_model = scope.conversation.route.name
    if tip.model and tip.model != current_model:
        text += f" It was with {tip.model}; {current_model} answers now (`/model` changes it)."
    return CommandResult(text, {"thread": tip.thread, "session": tip.id}, next_session=tip.id)


@command(
    "/branch [TITLE]",
    "continue in a copy; this conversation stays as it is",
    changes_context=True,
)
async def run_branch(scope: CommandScope, argument: str) -> CommandResult:
    old_thread = scope.conversation.id
    conversation = await scope.conversation.branch(title=argument)
    await conversation.close()
    text = f"A branch: `{conversation.id[:8]}`. `{old_thread[:8]}` stays as it is."
    return CommandResult(
        text,
        {"thread": conversation.id, "parent": old_thread},
        next_session=conversation.session.id,
    )
