"""`/state` and `/why`: the state of the work, and why compactions and cache misses happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.agent.cache_misses import CacheMissLog
from everthread.agent.commands.dispatch import CommandResult, CommandScope, command, join_paragraphs
from everthread.compaction.history.tool_calls import REFUSED
from everthread.compaction.journal.journal import describe_author
from everthread.compaction.summarizers.summarizer import JOURNAL_AUTHOR
from everthread.core.costs.prices import format_dollars
from everthread.core.search.search_results import format_utc_time
from everthread.core.text import count_noun, excerpt
from everthread.store.records import CompactionRecord, NewCompaction
from everthread.thread.lookup.work_state import (
    describe_state,
    list_changed_files,
    load_thread_state,
)
from everthread.thread.policy.compaction_reason import describe_reason

MAX_SHOWN_ROWS = 10


@command("/state", "files, commands, tests, open errors and the to-do list")
async def run_state(scope: CommandScope, _argument: str) -> CommandResult:
    data = describe_state(await load_thread_state(scope.store, scope.conversation.id))
    place = [data["directory"]] if data["directory"] else []
    if data["branch"]:
        place.append(f"branch {data['branch']}")
    blocks: list[str | list[str]] = []
    if place:
        blocks.append(f"Working in {', '.join(place)}.")
    for title, lines in _list_state_sections(data).items():
        shown_lines = lines[:MAX_SHOWN_ROWS]
        if len(lines) > MAX_SHOWN_ROWS:
            shown_lines.append(f"… and {len(lines) - MAX_SHOWN_ROWS:,} more")
        if lines:
            blocks += [f"**{title}**", shown_lines]
    text = join_paragraphs(*blocks)
    if not text:
        text = "Nothing to show yet: no file was changed and no command was run."
    return CommandResult(text, data)


def _list_state_sections(data: dict[str, Any]) -> dict[str, list[str]]:
    """Return the lines of each section of `/state`, by the section's title."""
    commands = data["commands"]
    return {
        "Files changed": [
            f"`{file['path']}`, turn {file['turn']}" for file in list_changed_files(data)
        ],
        "Tests": [_format_command(run) for run in commands if run["test"]],
        "Commands": [_format_command(run) for run in commands if not run["test"]],
        "Open errors": [
            f"`{error['source']}`: {excerpt(' '.join(error['lines']), 100)}"
            for error in data["open_errors"]
        ],
        "Running": [f"`{process}`" for process in data["processes"]],
        "To do": [f"{item['text']} ({item['status'] or 'open'})" for item in data["todo"]],
    }


def _format_command(run: Mapping[str, Any]) -> str:
    mark = "✓" if run["ok"] else "✗"
    if run["outcome"] == REFUSED:
        mark = "–"
    outcome = f": {run['outcome']}" if run["outcome"] else ""
    return f"{mark} `{excerpt(run['command'], 80)}`{outcome}, turn {run['turn']}"


@command("/why", "why the last compaction or cache miss happened")
async def run_why(scope: CommandScope, _argument: str) -> CommandResult:
    all_records = await scope.store.list_compactions(scope.conversation.id)
    records = [record for record in all_records if record.reverted_at is None]
    last_record = records[-1] if records else None
    cache_misses = scope.agent.cache_misses if scope.agent else None
    if last_record is not None:
        compaction_text = _describe_compaction(last_record, len(records))
    elif all_records:
        compaction_text = "No compaction is in force: the last one was undone."
    else:
        compaction_text = "This conversation was never compacted."
    text = join_paragraphs(compaction_text, describe_cache(cache_misses))
    data: dict[str, Any] = {
        "compactions": len(records),
        "reason": last_record.record.reason if last_record else None,
    }
    cache_miss = cache_misses.last_miss if cache_misses else None
    data["cache_miss"] = cache_miss.reason if cache_miss else None
    data["cache_miss_source"] = cache_miss and (
        "provider" if cache_miss.is_from_provider else "worked out"
    )
    return CommandResult(text, data)


def _describe_compaction(compaction: CompactionRecord, count: int) -> str:
    record = compaction.record
    reason = describe_reason(record.reason) or "no reason was recorded"
    focus_text = f", with a focus on {record.focus!r}" if record.focus else ""
    author_text = f" by {describe_author(record.author)}" if record.author else ""
    covered_text = count_noun(len(record.covered), "message")
    details = [
        f"{covered_text} summarised{author_text} in {record.duration:.1f} s{_describe_cost(record)}",
        *_describe_checks(record.figures),
        *(str(step) for step in record.figures.get("steps") or ()),
        *(f"warning: {warning}" for warning in record.warnings),
    ]
    if decision := record.figures.get("decision"):
        details.append(f"cost weighed: {decision}")
    return join_paragraphs(
        f"Compaction {count} ({format_utc_time(compaction.created)}): {reason}{focus_text}. "
        f"{record.tokens_before:,} → {record.tokens_after:,} tokens.",
        details,
    )


def _describe_cost(record: NewCompaction) -> str:
    if not record.cost:
        return ""
    cost = format_dollars(record.cost)
    if record.author == JOURNAL_AUTHOR:
        return f"; the model's answers, not used, cost {cost}"
    return f" for {cost}"


def _describe_checks(figures: Mapping[str, Any]) -> list[str]:
    """Describe how the summary was checked against the messages."""
    counts = {
        name: int(figures.get(name) or 0)
        for name in ("facts", "present", "added", "checked", "unverified")
    }
    lines = []
    if counts["facts"]:
        found_count = counts["present"] + counts["added"]
        added_note = f", {counts['added']:,} of them added" if counts["added"] else ""
        lines.append(
            f"{found_count:,} of the {counts['facts']:,} most important facts are in the summary{added_note}"
        )
    if counts["checked"]:
        lines.append(
            f"{counts['unverified']:,} of {counts['checked']:,} checked names occur in no message"
        )
    return lines


def describe_cache(cache_misses: CacheMissLog | None) -> str:
    """Describe the last cache miss, and how many calls ended without a report."""
    if cache_misses is None or not cache_misses.request_count:
        return "Cache: no call was made since this process began."
    unreported = cache_misses.request_count - cache_misses.reported_call_count
    unreported_note = ""
    if unreported:
        calls = count_noun(unreported, "call")
        unreported_note = (
            f" {calls} ended without a report of tokens (stopped, refused, or not reported)."
        )
    if cache_misses.last_miss is None:
        calls = count_noun(cache_misses.reported_call_count, "reported call")
        return f"Cache: no miss in {calls} since this process began.{unreported_note}"
    miss = cache_misses.last_miss
    source = "says the provider" if miss.is_from_provider else "worked out here"
    return (
        f"Cache miss ({format_utc_time(miss.time)}): of {miss.expected_tokens:,} tokens the provider had just seen, "
        f"{miss.cached_tokens:,} were read from its cache, because {miss.reason} ({source}).{unreported_note}"
    )
