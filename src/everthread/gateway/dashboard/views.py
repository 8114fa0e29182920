"""From what the store holds to what a page shows. Pure: no store, no clock, no request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

from everthread.core.messages import Message, calls_of, content_text, results_of, text_of
from everthread.core.pricing import Prices
from everthread.core.transcript import is_summary, is_user_message, mark_summary, summary_text
from everthread.gateway.dashboard.text import body_text, excerpt, line_of
from everthread.store.models import (
    CallRow,
    CompactionRecord,
    NewCompaction,
    Rewrite,
    Session,
    StoredMessage,
    ThreadFigures,
    ThreadRow,
)

CACHED_FROM = 1_024
"""Prompt tokens below which no provider caches anything."""
WORDS = "What the User Said"
CHART_POINTS = 300
_MILLION = 1_000_000

PriceOf = Callable[[str, float, int], Prices | None]
"""A model's prices at a moment for a prompt of this size."""

REASONS = {
    "in-loop": "the prompt had reached the threshold",
    "preflight": "the new message took the prompt to the threshold",
    "hygiene": "the stored history was over 85 % of the window",
    "cold-cache": "the cache had forgotten the prompt, so a rewrite cost nothing there",
    "overflow": "the provider refused the request as too long",
    "manual": "somebody asked for it",
}


@dataclass(frozen=True, slots=True)
class WindowSize:
    """A model's window and where compaction starts."""

    tokens: int
    threshold: int
    source: str = ""


# The list


@dataclass(frozen=True, slots=True)
class Snippet:
    """A place that was found, between lines of the messages before and after it."""

    role: str
    words: Sequence[tuple[bool, str]]
    """In pieces: whether each was searched for."""
    message: int | None
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    """A thread in the list."""

    row: ThreadRow
    figures: ThreadFigures
    window: WindowSize
    title: str
    saved: float | None
    snippets: Sequence[Snippet] = ()
    """What a search found."""

    @property
    def client(self) -> str:
        return client_name(self.row.first)

    @property
    def model(self) -> str:
        return self.figures.model or self.row.tip.model


def thread_title(first: Session, tip: Session, opening: str = "") -> str:
    return line_of(tip.title or first.title or opening, 90) or first.id[:12]


def client_name(session: Session) -> str:
    """Who talks: the program's own name where it gave one, else the way it came."""
    return line_of(session.client or session.platform or "library", 40)


# The window


@dataclass(frozen=True, slots=True)
class ContextPart:
    kind: str
    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class WindowView:
    """What fills the window now."""

    size: WindowSize
    parts: tuple[ContextPart, ...]
    used: int
    reported: bool
    """Scaled to what the provider counted, not estimated alone."""
    ahead: str = ""
    """When the next compaction is expected."""

    @property
    def free(self) -> int:
        return max(0, self.size.tokens - self.used)


PARTS = {
    "system": "System prompt",
    "tools": "Tools and framing",
    "summary": "Summary",
    "words": "User’s words",
    "talk": "Recent conversation",
    "results": "Tool results",
}


def stored_sizes(rows: Sequence[tuple[str, str, bool, int]], summaries: Sequence[str]) -> dict[str, int]:
    """The parts of what a session shows; of its summaries the user's words apart."""
    sizes = dict.fromkeys(PARTS, 0)
    for kind, role, is_tool, tokens in rows:
        part = "summary" if kind == "summary" else "results" if is_tool and role != "assistant" else "talk"
        sizes[part] += tokens
    return _with_words(sizes, summaries)


def rewritten_sizes(messages: Sequence[Message]) -> dict[str, int]:
    """The parts of what stands for the beginning of a proxied thread."""
    sizes = dict.fromkeys(PARTS, 0)
    summaries = []
    for message in messages:
        if is_summary(message):
            summaries += [text] if (text := summary_text(message)) else []
        part = "summary" if is_summary(message) else "results" if results_of(message) else "talk"
        sizes[part] += estimate(body_text(message))
    return _with_words(sizes, summaries)


def _with_words(sizes: dict[str, int], summaries: Sequence[str]) -> dict[str, int]:
    words = min(sum(estimate(section) for text in summaries for section in user_words(text)), sizes["summary"])
    return {**sizes, "words": sizes["words"] + words, "summary": sizes["summary"] - words}


def estimate(text: str) -> int:
    return (len(text) + 3) // 4


def window_view(system: Any, sizes: Mapping[str, int], size: WindowSize, calls: Sequence[CallRow]) -> WindowView:
    """The parts of the next prompt. What the provider counted beyond them is tools and framing."""
    parts = {**sizes, "system": estimate(content_text(system)) if system else 0}
    main = [call for call in calls if call.task == "main"]
    estimated = sum(parts.values())
    reported = bool(main) and not main[-1].estimated
    used = estimated
    if reported:
        used = main[-1].prompt + main[-1].output
        if used >= estimated:
            parts["tools"] = used - estimated
        else:  # the estimate was too high: the provider is right
            parts = {kind: round(tokens * used / estimated) for kind, tokens in parts.items()}
            used = sum(parts.values())
    filled = tuple(ContextPart(kind, PARTS[kind], parts[kind]) for kind in PARTS if parts[kind])
    return WindowView(size, filled, used, reported, _ahead(main, used, size.threshold))


def user_words(summary: str) -> list[str]:
    """The part of a summary that holds the user's own words."""
    lines = summary.split("\n")
    starts = [number for number, line in enumerate(lines) if line.strip("# ") == WORDS and line.startswith("#")]
    sections = []
    for start in starts:
        end = next((n for n in range(start + 1, len(lines)) if lines[n].startswith("## ")), len(lines))
        sections.append("\n".join(lines[start + 1 : end]))
    return sections


def _ahead(main: Sequence[CallRow], used: int, threshold: int) -> str:
    """How many calls are left at the pace of the last ones."""
    if used >= threshold:
        return "The next call may compact."
    steps = [later.prompt - sooner.prompt for sooner, later in pairwise(main[-11:])]
    grown = [step for step in steps if step > 0]
    if not grown:
        return ""
    calls = max(1, round((threshold - used) / (sum(grown) / len(grown))))
    return f"The next compaction is expected in about {calls:,} call{'' if calls == 1 else 's'}."


# Calls and the cache


@dataclass(frozen=True, slots=True)
class CacheMissRow:
    """A call that read less from the cache than the one before had left there."""

    call: int
    cause: str
    missed: int


@dataclass(frozen=True, slots=True)
class CallsView:
    calls: tuple[CallRow, ...]
    """To the main model, in order."""
    marks: tuple[tuple[int, str], ...]
    """Before which call a compaction happened, and how large it was."""
    misses: tuple[CacheMissRow, ...]

    @property
    def causes(self) -> list[tuple[str, int, int]]:
        """Cause, calls, tokens; the dearest first."""
        sums: dict[str, tuple[int, int]] = {}
        for miss in self.misses:
            calls, tokens = sums.get(miss.cause, (0, 0))
            sums[miss.cause] = calls + 1, tokens + miss.missed
        return sorted(((cause, *sums_of_cause) for cause, sums_of_cause in sums.items()), key=lambda row: -row[2])


def calls_view(calls: Sequence[CallRow], compactions: Sequence[CompactionRecord], *, ttl: float) -> CallsView:
    main = [call for call in calls if call.task == "main"]
    standing = sorted((one for one in compactions if one.reverted is None), key=lambda one: one.created)
    marks = []
    for compaction in standing:
        at = next((n for n, call in enumerate(main) if call.created > compaction.created), len(main))
        record = compaction.record
        marks.append((at, f"compaction: {record.tokens_before:,} to {record.tokens_after:,} tokens"))
    return CallsView(tuple(main), tuple(marks), tuple(_misses(main, {at for at, _ in marks}, ttl)))


def _misses(main: Sequence[CallRow], compacted: set[int], ttl: float) -> list[CacheMissRow]:
    misses: list[CacheMissRow] = []
    if not any(call.read or call.write for call in main):
        return misses
    for number, (before, call) in enumerate(pairwise(main), 1):
        reusable = min(before.prompt, call.prompt)
        missed = reusable - call.read
        if reusable < CACHED_FROM or missed <= max(CACHED_FROM, reusable // 10):
            continue
        if number in compacted:
            cause = "compaction"
        elif before.model != call.model:
            cause = "model changed"
        elif call.created - before.created > ttl:
            cause = "the cache had forgotten"
        else:
            cause = "the prompt changed, or the provider dropped it"
        misses.append(CacheMissRow(number + 1, cause, missed))
    return misses


# Dollars with and without


@dataclass(frozen=True, slots=True)
class PricedCall:
    """A call as it was, and as it would have been with the whole history and the same cache."""

    call: CallRow
    cost: float
    without: float


@dataclass(frozen=True, slots=True)
class CostComparison:
    """What the calls of a thread, or of all, cost, and what they would have cost without compaction.

    Compared are calls that both would have answered; for the others the whole history had outgrown the window.
    """

    cost: float
    without: float
    calls: int
    outgrown: tuple[CallRow, ...] = ()
    unpriced: int = 0
    rows: tuple[PricedCall, ...] = ()
    by: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Of all threads: what was saved by `day`, `model`, `client` and `tenant`, under each name."""

    @property
    def beyond(self) -> int:
        """Calls that would not have fitted at all."""
        return len(self.outgrown)

    @property
    def saved(self) -> float:
        return self.without - self.cost

    @property
    def share(self) -> float | None:
        return self.saved / self.without if self.without else None


def saving_of(
    calls: Sequence[CallRow],
    compactions: Sequence[CompactionRecord],
    *,
    price: PriceOf,
    window: Callable[[str], int],
    ttl: float,
) -> CostComparison:
    """A thread's own traffic, reckoned again without compaction: the method of the replay.

    A compaction is made ahead and takes effect with the first call whose prompt is smaller than the one before. A call
    that found the cache warm finds it warm with the whole history too; what was taken out until then is read there at
    the cache's price, or paid in full where the cache was cold or there is none.
    """
    standing = sorted((one for one in compactions if one.reverted is None), key=lambda one: one.created)
    caching = any(call.read or call.write for call in calls)
    auxiliary = [call for call in calls if call.task != "main"]
    cost = sum(float(call.cost) for call in auxiliary if call.cost is not None)
    unpriced = sum(call.cost is None for call in auxiliary)
    rows: list[PricedCall] = []
    outgrown: list[CallRow] = []
    removed = pending = at = whole_before = 0
    last: CallRow | None = None
    for call in (call for call in calls if call.task == "main"):
        while at < len(standing) and standing[at].created <= call.created:
            pending += max(0, standing[at].record.tokens_before - standing[at].record.tokens_after)
            at += 1
        fresh_start = bool(pending) and last is not None and call.prompt < last.prompt
        if fresh_start:
            removed, pending = removed + pending, 0
        full_prompt = call.prompt + removed
        paid = call.cost
        if paid is None:
            unpriced += 1
        elif full_prompt > window(call.model):
            outgrown.append(call)
        elif not removed:
            rows.append(PricedCall(call, float(paid), float(paid)))
        else:
            prices = price(call.model, call.created, full_prompt)
            same = last is not None and last.model == call.model
            near = last is not None and call.created - last.created <= ttl
            if not caching:
                read = 0
            elif fresh_start and same and near:
                read = min(whole_before, full_prompt)
            else:
                read = call.read + removed if call.read else 0
            without = _price(prices, full_prompt, read, call)
            if without is None:
                unpriced += 1
            else:
                rows.append(PricedCall(call, float(paid), without))
        last, whole_before = call, full_prompt
    return CostComparison(
        cost + sum(row.cost for row in rows),
        sum(row.without for row in rows),
        len(rows),
        tuple(outgrown),
        unpriced,
        tuple(rows),
    )


def _price(prices: Prices | None, prompt: int, read: int, call: CallRow) -> float | None:
    """Dollars of a prompt of which a part is read from the cache."""
    if prices is None or prices.input is None:
        return None
    fresh = prices.cache_write_5m if call.write and prices.cache_write_5m is not None else prices.input
    cached = prices.cache_read if prices.cache_read is not None else prices.input
    tokens = (prompt - read) * fresh + read * cached + call.output * (prices.output or 0)
    return float(tokens) / _MILLION


# Messages and what became of them


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list."""

    id: int
    role: str
    label: str
    """Whose it is, or which tools it calls or answers."""
    text: str
    cut: int
    """Characters that are not shown."""
    tokens: int
    created: float
    fate: str = ""
    folded: bool = False


FATES = {
    "view": "in view",
    "short": "in view, shortened",
    "words": "in the user’s words",
    "journal": "in the journal",
    "recall": "recallable",
}


@dataclass(frozen=True, slots=True)
class ContextView:
    """What the model sees now: ids of messages as they are, of those shortened, and the summary's words."""

    shown: frozenset[int]
    shortened: frozenset[int]
    summary: str
    words: str
    covered: int | None
    """For a proxied thread: so many of its first messages are replaced."""

    def fate(self, message: StoredMessage, number: int) -> str:
        """What became of a message; `number` is its place in the history."""
        if message.id in self.shortened:
            return "short"
        if message.id in self.shown or (self.covered is not None and number >= self.covered):
            return "view"
        if is_user_message(message.body):
            words = " ".join(text_of(message.body).split())[:60]
            return "words" if words and words in self.words else "recall"
        return "journal" if self._is_in_summary(message.body) else "recall"

    def _is_in_summary(self, body: Message) -> bool:
        """Whether the summary names what this message did."""
        values = (value for call in calls_of(body) for value in call.parsed.values())
        return any(
            isinstance(value, str) and len(value) >= 6 and " ".join(value.split())[:60] in self.summary
            for value in values
        )


def context_view(
    in_view: set[int], shortened: set[int], summaries: Sequence[str], covered: int | None = None
) -> ContextView:
    summary = "\n".join(summaries)
    words = " ".join(" ".join(user_words(summary)).split())
    return ContextView(frozenset(in_view), frozenset(shortened), " ".join(summary.split()), words, covered)


def replacement_messages(rewrite: Rewrite) -> list[Message]:
    """The messages of a rewrite. Items that are no message (reasoning, calls of Responses) have no role: left out."""
    try:
        values = json.loads(f"[{rewrite.replacement.decode()}]")
    except ValueError:
        return []
    messages = [value for value in values if isinstance(value, dict) and isinstance(value.get("role"), str)]
    return [_mark_if_summary(value) for value in cast("list[Message]", messages)]


def _mark_if_summary(message: Message) -> Message:
    """What we stored as a replacement is ours: the summary in it needs no proof."""
    marked = mark_summary(message)
    return marked if message["role"] in ("user", "assistant") and summary_text(marked) else message


def message_view(
    message: StoredMessage, *, chars: int, fate: str = "", start: int = 0, revealed: bool = False
) -> MessageRow:
    body = body_text(message.body)
    text = excerpt(body, chars, start=start, revealed=revealed)
    return MessageRow(
        message.id, str(message.body.get("role", "")), message_label(message), text,
        max(0, len(body) - chars), message.tokens or estimate(body), message.created, fate,
        fate not in ("", "view", "short"),
    )  # fmt: skip


def message_label(message: StoredMessage) -> str:
    if message.kind == "summary":
        return "summary"
    body = message.body
    names = [call.name for call in calls_of(body)] or [result.name for result in results_of(body) if result.name]
    role = str(body.get("role", ""))
    listed = ", ".join(dict.fromkeys(line_of(name, 40) for name in names[:4]))
    return f"{role}: {listed}" if listed else role


# A compaction


@dataclass(frozen=True, slots=True)
class CompactionItem:
    """A compaction in a list."""

    stored: CompactionRecord
    number: int
    """Among those of its thread, in the order they were made; those that were undone keep theirs."""
    calls_since: int

    @property
    def record(self) -> NewCompaction:
        return self.stored.record

    @property
    def reason(self) -> str:
        return REASONS.get(self.record.reason, self.record.reason)

    @property
    def share(self) -> float:
        return 1 - self.record.tokens_after / self.record.tokens_before if self.record.tokens_before else 0.0

    @property
    def spared(self) -> int:
        """Tokens that later calls did not carry because of it."""
        return self.calls_since * max(0, self.record.tokens_before - self.record.tokens_after)


def compaction_items(records: Sequence[CompactionRecord], calls: Sequence[CallRow] = ()) -> list[CompactionItem]:
    main = [call.created for call in calls if call.task == "main"]
    return [
        CompactionItem(stored, number, sum(at > stored.created for at in main) if stored.reverted is None else 0)
        for number, stored in enumerate(sorted(records, key=lambda one: one.id), 1)
    ]


def verification(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How a summary was checked, as label and value."""
    labels = {
        "facts": "facts looked for",
        "present": "of these in the summary as written",
        "added": "added to it",
        "checked": "names looked up in the sources",
        "unverified": "of these in no source",
    }
    return [(label, f"{figures[name]:,}") for name, label in labels.items() if isinstance(figures.get(name), int)]


# The overview


def total_savings(savings: Sequence[CostComparison], *, since: float, day: Callable[[float], str]) -> CostComparison:
    by: dict[str, dict[str, float]] = {"day": {}, "model": {}, "client": {}, "tenant": {}}
    cost = without = 0.0
    calls = 0
    for saving in savings:
        for row in saving.rows:
            if row.call.created < since:
                continue
            gained = row.without - row.cost
            cost, without, calls = cost + row.cost, without + row.without, calls + 1
            names = (day(row.call.created), row.call.model, row.call.client, row.call.tenant)
            for kind, name in zip(by, names, strict=True):
                by[kind][name] = by[kind].get(name, 0.0) + gained
    outgrown = tuple(call for saving in savings for call in saving.outgrown if call.created >= since)
    return CostComparison(cost, without, calls, outgrown, by=by)


def pick_points(values: Sequence[Any], most: int = CHART_POINTS) -> list[int]:
    """Which of many values a chart shows: the first, the last, and evenly between."""
    if len(values) <= most:
        return list(range(len(values)))
    return sorted({round(number * (len(values) - 1) / (most - 1)) for number in range(most)})
