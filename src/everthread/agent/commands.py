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
from decimal import Decimal
from typing import Any

from everthread.agent.events import CauseLog
from everthread.agent.loop import Agent
from everthread.agent.memory import FILES, SHELVES, MemoryFiles, Shelf
from everthread.compaction.summary import Compaction
from everthread.conversation import events
from everthread.conversation.conversation import Conversation
from everthread.conversation.thread_state import (
    add_pin,
    changed_files,
    load_thread_state,
    load_thread_usage,
    load_title,
    state_figures,
)
from everthread.core.messages import Message, calls_of, counted, excerpt, results_of
from everthread.core.redaction import redact
from everthread.core.search.lookup import moment
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import is_summary
from everthread.errors import EverthreadError, InputError, NothingToUndoError
from everthread.store.index import searchable_text
from everthread.store.models import (
    CompactionRecord,
    NewCompaction,
    NewSession,
    SearchQuery,
    Session,
    ThreadRow,
    UsageRow,
)
from everthread.store.sql.usage import sum_usage, usage_figures, usage_row
from everthread.store.store import Store


@dataclass(frozen=True, slots=True)
class Here:
    """Where a command was given."""

    conversation: Conversation
    store: Store
    agent: Agent | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command answers."""

    text: str
    """Markdown, plain enough to be read as it is."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same as JSON values."""
    switch: str | None = None
    """The session to go on in."""
    failed: bool = False


def paragraphs(*blocks: str | Sequence[str]) -> str:
    """Markdown blocks with a blank line between them; the items of a list are one block, empty ones are left out."""
    texts = [block if isinstance(block, str) else "\n".join(f"- {item}" for item in block) for block in blocks]
    return "\n\n".join(text for text in texts if text)


PREVIEW = "--preview"
PREVIEWED = 20


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
        [_message_line(message) for message in going[:PREVIEWED]],
        f"… and {len(going) - PREVIEWED:,} more" if len(going) > PREVIEWED else "",
    )
    return CommandResult(text, figures)


def _message_line(message: Message) -> str:
    return f"{message['role']}: {excerpt(redact(searchable_text(message)[:4_000]), 90)}"


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
        return _memory_shown(kept)
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


def _memory_shown(kept: MemoryFiles) -> CommandResult:
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


LISTED, MOST_LISTED = 10, 100
HITS = 10
TITLE = 60
LOOKED_AT = 4
"""So many threads are looked at for each that is listed."""


async def sessions(here: Here, argument: str) -> CommandResult:
    if argument and not argument.isdecimal():
        raise InputError(f"{argument!r} is no number; /sessions 20 lists the last 20 conversations")
    count = min(int(argument or LISTED), MOST_LISTED)
    rows = await here.store.list_threads(tenant=here.conversation.session.tenant, limit=LOOKED_AT * count)
    listed = [await _row(here, row) for row in [row for row in rows if _is_talk(here, row)][:count]]
    lines = [_listed(item) for item in listed]
    return CommandResult("\n".join(lines) or "There are no conversations yet.", {"threads": listed})


async def search(here: Here, argument: str) -> CommandResult:
    if not argument:
        raise InputError('say what to look for: /search retry budget, or /search "an exact phrase"')
    hits = await here.store.search(SearchQuery(argument, tenant=here.conversation.session.tenant, limit=HITS))
    lines, data = [], []
    for hit in hits:
        place = f"#{hit.message}" if hit.message is not None else hit.output or ""
        who = " ".join(filter(None, (hit.role, hit.tool)))
        lines.append(f"- `{hit.thread[:8]}` {place} {who}, {moment(hit.created)}: {excerpt(hit.snippet, 200)}")
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
    return excerpt(await load_title(store, session), TITLE)


DAY = 86_400
DAYS, MOST_DAYS = 30, 3_660
LOOKED_UP = "{} of what had left the context"


async def usage(here: Here, _argument: str) -> CommandResult:
    thread = here.conversation.id
    parts = await load_thread_usage(here.store, thread)
    *rows, total = [sum_usage(key, [*map(usage_row, part)]) for key, part in parts.items() if part or key == "all"]
    data: dict[str, Any] = {"thread": thread, "sums": {row.key: usage_figures(row) for row in (*rows, total)}}
    data["tools_left_out"] = list(here.conversation.toolbox.out)
    if not total.calls:
        return CommandResult("No call to a model is recorded for this conversation yet.", data)
    lines = [_usage_line(row) for row in ([*rows, total] if len(rows) > 1 else [total])]
    talk = here.conversation
    ahead = f"The next prompt: about {talk.tokens:,} of {talk.window:,} tokens."
    return CommandResult(paragraphs(lines, ahead, _left_out(talk)), data)


async def insights(here: Here, argument: str) -> CommandResult:
    if argument and not (argument.isdecimal() and 1 <= int(argument) <= MOST_DAYS):
        raise InputError(f"{argument!r} is no number of days; /insights 7 shows the last week")
    days, until = int(argument or DAYS), time.time() + 1
    since = (until // DAY - days + 1) * DAY
    found = await here.store.insights(since=since, until=until, tenant=here.conversation.session.tenant)
    counts = [counted(found.threads, "conversation"), counted(found.messages, "message")]
    counts += [counted(found.compactions, "compaction"), f"{found.tokens_saved:,} tokens saved by them"]
    counts += [LOOKED_UP.format(counted(found.lookups, "lookup"))] if found.lookups else []
    blocks: list[str | list[str]] = [f"The last {counted(days, 'day')}: {', '.join(counts)}."]
    blocks.append([_usage_line(replace(found.total, key="all"))])
    for name in ("model", "platform"):
        rows = sorted(getattr(found, f"by_{name}"), key=lambda row: -(row.prompt + row.output))
        blocks += [f"**By {name}**", [_usage_line(row) for row in rows]] if rows else []
    if found.by_tool:
        tools = [f"{row.tool}: {counted(row.results, 'result')}, {row.tokens:,} tokens" for row in found.by_tool]
        blocks += ["**By tool**", tools]
    data = {"days": days, "total": usage_figures(found.total), "threads": found.threads, "messages": found.messages}
    data |= {"compactions": found.compactions, "tokens_saved": found.tokens_saved}
    data |= {"lookups": found.lookups, "by_model": {row.key: usage_figures(row) for row in found.by_model}}
    return CommandResult(paragraphs(*blocks), data)


def _left_out(talk: Conversation) -> str:
    out, given = talk.toolbox.out, len(talk.toolbox.given)
    return f"{len(out):,} of {counted(given, 'tool')} are left out: {', '.join(out)}." if out else ""


def _usage_line(row: UsageRow) -> str:
    hits = "" if row.cache_share is None else f" ({row.cache_share:.0%} from the cache)"
    prompt = f"{row.prompt:,} tokens read{hits}, {row.output:,} written"
    return f"{row.key or '(none)'}: {counted(row.calls, 'call')}, {prompt}, {_cost(row)}"


def _cost(row: UsageRow) -> str:
    """What has no price is unknown, never nothing."""
    if row.unpriced == row.calls and row.calls:
        return "cost unknown"
    known = f"${row.cost:,.4f}" if Decimal(0) < row.cost < 1 else f"${row.cost:,.2f}"
    return f"{known} + {counted(row.unpriced, 'call')} without a known price" if row.unpriced else known


REASONS = {
    "in-loop": "the prompt had reached the threshold while the turn went on",
    "preflight": "the new message took the prompt to the threshold",
    "hygiene": "the stored history was over 85 % of the window before a message came in",
    "cold-cache": "the provider's cache had forgotten the prompt, so a rewrite cost nothing there",
    "overflow": "the provider refused the request as too long",
    "manual": "somebody asked for it with /compress",
}


async def why(here: Here, _argument: str) -> CommandResult:
    records = [record for record in await here.store.compactions(here.conversation.id) if record.reverted is None]
    last = records[-1] if records else None
    journal = here.agent.journal if here.agent else None
    first = _compaction(last, len(records)) if last else "This conversation was never compacted."
    text = paragraphs(first, _since(journal, last), _cache(journal))
    data: dict[str, Any] = {"compactions": len(records), "reason": last.record.reason if last else None}
    data["cache_miss"] = journal.miss.why if journal and journal.miss else None
    return CommandResult(text, data)


def _compaction(last: CompactionRecord, count: int) -> str:
    made = last.record
    reason = REASONS.get(made.reason, made.reason or "no reason was recorded")
    focus = f", with a focus on {made.focus!r}" if made.focus else ""
    return (
        f"Compaction {count} ({moment(last.created)}): {reason}{focus}. {made.tokens_before:,} → {made.tokens_after:,} "
        f"tokens, {len(made.covered):,} messages summarised by {made.author or 'nobody'}.{_weighed(made)}"
    )


def _weighed(made: NewCompaction) -> str:
    decision = made.figures.get("decision")
    return f" Weighed, {decision}." if decision else ""


def _since(journal: CauseLog | None, last: CompactionRecord | None) -> list[str]:
    """What else was tried or learnt about the size since then."""
    after = last.created if last else 0.0
    lines = []
    for at, event in journal.compactions if journal else []:
        if at <= after or isinstance(event, events.CompactionDone):
            continue
        if isinstance(event, events.CompactionVoid):
            lines.append(f"{moment(at)}: a compaction came to nothing: {event.why}")
        elif isinstance(event, events.CompactionFailed):
            lines.append(f"{moment(at)}: a compaction failed: {event.error}")
        elif isinstance(event, events.Planned):
            lines.append(f"{moment(at)}: at {event.tokens:,} tokens, {event.action}: {event.why}")
        elif isinstance(event, events.Recovery):
            lines.append(f"{moment(at)}: the provider refused a request ({event.problem}): {event.action}")
        elif isinstance(event, events.LimitLearnt):
            lines.append(f"{moment(at)}: the window of {event.model} is {event.window:,} tokens: {event.source}")
    return lines


def _cache(journal: CauseLog | None) -> str:
    if journal is None or journal.calls == 0:
        return "Cache: no call was seen since this process began."
    if journal.miss is None:
        return f"Cache: no miss in the {journal.calls:,} calls seen since this process began."
    miss = journal.miss
    return (
        f"Cache miss ({moment(miss.at)}): of {miss.expected:,} tokens the provider had just seen, {miss.cached:,} were "
        f"read from its cache, because {miss.why}."
    )


CELLS = 50
KINDS: Mapping[str, str] = {
    "system prompt": "S",
    "tools": "T",
    "summary": "Z",
    "user": "U",
    "assistant": "A",
    "tool calls": "C",
    "tool results": "R",
}


async def context(here: Here, _argument: str) -> CommandResult:
    talk = here.conversation
    sizes = filling(talk)
    used = sum(sizes.values())
    share = f"{100 * used / talk.window:.0f} %"
    kinds = [f"`{KINDS[name]}` {name}: {size:,} ({100 * size / talk.window:.1f} %)" for name, size in sizes.items()]
    text = paragraphs(
        f"{used:,} of {talk.window:,} tokens ({share}); compaction starts at {talk.threshold:,}.",
        f"`[{_bar(sizes, talk.window, talk.threshold)}]`",
        [*kinds, f"`·` free: {max(0, talk.window - used):,}; `|` where compaction starts"],
    )
    data = {"window": talk.window, "threshold": talk.threshold, "tokens": used, "kinds": sizes}
    return CommandResult(text, data)


async def model(here: Here, argument: str) -> CommandResult:
    if argument:
        if here.agent is None:
            raise InputError("this conversation cannot change its model")
        await here.agent.use_model(argument)
    talk = here.conversation
    route = talk.route
    size = f"{talk.window:,} tokens"
    window = route.source if route.source.startswith(size) else f"{size} ({route.source})"
    said = f"{'Now answering' if argument else 'Answering'}: `{route.name}`, {window}."
    if argument and talk.tokens >= talk.threshold:
        said += " The history is larger than it likes: it will be compacted before the next call."
    return CommandResult(said, {"model": route.name, "window": talk.window, "source": route.source, "api": route.api})


def filling(talk: Conversation) -> dict[str, int]:
    """The tokens of the next request by kind, in sum what the conversation counts."""
    counter = TokenCounter(talk.route.name)
    sizes = dict.fromkeys(KINDS, 0)
    sizes["system prompt"] = counter.system(talk.session.system)
    sizes["tools"] = counter.tools(talk.tools)
    for message in talk.messages:
        for kind, tokens in _parts(counter, message):
            sizes[kind] += tokens
    measured = sum(sizes.values())
    scale = talk.tokens / measured if measured and talk.messages else 1.0
    return {kind: round(tokens * scale) for kind, tokens in sizes.items()}


def _parts(counter: TokenCounter, message: Message) -> list[tuple[str, int]]:
    whole = counter.message(message)
    if is_summary(message):
        return [("summary", whole)]
    if results_of(message):
        return [("tool results", whole)]
    if message["role"] != "assistant":
        return [("user", whole)]
    called = sum(counter.text(f"{call.name} {call.arguments}") for call in calls_of(message))
    return [("tool calls", min(called, whole)), ("assistant", max(0, whole - called))]


def _bar(sizes: Mapping[str, int], window: int, threshold: int) -> str:
    """The window in cells: a letter for what fills it, in the order it is sent."""
    cells = ""
    reached = 0
    for kind, tokens in sizes.items():
        reached += tokens
        cells += KINDS[kind] * (round(CELLS * reached / window) - len(cells))
    cells = cells[:CELLS].ljust(CELLS, "·")
    mark = min(CELLS, round(CELLS * threshold / window))
    return f"{cells[:mark]}|{cells[mark:]}"


SHOWN_ROWS = 10


async def state(here: Here, _argument: str) -> CommandResult:
    data = state_figures(await load_thread_state(here.store, here.conversation.id))
    changed = changed_files(data)
    blocks: list[str | list[str]] = []
    place = ", ".join(filter(None, (data["directory"], f"branch {data['branch']}" if data["branch"] else "")))
    blocks += [f"Working in {place}."] if place else []
    for title, lines in (
        ("Files changed", [f"`{file['path']}`, turn {file['turn']}" for file in changed]),
        ("Tests", [_ran(run) for run in data["commands"] if run["test"]]),
        ("Commands", [_ran(run) for run in data["commands"] if not run["test"]]),
        ("Open errors", [f"`{one['source']}`: {excerpt(' '.join(one['lines']), 100)}" for one in data["open_errors"]]),
        ("Running", [f"`{process}`" for process in data["processes"]]),
        ("To do", [f"{item['text']} ({item['status'] or 'open'})" for item in data["todo"]]),
    ):
        if lines:
            more = [f"… and {len(lines) - SHOWN_ROWS:,} more"] if len(lines) > SHOWN_ROWS else []
            blocks += [f"**{title}**", [*lines[:SHOWN_ROWS], *more]]
    return CommandResult(paragraphs(*blocks) or "No tool was called in this conversation yet.", data)


def _ran(run: Mapping[str, Any]) -> str:
    return f"{'✓' if run['ok'] else '✗'} `{excerpt(run['command'], 80)}`: {run['outcome']}, turn {run['turn']}"


__all__ = ["COMMANDS", "Command", "CommandResult", "parse", "run"]

Handler = Callable[[Here, str], Awaitable[CommandResult]]


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its name without the slash, what may follow it, what it does."""

    name: str
    usage: str
    help: str
    handler: Handler
    changes: bool = False
    """It changes what the model sees, so it waits for the end of a turn."""


async def _help(_here: Here, argument: str) -> CommandResult:
    shown = [command for command in COMMANDS if argument.lstrip("/") in ("", command.name)]
    lines = [f"- `{command.usage}`: {command.help}" for command in shown or COMMANDS]
    data = {"commands": [{"name": item.name, "usage": item.usage, "help": item.help} for item in shown or COMMANDS]}
    return CommandResult("\n".join(lines), data)


COMMANDS: tuple[Command, ...] = (
    Command("help", "/help [COMMAND]", "what there is", _help),
    Command(
        "compress", "/compress [--preview] [FOCUS]", "compact the history now, or only show what would go",
        compress, changes=True,
    ),
    Command("undo", "/undo", "take the last compaction back", undo, changes=True),
    Command("context", "/context", "what fills the window, by kind", context),
    Command("state", "/state", "files, commands, tests, open errors and the to-do list, as they stand", state),
    Command("why", "/why", "why the last compaction or cache miss happened", why),
    Command(
        "pin", "/pin RULE", "a rule that stays in view, word for word, through every compaction",
        pin, changes=True,
    ),
    Command(
        "memory", "/memory [show | add [user] TEXT | remove [user] TEXT]", "what lasts beyond this conversation",
        memory,
    ),
    Command("search", "/search TEXT", "find what was said, in every conversation", search),
    Command("sessions", "/sessions [COUNT]", "the last conversations", sessions),
    Command("new", "/new [TITLE]", "begin a new conversation", new),
    Command("resume", "/resume [ID]", "go on with another conversation", resume),
    Command(
        "branch", "/branch [TITLE]", "go on in a copy; this conversation stays as it is", branch, changes=True
    ),
    Command("model", "/model [NAME]", "which model answers, or another one", model, changes=True),
    Command("usage", "/usage", "tokens and cost of this conversation", usage),
    Command("insights", "/insights [DAYS]", "where tokens and money went", insights),
)  # fmt: skip

_BY_NAME = {command.name: command for command in COMMANDS}
ALIASES = {"clear": "new", "cost": "usage", "compact": "compress", "history": "sessions"}
"""Names that other programs use."""
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)


def parse(text: str) -> tuple[str, str] | None:
    """The command's name and what follows it; None where the text is a message. A path (`/etc/hosts`) is none."""
    found = _COMMAND.fullmatch(text.strip())
    return (found[1].lower(), (found[2] or "").strip()) if found else None


async def run(agent: Agent | Conversation, store: Store, text: str) -> CommandResult:
    """Do what a command says. What goes wrong is told in the result."""
    found = parse(text)
    if found is None:
        return CommandResult(f"{text.strip()[:80]!r} is no command; /help lists them.", failed=True)
    name, argument = found
    command = _BY_NAME.get(ALIASES.get(name, name))
    if command is None:
        return _unknown(name)
    known = agent if isinstance(agent, Agent) else None
    if known is not None and known.busy and command.changes:
        return CommandResult(f"A turn is under way: stop it, or give /{name} again when it is over.", failed=True)
    here = Here(known.conversation if known else agent, store, known)  # type: ignore[arg-type]  # one or the other
    try:
        return await command.handler(here, argument)
    except EverthreadError as error:
        return CommandResult(f"/{name} failed: {error}", {"error": str(error)}, failed=True)


def _unknown(name: str) -> CommandResult:
    near = difflib.get_close_matches(name, _BY_NAME, n=3, cutoff=0.5)
    near += [known for known in _BY_NAME if known.startswith(name) and known not in near]
    hint = f" Did you mean {' or '.join(f'/{known}' for known in near)}?" if near else ""
    return CommandResult(f"There is no command /{name}.{hint} /help lists them all.", {"near": near}, failed=True)
