"""`/usage`, `/insights`, `/why`, `/context`, `/model`: what fills the window, what it cost and why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from everthread.agent.causes import CauseLog
from everthread.agent.slash.command import CommandResult, Here, counted, one_line, paragraphs
from everthread.conversation import events
from everthread.conversation.conversation import Conversation
from everthread.conversation.thread_state import changed_files, load_thread_state, state_figures
from everthread.core.messages import Message, calls_of, results_of
from everthread.core.search.lookup import moment
from everthread.core.tokens import TokenCounter
from everthread.core.transcript import is_summary
from everthread.errors import InputError
from everthread.store.models import CompactionRecord, NewCompaction, UsageRecord, UsageRow
from everthread.store.sql.usage import sum_usage, usage_figures, usage_row

DAY = 86_400
DAYS, MOST_DAYS = 30, 3_660
LOOKED_UP = "{} of what had left the context"


async def usage(here: Here, _argument: str) -> CommandResult:
    thread = here.conversation.id
    own = await here.store.usage(thread)
    theirs = [record for other in await here.store.subagents(thread) for record in await here.store.usage(other)]
    parts = {task: [record for record in own if record.task == task] for task in ("main", "auxiliary")}
    rows = [_summed(key, part) for key, part in (parts | {"subagents": theirs}).items() if part]
    total = _summed("all", [*own, *theirs])
    data: dict[str, Any] = {"thread": thread, "sums": {row.key: usage_figures(row) for row in (*rows, total)}}
    data["tools_left_out"] = list(here.conversation.toolbox.out)
    if not total.calls:
        return CommandResult("No call to a model is recorded for this conversation yet.", data)
    lines = [_line(row) for row in ([*rows, total] if len(rows) > 1 else [total])]
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
    blocks.append([_line(replace(found.total, key="all"))])
    for name in ("model", "platform"):
        rows = sorted(getattr(found, f"by_{name}"), key=lambda row: -(row.prompt + row.output))
        blocks += [f"**By {name}**", [_line(row) for row in rows]] if rows else []
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


def _summed(key: str, records: Sequence[UsageRecord]) -> UsageRow:
    return sum_usage(key, [usage_row(record) for record in records])


def _line(row: UsageRow) -> str:
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
        ("Open errors", [f"`{one['source']}`: {one_line(' '.join(one['lines']))}" for one in data["open_errors"]]),
        ("Running", [f"`{process}`" for process in data["processes"]]),
        ("To do", [f"{item['text']} ({item['status'] or 'open'})" for item in data["todo"]]),
    ):
        if lines:
            more = [f"… and {len(lines) - SHOWN_ROWS:,} more"] if len(lines) > SHOWN_ROWS else []
            blocks += [f"**{title}**", [*lines[:SHOWN_ROWS], *more]]
    return CommandResult(paragraphs(*blocks) or "No tool was called in this conversation yet.", data)


def _ran(run: Mapping[str, Any]) -> str:
    return f"{'✓' if run['ok'] else '✗'} `{one_line(run['command'], 80)}`: {run['outcome']}, turn {run['turn']}"
