"""Slash commands: text in, a result out. They print nothing and are never sent to the model.

if commands.parse(line):
    result = await commands.run(agent, agent.conversation.store, line)
    print(result.text)
    if result.switch:
        await agent.switch(result.switch)
"""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from everthread.agent.events import CauseLog
from everthread.agent.loop import Agent
from everthread.agent.memory import FILES, SHELVES, MemoryFiles, Shelf
from everthread.compaction.summary import Compaction
from everthread.conversation.conversation import Conversation
from everthread.conversation.thread_state import (
    add_pin,
    changed_files,
    load_thread_state,
    load_thread_usage,
    load_title,
    state_figures,
)
from everthread.core.messages import Message, calls_of, count_noun, excerpt, results_of
from everthread.core.pricing import format_dollars
from everthread.core.redaction import redact
from everthread.core.search.lookup import moment
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import is_summary
from everthread.errors import EverthreadError, InputError, NothingToUndoError
from everthread.store.index import searchable_text
from everthread.store.models import (
    CompactionRecord,
    NewSession,
    SearchQuery,
    Session,
    ThreadRow,
    UsageRow,
)
from everthread.store.sql.usage import sum_usage, usage_figures, usage_row
from everthread.store.store import Store

__all__ = ["COMMANDS", "Command", "CommandResult", "parse", "run"]

ALIASES = {"clear": "new", "cost": "usage", "compact": "compress", "history": "sessions"}
"""Names that other programs use."""
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The conversation, store and agent that a command works on."""

    conversation: Conversation
    store: Store
    agent: Agent | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The answer of a command."""

    text: str
    """Markdown, plain enough to be read as it is."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same as JSON values."""
    switch: str | None = None
    """The session to continue in."""
    failed: bool = False


Handler = Callable[[CommandScope, str], Awaitable[CommandResult]]


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command: its name without the slash, its usage, its help."""

    name: str
    usage: str
    help: str
    handler: Handler
    changes: bool = False
    """It changes what the model sees, so it cannot run during a turn."""


COMMANDS: list[Command] = []
"""In the order of this file, which is that of `/help`."""


def command(usage: str, text: str, *, changes: bool = False) -> Callable[[Handler], Handler]:
    """Make a function a command."""

    def register(handler: Handler) -> Handler:
        COMMANDS.append(Command(usage.split(maxsplit=1)[0].removeprefix("/"), usage, text, handler, changes))
        return handler

    return register


def parse(text: str) -> tuple[str, str] | None:
    """The command's own name and its argument; None for a message. A path (`/etc/hosts`) is a message."""
    match = _COMMAND.fullmatch(text.strip())
    return (_resolve_name(match[1]), (match[2] or "").strip()) if match else None


def _resolve_name(name: str) -> str:
    return ALIASES.get(name.lower(), name.lower())


async def run(agent: Agent | Conversation, store: Store, text: str) -> CommandResult:
    """Run a command. An error is part of the result."""
    parsed = parse(text)
    if parsed is None:
        return CommandResult(f"{text.strip()[:80]!r} is not a command; /help lists them.", failed=True)
    name, argument = parsed
    known = next((one for one in COMMANDS if one.name == name), None)
    if known is None:
        return _unknown(name)
    owner = agent if isinstance(agent, Agent) else None
    if owner is not None and owner.busy and known.changes:
        return CommandResult(f"A turn is under way: stop it, or give /{name} again when it is over.", failed=True)
    scope = CommandScope(owner.conversation if owner else agent, store, owner)  # type: ignore[arg-type]  # one or the other
    try:
        return await known.handler(scope, argument)
    except EverthreadError as error:
        return CommandResult(f"/{name} failed: {error}", {"error": str(error)}, failed=True)


def _unknown(name: str) -> CommandResult:
    names = [one.name for one in COMMANDS]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near += [other for other in names if other.startswith(name) and other not in near]
    hint = f" Did you mean {' or '.join(f'/{other}' for other in near)}?" if near else ""
    return CommandResult(f"There is no command /{name}.{hint} /help lists them all.", {"near": near}, failed=True)


def paragraphs(*blocks: str | Sequence[str]) -> str:
    """Join Markdown blocks with a blank line between them; a list is one block, empty blocks are left out."""
    texts = [block if isinstance(block, str) else "\n".join(f"- {item}" for item in block) for block in blocks]
    return "\n\n".join(text for text in texts if text)


@command("/help [COMMAND]", "list the commands")
async def show_help(_scope: CommandScope, argument: str) -> CommandResult:
    name = _resolve_name(argument.lstrip("/"))
    listed = [one for one in COMMANDS if name in ("", one.name)]
    if not listed:
        return _unknown(name)
    lines = [f"- `{one.usage}`: {one.help}" for one in listed]
    data = {"commands": [{"name": one.name, "usage": one.usage, "help": one.help} for one in listed]}
    return CommandResult("\n".join(lines), data)


# The history and its window

PREVIEW = "--preview"
MAX_PREVIEW_LINES = 20


@command("/compress [--preview] [FOCUS]", "compact the history now, or only show what would go", changes=True)
async def compress(scope: CommandScope, argument: str) -> CommandResult:
    words = argument.split()
    focus = " ".join(word for word in words if word != PREVIEW) or None
    before = len(scope.conversation.messages)
    if PREVIEW in words:
        return _describe_preview(await scope.conversation.preview(focus), scope.conversation.messages)
    compaction = await scope.conversation.compress(focus)
    if not compaction.changed:
        return CommandResult(f"Nothing was changed: {compaction.reason}.", _compaction_figures(compaction, before))
    after = len(scope.conversation.messages)
    sizes = f"{count_noun(before, 'message')} → {after:,}, {compaction.tokens_before:,} → {compaction.tokens_after:,}"
    text = paragraphs(
        f"Compacted: {sizes} tokens. The summary was written by {compaction.author}; {_describe_check(compaction)}.",
        [*compaction.steps, *(f"Warning: {warning}" for warning in compaction.warnings)],
        "`/undo` takes it back.",
    )
    return CommandResult(text, _compaction_figures(compaction, before) | {"messages_after": after})


def _describe_preview(compaction: Compaction, messages: Sequence[Message]) -> CommandResult:
    most = min(compaction.tokens_after, compaction.tokens_before)  # a compaction that saves nothing is not done
    figures = _compaction_figures(compaction, len(messages)) | {"tokens_after": most}
    if not compaction.covered and not compaction.phases:
        return CommandResult(f"Nothing would be changed: {compaction.reason}.", figures)
    sizes = f"{compaction.tokens_before:,} tokens to at most {most:,}"
    covered = f"of {count_noun(len(messages), 'message')} {len(compaction.covered):,} would be summarised"
    phases = [f"{one.name}: {one.before:,} → {one.after:,} tokens. {one.note}".rstrip() for one in compaction.phases]
    removed = [
        f"{messages[index]['role']}: {excerpt(redact(searchable_text(messages[index])[:4_000]), 90)}"
        for index in compaction.covered[:MAX_PREVIEW_LINES]
    ]
    more = len(compaction.covered) - len(removed)
    text = paragraphs(
        f"A compaction would take {sizes}: {covered}. Nothing was changed.",
        [*phases, *compaction.steps],
        "Out of view:" if removed else "",
        removed,
        f"… and {more:,} more" if more else "",
    )
    return CommandResult(text, figures)


def _describe_check(compaction: Compaction) -> str:
    result = compaction.verification
    if not result.facts and not result.checked:
        return "there was nothing to check it against"
    return (
        f"checked: {result.present + result.added:,} of {result.facts:,} top facts in it, {result.added:,} added; "
        f"{result.unverified:,} of {result.checked:,} names unverified"
    )


def _compaction_figures(compaction: Compaction, before: int) -> dict[str, Any]:
    names = ("changed", "reason", "tokens_before", "tokens_after", "author")
    return {name: getattr(compaction, name) for name in names} | {
        "messages_before": before,
        "covered": len(compaction.covered),
        "verification": asdict(compaction.verification),
        "steps": list(compaction.steps),
        "warnings": list(compaction.warnings),
    }


@command("/undo", "take the last compaction back", changes=True)
async def undo(scope: CommandScope, _argument: str) -> CommandResult:
    try:
        session = await scope.conversation.undo()
    except NothingToUndoError:
        return CommandResult("There is nothing to undo: this conversation has not been compacted.", {"undone": False})
    count, tokens = len(scope.conversation.messages), scope.conversation.tokens
    text = f"The last compaction was taken back: {count_noun(count, 'message')}, about {tokens:,} tokens in view again."
    return CommandResult(text, {"session": session.id, "messages": count, "tokens": tokens})


KINDS = ("system prompt", "tools", "summary", "user", "assistant", "tool calls", "tool results")


@command("/context", "what fills the window, by kind")
async def context(scope: CommandScope, _argument: str) -> CommandResult:
    conversation = scope.conversation
    window, threshold, sizes = conversation.window, conversation.threshold, count_by_kind(conversation)
    used = sum(sizes.values())
    text = paragraphs(
        f"{used:,} of {window:,} tokens ({used / window:.0%}); compaction starts at {threshold:,}.",
        [*(f"{name}: {size:,} ({size / window:.1%})" for name, size in sizes.items()),
         f"free: {max(0, window - used):,}"],
    )  # fmt: skip
    return CommandResult(text, {"window": window, "threshold": threshold, "tokens": used, "kinds": sizes})


def count_by_kind(conversation: Conversation) -> dict[str, int]:
    """The tokens of the next request by kind, scaled to the conversation's own count."""
    counter = TokenCounter(conversation.route.name)
    sizes = dict.fromkeys(KINDS, 0)
    sizes["system prompt"] = counter.system(conversation.session.system)
    sizes["tools"] = counter.tools(conversation.tools)
    for message in conversation.messages:
        for kind, tokens in _split_message(counter, message):
            sizes[kind] += tokens
    measured = sum(sizes.values())
    scale = conversation.tokens / measured if measured and conversation.messages else 1.0
    return {kind: round(tokens * scale) for kind, tokens in sizes.items()}


def _split_message(counter: TokenCounter, message: Message) -> list[tuple[str, int]]:
    total = counter.message(message)
    if is_summary(message):
        return [("summary", total)]
    if results_of(message):
        return [("tool results", total)]
    if message["role"] != "assistant":
        return [("user", total)]
    in_calls = sum(counter.text(f"{call.name} {call.arguments}") for call in calls_of(message))
    return [("tool calls", min(in_calls, total)), ("assistant", max(0, total - in_calls))]


SHOWN_ROWS = 10


@command("/state", "files, commands, tests, open errors and the to-do list")
async def state(scope: CommandScope, _argument: str) -> CommandResult:
    data = state_figures(await load_thread_state(scope.store, scope.conversation.id))
    changed = changed_files(data)
    blocks: list[str | list[str]] = []
    directory = ", ".join(filter(None, (data["directory"], f"branch {data['branch']}" if data["branch"] else "")))
    blocks += [f"Working in {directory}."] if directory else []
    for title, lines in (
        ("Files changed", [f"`{file['path']}`, turn {file['turn']}" for file in changed]),
        ("Tests", [_command_line(run) for run in data["commands"] if run["test"]]),
        ("Commands", [_command_line(run) for run in data["commands"] if not run["test"]]),
        ("Open errors", [f"`{one['source']}`: {excerpt(' '.join(one['lines']), 100)}" for one in data["open_errors"]]),
        ("Running", [f"`{process}`" for process in data["processes"]]),
        ("To do", [f"{item['text']} ({item['status'] or 'open'})" for item in data["todo"]]),
    ):
        if lines:
            more = [f"… and {len(lines) - SHOWN_ROWS:,} more"] if len(lines) > SHOWN_ROWS else []
            blocks += [f"**{title}**", [*lines[:SHOWN_ROWS], *more]]
    return CommandResult(paragraphs(*blocks) or "No tool was called in this conversation yet.", data)


def _command_line(run: Mapping[str, Any]) -> str:
    return f"{'✓' if run['ok'] else '✗'} `{excerpt(run['command'], 80)}`: {run['outcome']}, turn {run['turn']}"


REASONS = {
    "in-loop": "the prompt had reached the threshold while the turn went on",
    "preflight": "the new message took the prompt to the threshold",
    "hygiene": "the stored history was over 85 % of the window before a message came in",
    "cold-cache": "the provider's cache had forgotten the prompt, so a rewrite cost nothing there",
    "overflow": "the provider refused the request as too long",
    "manual": "the user asked for it with /compress",
}


@command("/why", "why the last compaction or cache miss happened")
async def why(scope: CommandScope, _argument: str) -> CommandResult:
    records = [record for record in await scope.store.compactions(scope.conversation.id) if record.reverted is None]
    last = records[-1] if records else None
    journal = scope.agent.journal if scope.agent else None
    first = _describe_compaction(last, len(records)) if last else "This conversation was never compacted."
    text = paragraphs(first, _describe_cache(journal))
    data: dict[str, Any] = {"compactions": len(records), "reason": last.record.reason if last else None}
    data["cache_miss"] = journal.miss.why if journal and journal.miss else None
    return CommandResult(text, data)


def _describe_compaction(last: CompactionRecord, count: int) -> str:
    record = last.record
    reason = REASONS.get(record.reason, record.reason or "no reason was recorded")
    focus = f", with a focus on {record.focus!r}" if record.focus else ""
    decision = record.figures.get("decision")
    return (
        f"Compaction {count} ({moment(last.created)}): {reason}{focus}. "
        f"{record.tokens_before:,} → {record.tokens_after:,} tokens, {len(record.covered):,} messages summarised by "
        f"{record.author or 'nobody'}.{f' Weighed, {decision}.' if decision else ''}"
    )


def _describe_cache(journal: CauseLog | None) -> str:
    if journal is None or journal.calls == 0:
        return "Cache: no call was seen since this process began."
    if journal.miss is None:
        return f"Cache: no miss in the {journal.calls:,} calls seen since this process began."
    miss = journal.miss
    return (
        f"Cache miss ({moment(miss.at)}): of {miss.expected:,} tokens the provider had just seen, {miss.cached:,} were "
        f"read from its cache, because {miss.why}."
    )


# What lasts

RULE = "Rules for this conversation:\n- {rule}"


@command("/pin RULE", "a rule that stays in view, word for word, through every compaction", changes=True)
async def pin(scope: CommandScope, argument: str) -> CommandResult:
    rule = " ".join(argument.split())
    if not rule:
        raise InputError("say which rule: /pin Never touch the invoices folder")
    await add_pin(scope.store, scope.conversation.id, rule)
    await scope.conversation.add({"role": "user", "content": RULE.format(rule=rule)})
    return CommandResult(
        f"Pinned: {rule}\n\nIt stays in view, word for word, through every compaction.", {"rule": rule}
    )


@command("/memory [show | add [user] TEXT | remove [user] TEXT]", "what lasts beyond this conversation")
async def memory(scope: CommandScope, argument: str) -> CommandResult:
    files = scope.agent.memory if scope.agent else None
    if files is None:
        raise InputError("this conversation has no memory; it belongs to no agent")
    verb, _, rest = argument.partition(" ")
    if verb in ("", "show", "list"):
        return _show_memory(files)
    shelf, text = _parse_memory_target(rest.strip())
    if verb == "add":
        change = await files.add(shelf, text)
        note = " A credential in it was left out." if change.redacted else ""
        answer = f"Kept in {FILES[shelf]}: {change.entry}.{note} New sessions see it."
    elif verb == "remove":
        change = await files.remove(shelf, text)
        answer = f"Removed from {FILES[shelf]}: {change.entry}"
    else:
        raise InputError(f"/memory {verb} is unknown; use show, add or remove")
    return CommandResult(answer, {"shelf": shelf, "entry": change.entry})


def _parse_memory_target(rest: str) -> tuple[Shelf, str]:
    """`user TEXT` goes to USER.md, everything else to MEMORY.md."""
    first, _, text = rest.partition(" ")
    return (first, text.strip()) if first in SHELVES and text.strip() else ("memory", rest)


def _show_memory(files: MemoryFiles) -> CommandResult:
    entries = {shelf: files.entries(shelf) for shelf in SHELVES}
    blocks = [
        block
        for shelf, items in entries.items()
        for block in (
            f"**{FILES[shelf]}**{'' if items else ': nothing yet'}",
            "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)),
        )
    ]
    data: dict[str, Any] = {"folder": str(files.folder)}
    data |= {str(shelf): items for shelf, items in entries.items()}
    return CommandResult(paragraphs(*blocks), data)


# Conversations

LISTED, MOST_LISTED = 10, 100
MAX_HITS = 10
MAX_NEIGHBOUR_CHARS = 64
"""So that it is one line of a terminal."""
MAX_TITLE_CHARS = 60
LOOKED_AT = 4
"""Threads that are loaded for each that is listed."""


@command("/search TEXT", "search all conversations")
async def search(scope: CommandScope, argument: str) -> CommandResult:
    if not argument:
        raise InputError('say what to look for: /search retry budget, or /search "an exact phrase"')
    query = SearchQuery(argument, tenant=scope.conversation.session.tenant, limit=MAX_HITS)
    hits = (await scope.store.find(query)).hits
    found = {hit.message for hit in hits}
    lines, data = [], []
    for hit in hits:
        number = f"#{hit.message}" if hit.message is not None else hit.output or ""
        who = " ".join(filter(None, (hit.role, hit.tool)))
        lines.append(f"- `{hit.thread[:8]}` {number} {who}, {moment(hit.created)}: {excerpt(hit.snippet, 200)}")
        beside = {"before": hit.before, "after": hit.after}
        lines += [
            f"  - {side} {excerpt(one.as_line(found), MAX_NEIGHBOUR_CHARS)}" for side, one in beside.items() if one
        ]
        data.append(
            {"thread": hit.thread, "message": hit.message, "output": hit.output, "snippet": hit.snippet}
            | {side: one and asdict(one) for side, one in beside.items()}
        )
    return CommandResult("\n".join(lines) or f"Nothing was found for {argument!r}.", {"hits": data})


@command("/sessions [COUNT]", "the last conversations")
async def sessions(scope: CommandScope, argument: str) -> CommandResult:
    if argument and not argument.isdecimal():
        raise InputError(f"{argument!r} is not a number; /sessions 20 lists the last 20 conversations")
    count = min(int(argument or LISTED), MOST_LISTED)
    rows = await scope.store.list_threads(tenant=scope.conversation.session.tenant, limit=LOOKED_AT * count)
    here = scope.conversation.id
    listed = [row for row in rows if row.first.id == here or (row.first.kind != "subagent" and row.messages > 0)]
    threads = [await _thread_figures(scope, row) for row in listed[:count]]
    lines = [_thread_line(item) for item in threads]
    return CommandResult("\n".join(lines) or "There are no conversations yet.", {"threads": threads})


async def _thread_figures(scope: CommandScope, row: ThreadRow) -> dict[str, Any]:
    title = await _load_short_title(scope.store, row.tip if row.tip.title else row.first)
    return {
        "thread": row.first.id, "title": title, "messages": row.messages, "tokens": row.tokens,
        "compactions": row.compactions, "active": row.active, "here": row.first.id == scope.conversation.id,
    }  # fmt: skip


def _thread_line(item: dict[str, Any]) -> str:
    sizes = f"{count_noun(item['messages'], 'message')}, {count_noun(item['compactions'], 'compaction')}"
    mark = " (this one)" if item["here"] else ""
    return f"- `{item['thread'][:8]}`{mark} {item['title'] or '(nothing said)'}: {sizes}, {moment(item['active'])}"


async def _load_short_title(store: Store, session: Session) -> str:
    return excerpt(await load_title(store, session), MAX_TITLE_CHARS)


@command("/new [TITLE]", "begin a new conversation")
async def new(scope: CommandScope, argument: str) -> CommandResult:
    session = scope.conversation.session
    session_to_open = NewSession(tenant=session.tenant, platform=session.platform, user=session.user, title=argument)
    conversation = await scope.conversation.another(new=session_to_open)
    await conversation.close()
    text = f"A new conversation: `{conversation.id[:8]}`. `/resume {session.thread[:8]}` goes back."
    return CommandResult(text, {"thread": conversation.id, "previous": session.thread}, switch=conversation.session.id)


@command("/resume [ID]", "continue another conversation")
async def resume(scope: CommandScope, argument: str) -> CommandResult:
    if not argument:
        listing = await sessions(scope, "")
        return CommandResult(f"{listing.text}\n\n`/resume ID` goes on with one of them.", listing.data)
    session = await scope.store.resolve(argument, tenant=scope.conversation.session.tenant)
    tip = await scope.store.session(await scope.store.get_compression_tip(session.id))
    title = await _load_short_title(scope.store, tip)
    text = f"Going on with `{tip.thread[:8]}` {title}: {count_noun(tip.messages, 'message')} in view."
    return CommandResult(text, {"thread": tip.thread, "session": tip.id}, switch=tip.id)


@command("/branch [TITLE]", "continue in a copy; this conversation stays as it is", changes=True)
async def branch(scope: CommandScope, argument: str) -> CommandResult:
    old = scope.conversation.id
    conversation = await scope.conversation.branch(title=argument)
    await conversation.close()
    text = f"A branch: `{conversation.id[:8]}`. `{old[:8]}` stays as it is."
    return CommandResult(text, {"thread": conversation.id, "parent": old}, switch=conversation.session.id)


# The model and its cost


@command("/model [NAME]", "which model answers, or another one", changes=True)
async def model(scope: CommandScope, argument: str) -> CommandResult:
    if argument:
        if scope.agent is None:
            raise InputError("this conversation cannot change its model")
        await scope.agent.use_model(argument)
    conversation = scope.conversation
    route = conversation.route
    size = f"{conversation.window:,} tokens"
    window = route.source if route.source.startswith(size) else f"{size} ({route.source})"
    answer = f"{'Now answering' if argument else 'Answering'}: `{route.name}`, {window}."
    if argument and conversation.tokens >= conversation.threshold:
        answer += " The history is over its threshold: it will be compacted before the next call."
    data = {"model": route.name, "window": conversation.window, "source": route.source, "api": route.api}
    return CommandResult(answer, data)


DAY = 86_400
DAYS, MOST_DAYS = 30, 3_660


@command("/usage", "tokens and cost of this conversation")
async def usage(scope: CommandScope, _argument: str) -> CommandResult:
    conversation, thread = scope.conversation, scope.conversation.id
    out = list(conversation.toolbox.out)
    parts = await load_thread_usage(scope.store, thread)
    *rows, total = [sum_usage(key, [*map(usage_row, part)]) for key, part in parts.items() if part or key == "all"]
    sums = {row.key: usage_figures(row) for row in (*rows, total)}
    data = {"thread": thread, "sums": sums, "tools_left_out": out}
    if not total.calls:
        return CommandResult("No call to a model is recorded for this conversation yet.", data)
    lines = [_usage_line(row) for row in ([*rows, total] if len(rows) > 1 else [total])]
    ahead = f"The next prompt: about {conversation.tokens:,} of {conversation.window:,} tokens."
    tools = count_noun(len(conversation.toolbox.given), "tool")
    left_out = f"{len(out):,} of {tools} are left out: {', '.join(out)}." if out else ""
    return CommandResult(paragraphs(lines, ahead, left_out), data)


@command("/insights [DAYS]", "where tokens and money went")
async def insights(scope: CommandScope, argument: str) -> CommandResult:
    if argument and not (argument.isdecimal() and 1 <= int(argument) <= MOST_DAYS):
        raise InputError(f"{argument!r} is not a number of days; /insights 7 shows the last week")
    days, until = int(argument or DAYS), time.time() + 1
    since = (until // DAY - days + 1) * DAY
    figures = await scope.store.insights(since=since, until=until, tenant=scope.conversation.session.tenant)
    counts = [count_noun(figures.threads, "conversation"), count_noun(figures.messages, "message")]
    counts += [count_noun(figures.compactions, "compaction"), f"{figures.tokens_saved:,} tokens saved by them"]
    if figures.lookups:
        counts.append(f"{count_noun(figures.lookups, 'lookup')} of what had left the context")
    blocks: list[str | list[str]] = [f"The last {count_noun(days, 'day')}: {', '.join(counts)}."]
    blocks.append([_usage_line(replace(figures.total, key="all"))])
    for name in ("model", "platform"):
        rows = sorted(getattr(figures, f"by_{name}"), key=lambda row: -(row.prompt + row.output))
        blocks += [f"**By {name}**", [_usage_line(row) for row in rows]] if rows else []
    if figures.by_tool:
        tools = [f"{row.tool}: {count_noun(row.results, 'result')}, {row.tokens:,} tokens" for row in figures.by_tool]
        blocks += ["**By tool**", tools]
    names = ("threads", "messages", "compactions", "tokens_saved", "lookups")
    data = {"days": days, "total": usage_figures(figures.total)} | {name: getattr(figures, name) for name in names}
    data["by_model"] = {row.key: usage_figures(row) for row in figures.by_model}
    return CommandResult(paragraphs(*blocks), data)


def _usage_line(row: UsageRow) -> str:
    hits = "" if row.cache_share is None else f" ({row.cache_share:.0%} from the cache)"
    prompt = f"{row.prompt:,} tokens read{hits}, {row.output:,} written"
    return f"{row.key or '(none)'}: {count_noun(row.calls, 'call')}, {prompt}, {_cost(row)}"


def _cost(row: UsageRow) -> str:
    """A missing price is unknown, never zero."""
    if row.unpriced == row.calls and row.calls:
        return "cost unknown"
    cost = format_dollars(row.cost)
    return f"{cost} + {count_noun(row.unpriced, 'call')} without a known price" if row.unpriced else cost
