"""Measure what fills a model's context window, and draw it as a bar."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from everthread.core.messages import content_text
from everthread.core.text import count_noun
from everthread.gateway.dashboard.charts import Segment, draw_bar
from everthread.gateway.dashboard.page_text import message_text
from everthread.store.records import StoredMessage
from everthread.store.usage_records import UsageRecord

_USER_WORDS_PATTERN = re.compile(
    r"^#[# ]*What the User Said[# ]*\n(.*?)\n?(?=^## |\Z)", re.MULTILINE | re.DOTALL
)
"""Matches a section of a summary with the user's own words."""

PART_LABELS = {
    "system": "System prompt",
    "tools": "Tools and framing",
    "summary": "Summary",
    "words": "User’s words",
    "talk": "Recent conversation",
    "results": "Tool results",
}


@dataclass(frozen=True, slots=True)
class WindowSize:
    """A model's window and where compaction starts."""

    tokens: int
    threshold: int
    source: str
    """Where the figures come from, in words."""


@dataclass(frozen=True, slots=True)
class ContextPart:
    """The tokens of one kind of content in a prompt."""

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
    next_compaction: str
    """When the next compaction is expected, in words."""

    @property
    def free_tokens(self) -> int:
        return max(0, self.size.tokens - self.used_tokens)


def make_window_view(
    system: Any,
    message_tokens_by_part: Mapping[str, int],
    size: WindowSize,
    calls: Sequence[UsageRecord],
) -> WindowView:
    """Return the parts of the next prompt. Tokens that only the provider counted are shown as tools and framing."""
    tokens_by_part = {
        **message_tokens_by_part,
        "system": estimate_tokens(content_text(system)) if system else 0,
    }
    main_calls = [call for call in calls if call.task == "main"]
    estimated_tokens = sum(tokens_by_part.values())
    is_reported = bool(main_calls) and not main_calls[-1].estimated
    used_tokens = estimated_tokens
    if is_reported:
        used_tokens = main_calls[-1].usage.prompt_tokens + main_calls[-1].usage.output_tokens
        if used_tokens >= estimated_tokens:
            tokens_by_part["tools"] = used_tokens - estimated_tokens
        else:  # the estimate was too high: the provider is right
            tokens_by_part = {
                kind: round(tokens * used_tokens / estimated_tokens)
                for kind, tokens in tokens_by_part.items()
            }
            used_tokens = sum(tokens_by_part.values())
    filled_parts = tuple(
        ContextPart(kind, PART_LABELS[kind], tokens_by_part[kind])
        for kind in PART_LABELS
        if tokens_by_part[kind]
    )
    return WindowView(
        size,
        filled_parts,
        used_tokens,
        is_reported,
        _describe_next_compaction(main_calls, used_tokens, size.threshold),
    )


def _describe_next_compaction(
    main_calls: Sequence[UsageRecord], used_tokens: int, threshold: int
) -> str:
    """Describe how many calls are left before the threshold if the prompt grows as in the last calls."""
    if used_tokens >= threshold:
        return f"The prompt is past the threshold: {_COMPACTION_CONDITION}"
    size_changes = [
        later_call.usage.prompt_tokens - earlier_call.usage.prompt_tokens
        for earlier_call, later_call in pairwise(main_calls[-11:])
    ]
    increases = [size_change for size_change in size_changes if size_change > 0]
    if not increases:
        return ""
    call_count = max(1, round((threshold - used_tokens) / (sum(increases) / len(increases))))
    return f"In about {count_noun(call_count, 'call')} the prompt reaches the threshold; {_COMPACTION_CONDITION}"


_COMPACTION_CONDITION = "a compaction follows once it pays and the last one is not too recent."


def sum_part_sizes(
    rows: Sequence[tuple[str, str, bool, int]], summaries: Sequence[str]
) -> dict[str, int]:
    """Return the tokens of each part of a session's context. The user's words in summaries are a part of their own."""
    tokens_by_part = dict.fromkeys(PART_LABELS, 0)
    for kind, role, is_tool, tokens in rows:
        tokens_by_part[_find_part(kind, is_result=is_tool and role != "assistant")] += tokens
    return _separate_user_words(tokens_by_part, summaries)


def _find_part(message_kind: str, *, is_result: bool) -> str:
    """Return the part of the context that a message belongs to, as a key of `PART_LABELS`."""
    if message_kind == "summary":
        return "summary"
    return "results" if is_result else "talk"


def _separate_user_words(
    tokens_by_part: dict[str, int], summaries: Sequence[str]
) -> dict[str, int]:
    word_tokens = min(
        sum(estimate_tokens(section) for text in summaries for section in find_user_words(text)),
        tokens_by_part["summary"],
    )
    return {
        **tokens_by_part,
        "words": tokens_by_part["words"] + word_tokens,
        "summary": tokens_by_part["summary"] - word_tokens,
    }


def find_user_words(summary: str) -> list[str]:
    """Return the sections of a summary that hold the user's own words."""
    return _USER_WORDS_PATTERN.findall(summary)


def estimate_tokens(text: str) -> int:
    return (len(text) + 3) // 4


def draw_window_bar(window: WindowView) -> str:
    segments = [
        Segment(part.kind, f"{part.name}: {part.tokens:,} tokens", part.tokens)
        for part in window.parts
    ]
    description = (
        "; ".join(segment.name for segment in segments) + f"; free: {window.free_tokens:,} tokens"
    )
    return draw_bar(segments, window.size.tokens, description, mark_at=window.size.threshold)


def draw_side_bar(messages: Sequence[StoredMessage], total: int) -> str:
    sizes = dict.fromkeys(PART_LABELS, 0)
    for message in messages:
        tokens = message.tokens or estimate_tokens(message_text(message.body))
        kind = _find_part(message.kind, is_result=message.body.get("role") == "tool")
        sizes[kind] += tokens
    segments = [
        Segment(kind, f"{PART_LABELS[kind]}: {tokens:,} tokens", tokens)
        for kind, tokens in sizes.items()
        if tokens
    ]
    description = ", ".join(segment.name for segment in segments) or "nothing"
    return draw_bar(segments, max(total, sum(sizes.values())), description)
