"""`/state` and `/why`: the state of the work, and why compactions and cache misses happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.commands.dispatch import (
    CommandResult,
    CommandScope,
    command,
    paragraphs,
)
from everthread.agent.turn_events import CauseLog
from everthread.compaction.journal.journal import AUTHOR, name_author
from everthread.compaction.tool_calls import REFUSED
from everthread.core.messages import count_noun, excerpt
from everthread.core.prices import format_dollars
from everthread.core.search.lookup import moment
from everthread.store.records import (
    CompactionRecord,
    NewCompaction,
)
from everthread.thread.facts import (
    changed_files,
    load_thread_state,
    state_figures,
)

SHOWN_ROWS = 10


@command("/state", "files, commands, tests, open errors and the to-do list")
async def state(scope: CommandScope, _argument: str) -> CommandResult:
    data = state_figures(await load_thread_state(scope.store, scope.conversation.id))
    changed = changed_files(data)
    blocks: list[str | list[str]] = []
    directory = ", ".join(
        filter(
            None,
            (data["directory"], f"branch {data['branch']}" if data["branch"] else ""),
        )
    )
    blocks += [f"Working in {directory}."] if directory else []
    for title, lines in (
        (
            "Files changed",
            [f"`{file['path']}`, turn {file['turn']}" for file in changed],
        ),
        ("Tests", [_command_line(run) for run in data["commands"] if run["test"]]),
        (
            "Commands",
            [_command_line(run) for run in data["commands"] if not run["test"]],
        ),
        (
            "Open errors",
            [
                f"`{one['source']}`: {excerpt(' '.join(one['lines']), 100)}"
                for one in data["open_errors"]
            ],
        ),
        ("Running", [f"`{process}`" for process in data["processes"]]),
        (
            "To do",
            [f"{item['text']} ({item['status'] or 'open'})" for item in data["todo"]],
        ),
    ):
        if lines:
            more = (
                [f"… and {len(lines) - SHOWN_ROWS:,} more"]
                if len(lines) > SHOWN_ROWS
                else []
            )
            blocks += [f"**{title}**", [*lines[:SHOWN_ROWS], *more]]
    return CommandResult(
        paragraphs(*blocks)
        or "Nothing to show yet: no file was changed and no command was run.",
        data,
    )


def _command_line(run: Mapping[str, Any]) -> str:
    mark = "✓" if run["ok"] else "✗"
    if run["outcome"] == REFUSED:
        mark = "–"
    outcome = f": {run['outcome']}" if run["outcome"] else ""
    return f"{mark} `{excerpt(run['command'], 80)}`{outcome}, turn {run['turn']}"


REASONS = {
    "in-loop": "the prompt had reached the threshold during a turn",
    "preflight": "the new message took the prompt to the threshold",
    "hygiene": "the stored history was over 85 % of the window before a message came in",
    "cold-cache": "the provider's cache had expired, so a rewrite cost nothing there",
    "idle": "the provider's cache was about to expire",
    "overflow": "the provider refused the request as too long",
    "manual": "you asked for it with /compress",
}


@command("/why", "why the last compaction or cache miss happened")
async def why(scope: CommandScope, _argument: str) -> CommandResult:
    made = await scope.store.compactions(scope.conversation.id)
    records = [record for record in made if record.reverted is None]
    last = records[-1] if records else None
    journal = scope.agent.journal if scope.agent else None
    if last is not None:
        first = _describe_compaction(last, len(records))
    elif made:
        first = "No compaction is in force: the last one was undone."
    else:
        first = "This conversation was never compacted."
    text = paragraphs(first, describe_cache(journal))
    data: dict[str, Any] = {
        "compactions": len(records),
        "reason": last.record.reason if last else None,
    }
    miss = journal.miss if journal else None
    data["cache_miss"] = miss.why if miss else None
    data["cache_miss_source"] = miss and ("provider" if miss.is_asked else "worked out")
    return CommandResult(text, data)


def _describe_compaction(last: CompactionRecord, count: int) -> str:
    record = last.record
    reason = REASONS.get(record.reason, record.reason or "no reason was recorded")
    focus = f", with a focus on {record.focus!r}" if record.focus else ""
    author = f" by {name_author(record.author)}" if record.author else ""
    details = [
        f"{count_noun(len(record.covered), 'message')} summarised{author} in {record.duration:.1f} s{_price(record)}",
        *_describe_checks(record.figures),
        *(str(step) for step in record.figures.get("steps") or ()),
        *(f"warning: {warning}" for warning in record.warnings),
    ]
    if decision := record.figures.get("decision"):
        details.append(f"cost weighed: {decision}")
    return paragraphs(
        f"Compaction {count} ({moment(last.created)}): {reason}{focus}. "
        f"{record.tokens_before:,} → {record.tokens_after:,} tokens.",
        details,
    )


def _price(record: NewCompaction) -> str:
    if not record.cost:
        return ""
    cost = format_dollars(record.cost)
    if record.author == AUTHOR:
        return f"; the model's answers, not used, cost {cost}"
    return f" for {cost}"


def _describe_checks(figures: Mapping[str, Any]) -> list[str]:
    """Say how the summary was checked against the messages."""
    counts = {
        name: int(figures.get(name) or 0)
        for name in ("facts", "present", "added", "checked", "unverified")
    }
    lines = []
    if counts["facts"]:
        found = counts["present"] + counts["added"]
        added = f", {counts['added']:,} of them added" if counts["added"] else ""
        lines.append(
            f"{found:,} of the {counts['facts']:,} most important facts are in the summary{added}"
        )
    if counts["checked"]:
        lines.append(
            f"{counts['unverified']:,} of {counts['checked']:,} checked names occur in no message"
        )
    return lines


def describe_cache(journal: CauseLog | None) -> str:
    """Say why the cache missed last, and how many calls ended without a report."""
    if journal is None or not journal.requests:
        return "Cache: no call was made since this process began."
    unreported = journal.requests - journal.calls
    stopped = (
        f" {count_noun(unreported, 'call')} ended without a report of tokens (stopped, refused, or not reported)."
        if unreported
        else ""
    )
    if journal.miss is None:
        calls = count_noun(journal.calls, "reported call")
        return f"Cache: no miss in {calls} since this process began.{stopped}"
    miss = journal.miss
    return (
        f"Cache miss ({moment(miss.at)}): of {miss.expected:,} tokens the provider had just seen, {miss.cached:,} were "
        f"read from its cache, because {miss.why} "
        f"({'says the provider' if miss.is_asked else 'worked out here'}).{stopped}"
    )
