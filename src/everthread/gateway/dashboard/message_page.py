"""Messages as rows of a page, how the model can still see them, and the page of one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.core.turns import is_user_message
from everthread.gateway.dashboard.context_window import estimate_tokens, find_user_words
from everthread.gateway.dashboard.page_text import excerpt, message_text, one_line_excerpt
from everthread.store.records import StoredMessage

VISIBILITY_LABELS = {
    "view": "in view",
    "short": "in view, shortened",
    "words": "in the user’s words",
    "journal": "in the journal",
    "recall": "recallable",
}


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A message in a list."""

    id: int
    role: str
    label: str
    """The role of the author, and the tools that the message calls or answers."""
    text: str
    hidden_chars: int
    """Number of characters that are not shown."""
    tokens: int
    created: float
    visibility: str
    """How the model can still see it, as a key of `VISIBILITY_LABELS`; empty if not shown."""
    is_folded: bool


def make_message_row(
    message: StoredMessage,
    *,
    chars: int,
    visibility: str = "",
    start: int = 0,
    is_revealed: bool = False,
) -> MessageRow:
    body = message_text(message.body)
    text = excerpt(body, chars, start=start, is_revealed=is_revealed)
    return MessageRow(
        message.id,
        str(message.body.get("role", "")),
        label=describe_message(message),
        text=text,
        hidden_chars=max(0, len(body) - chars),
        tokens=message.tokens or estimate_tokens(body),
        created=message.created,
        visibility=visibility,
        is_folded=visibility not in ("", "view", "short"),
    )


def describe_message(message: StoredMessage) -> str:
    if message.kind == "summary":
        return "summary"
    body = message.body
    names = [call.name for call in calls_of(body)] or [
        result.tool_name for result in results_of(body) if result.tool_name
    ]
    role = str(body.get("role", ""))
    tool_names = ", ".join(dict.fromkeys(one_line_excerpt(name, 40) for name in names[:4]))
    return f"{role}: {tool_names}" if tool_names else role


@dataclass(frozen=True, slots=True)
class ContextView:
    """The context that the model sees now, with the ids of its messages and the text of its summaries."""

    shown_ids: frozenset[int]
    shortened_ids: frozenset[int]
    summary: str
    user_words: str

    def find_visibility(self, message: StoredMessage) -> str:
        """Return how the model can still see a message, as a key of `VISIBILITY_LABELS`."""
        if message.id in self.shortened_ids:
            return "short"
        if message.id in self.shown_ids:
            return "view"
        if is_user_message(message.body):
            message_start = " ".join(text_of(message.body).split())[:60]
            return "words" if message_start and message_start in self.user_words else "recall"
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
    unchanged_ids: set[int], shortened_ids: set[int], summaries: Sequence[str]
) -> ContextView:
    summary = "\n".join(summaries)
    user_words = " ".join(" ".join(find_user_words(summary)).split())
    return ContextView(
        frozenset(unchanged_ids), frozenset(shortened_ids), " ".join(summary.split()), user_words
    )


MAX_MESSAGE_CHARS = 100_000
"""Maximum characters that the page shows at once. A longer message is shown in parts."""


def make_message_page(message: StoredMessage, *, start: int, is_revealed: bool) -> dict[str, Any]:
    """Return the template values of the message page, with secrets shown if `is_revealed` is set."""
    body = message_text(message.body)
    start = max(0, min(start, len(body)))
    return {
        "item": make_message_row(
            message, chars=MAX_MESSAGE_CHARS, start=start, is_revealed=is_revealed
        ),
        "total_chars": len(body),
        "start": start,
        "shown_chars": min(MAX_MESSAGE_CHARS, len(body) - start),
        "part_chars": MAX_MESSAGE_CHARS,
        "revealed": is_revealed,
        "kind": message.kind,
        "may_pin": 0 < len(body.strip()) <= 2_000,
    }
