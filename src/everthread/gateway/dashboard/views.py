"""Convert stored values to the values that a page shows, without a store, a clock or a request."""

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
from everthread.gateway.dashboard.text import (
    clean,
    excerpt,
    message_text,
    one_line_excerpt,
)
from everthread.store.records import (
    CompactionRecord,
    NewCompaction,
    Session,
    StoredMessage,
    ThreadRow,
)
from everthread.store.usage_records import CallRow, ThreadFigures

USER_WORDS_HEADING = "What the User Said"
MAX_CHART_POINTS = 300

REASON_TEXTS = {
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


@dataclass(frozen=True, slots=True)
class Snippet:
    """A match of a search, with lines of the messages before and after it."""

    role: str
    words: Sequence[tuple[bool, str]]
    """The text in pairs: whether the piece was searched for, and the piece."""
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
    """Comparison with the cost of the whole history; None if there was no compaction."""
    snippets: Sequence[Snippet] = ()
    """Matches of a search."""
    branches: Sequence[ThreadEntry] = ()
    parent: str = ""
    """For a branch whose parent is not listed on the page: the parent thread."""

    @property
    def client(self) -> str:
        return name_client(self.row.first)

    @property
    def difference(self) -> str:
        """The dollars saved or lost compared with the whole history, in words; empty if unknown."""
        figure = self.comparison and describe_difference(self.comparison)
        return f"{figure.value} {figure.label.partition(',')[0]}" if figure else ""

    @property
    def model(self) -> str:
        return self.figures.last_model or self.row.tip.model


def make_thread_title(
    first_session: Session, last_session: Session, first_words: str = ""
) -> str:
    return (
        one_line_excerpt(last_session.title or first_session.title or first_words, 90)
        or first_session.id[:12]
    )


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
"""Display names of client programs, by the names that they send."""


def name_client(session: Session) -> str:
    """Return the client's name, or else the platform by which its messages arrived."""
    return translate_client_name(session.client or session.platform or "library")


def translate_client_name(name: str) -> str:
    return CLIENT_NAMES.get(name) or one_line_excerpt(name, 40)


@dataclass(frozen=True, slots=True)
class ContextPart:
    kind: str
    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class WindowView:
    """The parts of the prompt that fill the window now."""

    size: WindowSize
    parts: tuple[ContextPart, ...]
    used_tokens: int
    is_reported: bool
    """Whether the sizes are scaled to the provider's count; otherwise they are estimates."""
    next_compaction: str = ""
    """When the next compaction is expected."""

    @property
    def free(self) -> int:
        return max(0, self.size.tokens - self.used_tokens)


PART_LABELS = {
    "system": "System prompt",
    "tools": "Tools and framing",
    "summary": "Summary",
    "words": "User’s words",
    "talk": "Recent conversation",
    "results": "Tool results",
}


def sum_part_sizes(
    rows: Sequence[tuple[str, str, bool, int]], summaries: Sequence[str]
) -> dict[str, int]:
    """Return the tokens of each part of a session's context. The user's words in summaries are a part of their own."""
    sizes = dict.fromkeys(PART_LABELS, 0)
    for kind, role, is_tool, tokens in rows:
        part_kind = (
            "summary"
            if kind == "summary"
            else "results"
            if is_tool and role != "assistant"
            else "talk"
        )
        sizes[part_kind] += tokens
    return _separate_user_words(sizes, summaries)


def _separate_user_words(
    sizes: dict[str, int], summaries: Sequence[str]
) -> dict[str, int]:
    word_tokens = min(
        sum(
            estimate_tokens(section)
            for text in summaries
            for section in find_user_words(text)
        ),
        sizes["summary"],
    )
    return {
        **sizes,
        "words": sizes["words"] + word_tokens,
        "summary": sizes["summary"] - word_tokens,
    }


def estimate_tokens(text: str) -> int:
    return (len(text) + 3) // 4


def make_window_view(
    system: Any, sizes: Mapping[str, int], size: WindowSize, calls: Sequence[CallRow]
) -> WindowView:
    """Return the parts of the next prompt. Any further tokens that the provider counted are tools and framing."""
    parts = {**sizes, "system": estimate_tokens(content_text(system)) if system else 0}
    main_calls = [call for call in calls if call.task == "main"]
    estimated_tokens = sum(parts.values())
    is_reported = bool(main_calls) and not main_calls[-1].estimated
    used_tokens = estimated_tokens
    if is_reported:
        used_tokens = main_calls[-1].prompt + main_calls[-1].output
        if used_tokens >= estimated_tokens:
            parts["tools"] = used_tokens - estimated_tokens
        else:  # the estimate was too high: the provider is right
            parts = {
                kind: round(tokens * used_tokens / estimated_tokens)
                for kind, tokens in parts.items()
            }
            used_tokens = sum(parts.values())
    filled_parts = tuple(
        ContextPart(kind, PART_LABELS[kind], parts[kind])
        for kind in PART_LABELS
        if parts[kind]
    )
    return WindowView(
        size,
        filled_parts,
        used_tokens,
        is_reported,
        _describe_next_compaction(main_calls, used_tokens, size.threshold),
    )


def find_user_words(summary: str) -> list[str]:
    """Return the sections of a summary that hold the user's own words."""
    lines = summary.split("\n")
    heading_lines = [
        number
        for number, line in enumerate(lines)
        if line.strip("# ") == USER_WORDS_HEADING and line.startswith("#")
    ]
    sections = []
    for start in heading_lines:
        end = next(
            (
                number
                for number in range(start + 1, len(lines))
                if lines[number].startswith("## ")
            ),
            len(lines),
        )
        sections.append("\n".join(lines[start + 1 : end]))
    return sections


_COMPACTION_CONDITION = (
    "a compaction follows once it pays and the last one is not too recent."
)


def _describe_next_compaction(
    main_calls: Sequence[CallRow], used_tokens: int, threshold: int
) -> str:
    """Describe how many calls are left before the threshold if the prompt grows as in the last calls."""
    if used_tokens >= threshold:
        return f"The prompt is past the threshold: {_COMPACTION_CONDITION}"
    steps = [
        later_call.prompt - earlier_call.prompt
        for earlier_call, later_call in pairwise(main_calls[-11:])
    ]
    growth_steps = [step for step in steps if step > 0]
    if not growth_steps:
        return ""
    calls = max(
        1, round((threshold - used_tokens) / (sum(growth_steps) / len(growth_steps)))
    )
    calls_text = f"{calls:,} call{'' if calls == 1 else 's'}"
    return f"In about {calls_text} the prompt reaches the threshold; {_COMPACTION_CONDITION}"


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list."""

    id: int
    role: str
    label: str
    """The author, or the tools that it calls or answers."""
    text: str
    cut: int
    """Characters that are not shown."""
    tokens: int
    created: float
    visibility: str = ""
    folded: bool = False


VISIBILITY_LABELS = {
    "view": "in view",
    "short": "in view, shortened",
    "words": "in the user’s words",
    "journal": "in the journal",
    "recall": "recallable",
}


@dataclass(frozen=True, slots=True)
class ContextView:
    """The context that the model sees now: ids of whole and of shortened messages, and the summary's text."""

    shown_ids: frozenset[int]
    shortened_ids: frozenset[int]
    summary: str
    words: str

    def visibility(self, message: StoredMessage) -> str:
        """Return how the model can still see a message, as a key of `VISIBILITY_LABELS`."""
        if message.id in self.shortened_ids:
            return "short"
        if message.id in self.shown_ids:
            return "view"
        if is_user_message(message.body):
            message_start = " ".join(text_of(message.body).split())[:60]
            return (
                "words" if message_start and message_start in self.words else "recall"
            )
        return "journal" if self._is_in_summary(message.body) else "recall"

    def _is_in_summary(self, body: Message) -> bool:
        """Return whether the summary names an argument of this message's calls."""
        values = (value for call in calls_of(body) for value in call.parsed.values())
        return any(
            isinstance(value, str)
            and len(value) >= 6
            and " ".join(value.split())[:60] in self.summary
            for value in values
        )


def make_context_view(
    in_view: set[int], shortened: set[int], summaries: Sequence[str]
) -> ContextView:
    summary = "\n".join(summaries)
    words = " ".join(" ".join(find_user_words(summary)).split())
    return ContextView(
        frozenset(in_view), frozenset(shortened), " ".join(summary.split()), words
    )


def make_message_row(
    message: StoredMessage,
    *,
    chars: int,
    visibility: str = "",
    start: int = 0,
    revealed: bool = False,
) -> MessageRow:
    body = message_text(message.body)
    text = excerpt(body, chars, start=start, is_revealed=revealed)
    return MessageRow(
        message.id,
        str(message.body.get("role", "")),
        label=describe_message(message),
        text=text,
        cut=max(0, len(body) - chars),
        tokens=message.tokens or estimate_tokens(body),
        created=message.created,
        visibility=visibility,
        folded=visibility not in ("", "view", "short"),
    )


def describe_message(message: StoredMessage) -> str:
    if message.kind == "summary":
        return "summary"
    body = message.body
    names = [call.name for call in calls_of(body)] or [
        result.name for result in results_of(body) if result.name
    ]
    role = str(body.get("role", ""))
    tool_names = ", ".join(
        dict.fromkeys(one_line_excerpt(name, 40) for name in names[:4])
    )
    return f"{role}: {tool_names}" if tool_names else role


@dataclass(frozen=True, slots=True)
class CompactionItem:
    """A compaction in a list."""

    stored: CompactionRecord
    number: int
    """Its number among all compactions of the thread, including undone ones."""
    calls_since: int

    @property
    def record(self) -> NewCompaction:
        return self.stored.record

    @property
    def reason(self) -> str:
        return REASON_TEXTS.get(self.record.reason, self.record.reason)

    @property
    def share(self) -> float:
        return (
            1 - self.record.tokens_after / self.record.tokens_before
            if self.record.tokens_before
            else 0.0
        )

    @property
    def spared(self) -> int:
        """The tokens that later calls did not send because of the compaction."""
        return self.calls_since * max(
            0, self.record.tokens_before - self.record.tokens_after
        )


def make_compaction_items(
    records: Sequence[CompactionRecord], calls: Sequence[CallRow] = ()
) -> list[CompactionItem]:
    call_times = [call.created for call in calls if call.task == "main"]
    return [
        CompactionItem(
            stored,
            number,
            sum(call_time > stored.created for call_time in call_times)
            if stored.reverted is None
            else 0,
        )
        for number, stored in enumerate(
            sorted(records, key=lambda record: record.id), 1
        )
    ]


def describe_checks(figures: Mapping[str, Any]) -> list[str]:
    """Describe in sentences how a summary was checked."""
    counts = {name: value for name, value in figures.items() if isinstance(value, int)}
    sentences = []
    if counts.get("facts"):
        facts = count_noun(counts["facts"], "file, error or other fact")
        if counts["facts"] > 1:
            facts = f"{counts['facts']:,} files, errors and other facts"
        present_count = counts.get("present", 0)
        added_count = counts.get("added", 0)
        added_text = f"; {added_count:,} were added" if added_count else ""
        sentences.append(
            f"The summary as written named {present_count:,} of {facts}{added_text}."
        )
    if counts.get("checked"):
        names_text = count_noun(counts["checked"], "name")
        unverified_count = counts.get("unverified", 0)
        result = (
            f"{unverified_count:,} of them occur in no message and are marked (unverified)"
            if unverified_count
            else "all of them occur in the messages"
        )
        sentences.append(
            f"{names_text} and figures were looked up in the messages: {result}."
        )
    return sentences


PHASE_LABELS = {
    "prune": "Old tool results shortened to a line",
    "boundaries": "Messages kept word for word",
    "summarise": "Older messages summarised",
}


def describe_phases(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the steps of a compaction in plain words, with the tokens before and after."""
    return [
        (
            PHASE_LABELS.get(str(phase.get("name")), clean(str(phase.get("name")))),
            f"{phase.get('before', 0):,}",
            f"{phase.get('after', 0):,}",
        )
        for phase in figures.get("phases") or ()
        if isinstance(phase, dict)
    ]


def pick_points(values: Sequence[Any], max_points: int = MAX_CHART_POINTS) -> list[int]:
    """Return the indexes of the values that a chart shows, evenly spaced from the first to the last."""
    if len(values) <= max_points:
        return list(range(len(values)))
    return sorted(
        {
            round(number * (len(values) - 1) / (max_points - 1))
            for number in range(max_points)
        }
    )
