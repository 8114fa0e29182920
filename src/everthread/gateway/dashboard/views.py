"""From what the store holds to what a page shows. Pure: no store, no clock, no request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from everthread.core.messages import (
    Message,
    calls_of,
    content_text,
    count_noun,
    results_of,
    text_of,
)
from everthread.core.transcript import is_user_message
from everthread.gateway.dashboard.headlines import describe_difference
from everthread.gateway.dashboard.savings import CostComparison
from everthread.gateway.dashboard.text import body_text, clean, excerpt, line_of
from everthread.store.records import (
    CallRow,
    CompactionRecord,
    NewCompaction,
    Session,
    StoredMessage,
    ThreadFigures,
    ThreadRow,
)

MIN_CACHED_TOKENS = 1_024
"""Prompt tokens below which no provider caches anything."""
USER_WORDS = "What the User Said"
CHART_POINTS = 300

REASONS = {
    "in-loop": "the prompt had reached the threshold",
    "preflight": "the new message took the prompt to the threshold",
    "hygiene": "the stored history was over 85 % of the window",
    "cold-cache": "the cache had expired, so a rewrite cost nothing there",
    "overflow": "the provider refused the request as too long",
    "idle": "the cache was about to expire",
    "manual": "requested by hand",
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
    comparison: CostComparison | None
    """With the whole history; None without a compaction."""
    snippets: Sequence[Snippet] = ()
    """Matches of a search."""
    branches: Sequence[ThreadEntry] = ()
    parent: str = ""
    """For a branch that is listed alone: the thread it began in."""

    @property
    def client(self) -> str:
        return client_name(self.row.first)

    @property
    def difference(self) -> str:
        """The dollars saved or paid more than with the whole history, in words; empty if unknown."""
        figure = self.comparison and describe_difference(self.comparison)
        return f"{figure.value} {figure.label.partition(',')[0]}" if figure else ""

    @property
    def model(self) -> str:
        return self.figures.model or self.row.tip.model


def thread_title(first: Session, tip: Session, opening: str = "") -> str:
    return line_of(tip.title or first.title or opening, 90) or first.id[:12]


CLIENT_NAMES = {
    "claude-cli": "Claude Code",
    "codex_cli_rs": "Codex",
    "codex_exec": "Codex",
    "GeminiCLI": "Gemini CLI",
    "QwenCode": "Qwen Code",
    "Anthropic": "Anthropic SDK",
    "AsyncAnthropic": "Anthropic SDK",
    "OpenAI": "OpenAI SDK",
    "AsyncOpenAI": "OpenAI SDK",
    "gateway": "other clients",
    "terminal": "terminal agent",
}
"""What people call the programs that name themselves so."""


def client_name(session: Session) -> str:
    """Return the client's name, else how its messages arrived."""
    return known_client(session.client or session.platform or "library")


def known_client(name: str) -> str:
    return CLIENT_NAMES.get(name) or line_of(name, 40)


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


def stored_sizes(
    rows: Sequence[tuple[str, str, bool, int]], summaries: Sequence[str]
) -> dict[str, int]:
    """Return the tokens of each part of a session's context; the user's words are counted apart from summaries."""
    sizes = dict.fromkeys(PARTS, 0)
    for kind, role, is_tool, tokens in rows:
        part = (
            "summary"
            if kind == "summary"
            else "results"
            if is_tool and role != "assistant"
            else "talk"
        )
        sizes[part] += tokens
    return _with_words(sizes, summaries)


def _with_words(sizes: dict[str, int], summaries: Sequence[str]) -> dict[str, int]:
    words = min(
        sum(estimate(section) for text in summaries for section in user_words(text)),
        sizes["summary"],
    )
    return {
        **sizes,
        "words": sizes["words"] + words,
        "summary": sizes["summary"] - words,
    }


def estimate(text: str) -> int:
    return (len(text) + 3) // 4


def window_view(
    system: Any, sizes: Mapping[str, int], size: WindowSize, calls: Sequence[CallRow]
) -> WindowView:
    """Return the parts of the next prompt. Tokens that the provider counted beyond them are tools and framing."""
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
            parts = {
                kind: round(tokens * used / estimated) for kind, tokens in parts.items()
            }
            used = sum(parts.values())
    filled = tuple(
        ContextPart(kind, PARTS[kind], parts[kind]) for kind in PARTS if parts[kind]
    )
    return WindowView(size, filled, used, reported, _ahead(main, used, size.threshold))


def user_words(summary: str) -> list[str]:
    """The part of a summary that holds the user's own words."""
    lines = summary.split("\n")
    starts = [
        number
        for number, line in enumerate(lines)
        if line.strip("# ") == USER_WORDS and line.startswith("#")
    ]
    sections = []
    for start in starts:
        end = next(
            (n for n in range(start + 1, len(lines)) if lines[n].startswith("## ")),
            len(lines),
        )
        sections.append("\n".join(lines[start + 1 : end]))
    return sections


_COMPACTS_WHEN = "a compaction follows once it pays and the last one is not too recent."


def _ahead(main: Sequence[CallRow], used: int, threshold: int) -> str:
    """How many calls are left at the pace of the last ones."""
    if used >= threshold:
        return f"The prompt is past the threshold: {_COMPACTS_WHEN}"
    steps = [later.prompt - sooner.prompt for sooner, later in pairwise(main[-11:])]
    grown = [step for step in steps if step > 0]
    if not grown:
        return ""
    calls = max(1, round((threshold - used) / (sum(grown) / len(grown))))
    distance = f"{calls:,} call{'' if calls == 1 else 's'}"
    return f"In about {distance} the prompt reaches the threshold; {_COMPACTS_WHEN}"


# Calls and the cache


@dataclass(frozen=True, slots=True)
class CacheMissRow:
    """A call that read less from the cache than the one before had left there."""

    call: int
    cause: str
    missed: int
    is_asked: bool = False
    """The provider gave the cause; otherwise it was worked out here."""


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
        return sorted(
            ((cause, *sums_of_cause) for cause, sums_of_cause in sums.items()),
            key=lambda row: -row[2],
        )


def calls_view(
    calls: Sequence[CallRow], compactions: Sequence[CompactionRecord], *, ttl: float
) -> CallsView:
    main = [call for call in calls if call.task == "main"]
    standing = sorted(
        (one for one in compactions if one.reverted is None),
        key=lambda one: one.created,
    )
    marks = []
    for compaction in standing:
        at = next(
            (n for n, call in enumerate(main) if call.created > compaction.created),
            len(main),
        )
        record = compaction.record
        marks.append(
            (
                at,
                f"compaction: {record.tokens_before:,} to {record.tokens_after:,} tokens",
            )
        )
    return CallsView(
        tuple(main), tuple(marks), tuple(_misses(main, {at for at, _ in marks}, ttl))
    )


def _misses(
    main: Sequence[CallRow], compacted: set[int], ttl: float
) -> list[CacheMissRow]:
    misses: list[CacheMissRow] = []
    if not any(call.read or call.write for call in main):
        return misses
    for number, (before, call) in enumerate(pairwise(main), 1):
        reusable = min(before.prompt, call.prompt)
        missed = reusable - call.read
        if reusable < MIN_CACHED_TOKENS or missed <= max(
            MIN_CACHED_TOKENS, reusable // 10
        ):
            continue
        if number in compacted:
            cause = "compaction"
        elif before.model != call.model:
            cause = "model changed"
        elif call.created - before.created > ttl:
            cause = "cache expired"
        else:
            cause = "the prompt changed, or the provider dropped it"
        is_asked = bool(call.cache_miss)
        if is_asked:
            cause = f"{call.cache_miss} (says the provider)"
        misses.append(CacheMissRow(number + 1, cause, missed, is_asked))
    return misses


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
    """The model's current view: ids of whole and of shortened messages, and the summary's text."""

    shown: frozenset[int]
    shortened: frozenset[int]
    summary: str
    words: str

    def fate(self, message: StoredMessage) -> str:
        """Say what became of a message."""
        if message.id in self.shortened:
            return "short"
        if message.id in self.shown:
            return "view"
        if is_user_message(message.body):
            words = " ".join(text_of(message.body).split())[:60]
            return "words" if words and words in self.words else "recall"
        return "journal" if self._is_in_summary(message.body) else "recall"

    def _is_in_summary(self, body: Message) -> bool:
        """Whether the summary names what this message did."""
        values = (value for call in calls_of(body) for value in call.parsed.values())
        return any(
            isinstance(value, str)
            and len(value) >= 6
            and " ".join(value.split())[:60] in self.summary
            for value in values
        )


def context_view(
    in_view: set[int], shortened: set[int], summaries: Sequence[str]
) -> ContextView:
    summary = "\n".join(summaries)
    words = " ".join(" ".join(user_words(summary)).split())
    return ContextView(
        frozenset(in_view), frozenset(shortened), " ".join(summary.split()), words
    )


def message_view(
    message: StoredMessage,
    *,
    chars: int,
    fate: str = "",
    start: int = 0,
    revealed: bool = False,
) -> MessageRow:
    body = body_text(message.body)
    text = excerpt(body, chars, start=start, revealed=revealed)
    return MessageRow(
        message.id,
        str(message.body.get("role", "")),
        label=message_label(message),
        text=text,
        cut=max(0, len(body) - chars),
        tokens=message.tokens or estimate(body),
        created=message.created,
        fate=fate,
        folded=fate not in ("", "view", "short"),
    )


def message_label(message: StoredMessage) -> str:
    if message.kind == "summary":
        return "summary"
    body = message.body
    names = [call.name for call in calls_of(body)] or [
        result.name for result in results_of(body) if result.name
    ]
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
        return (
            1 - self.record.tokens_after / self.record.tokens_before
            if self.record.tokens_before
            else 0.0
        )

    @property
    def spared(self) -> int:
        """Tokens that later calls did not carry because of it."""
        return self.calls_since * max(
            0, self.record.tokens_before - self.record.tokens_after
        )


def compaction_items(
    records: Sequence[CompactionRecord], calls: Sequence[CallRow] = ()
) -> list[CompactionItem]:
    main = [call.created for call in calls if call.task == "main"]
    return [
        CompactionItem(
            stored,
            number,
            sum(at > stored.created for at in main) if stored.reverted is None else 0,
        )
        for number, stored in enumerate(sorted(records, key=lambda one: one.id), 1)
    ]


def describe_checks(figures: Mapping[str, Any]) -> list[str]:
    """Say in sentences how a summary was checked."""
    counts = {name: value for name, value in figures.items() if isinstance(value, int)}
    sentences = []
    if counts.get("facts"):
        facts = count_noun(counts["facts"], "file, error or other fact")
        if counts["facts"] > 1:
            facts = f"{counts['facts']:,} files, errors and other facts"
        present = counts.get("present", 0)
        added = counts.get("added", 0)
        rest = f"; {added:,} were added" if added else ""
        sentences.append(f"The summary as written named {present:,} of {facts}{rest}.")
    if counts.get("checked"):
        checked = count_noun(counts["checked"], "name")
        unverified = counts.get("unverified", 0)
        found = (
            f"{unverified:,} of them occur in no message and are marked (unverified)"
            if unverified
            else "all of them occur in the messages"
        )
        sentences.append(
            f"{checked} and figures were looked up in the messages: {found}."
        )
    return sentences


PHASES = {
    "prune": "Old tool results shortened to a line",
    "boundaries": "Messages kept word for word",
    "summarise": "Older messages summarised",
}


def describe_phases(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the steps of a compaction in plain words, with the tokens before and after."""
    return [
        (
            PHASES.get(str(phase.get("name")), clean(str(phase.get("name")))),
            f"{phase.get('before', 0):,}",
            f"{phase.get('after', 0):,}",
        )
        for phase in figures.get("phases") or ()
        if isinstance(phase, dict)
    ]


def pick_points(values: Sequence[Any], most: int = CHART_POINTS) -> list[int]:
    """Which of many values a chart shows: the first, the last, and evenly between."""
    if len(values) <= most:
        return list(range(len(values)))
    return sorted(
        {round(number * (len(values) - 1) / (most - 1)) for number in range(most)}
    )
