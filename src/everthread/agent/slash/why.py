"""`/why`: what made the last compaction and the last cache miss happen."""

from __future__ import annotations

from typing import Any

from everthread.agent.journal import Journal
from everthread.agent.slash.base import CommandResult, Here, paragraphs
from everthread.conversation import events
from everthread.core.found import moment
from everthread.store.models import CompactionRecord, NewCompaction

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


def _since(journal: Journal | None, last: CompactionRecord | None) -> list[str]:
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


def _cache(journal: Journal | None) -> str:
    if journal is None or journal.calls == 0:
        return "Cache: no call was seen since this process began."
    if journal.miss is None:
        return f"Cache: no miss in the {journal.calls:,} calls seen since this process began."
    miss = journal.miss
    return (
        f"Cache miss ({moment(miss.at)}): of {miss.expected:,} tokens the provider had just seen, {miss.cached:,} were "
        f"read from its cache, because {miss.why}."
    )
