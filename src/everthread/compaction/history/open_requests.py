"""Find the requests that the user still waits for."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.compaction.history.compaction_history import (
    CompactionHistory,
    MessageFacts,
)
from everthread.compaction.summary.sections import EMPTY_SECTION_TEXT
from everthread.core.messages import text_of
from everthread.core.secrets.redaction import redact
from everthread.core.summary_marks import neutralize_summary_marks
from everthread.core.text import clip, one_line

MAX_OPEN_REQUESTS = 3
"""Maximum open requests to list: after three new ones the user has moved on from older ones."""
ALL_ANSWERED = "None is open. The latest, which was answered: "
_BEGINNING_CHARS = 240
_MAX_READ_CHARS = 2_000
"""Characters of a request to redact before its beginning is cut out, so that no secret is cut in half."""


def render_task(history: CompactionHistory) -> str:
    """Write the section on the requests without a final answer, each with its number and beginning.

    Another section has the full texts. If all requests are answered, name the latest and say so, because the first
    lines of the summary refer to this section.
    """
    requests = find_open_requests(history.facts)
    if requests:
        return "\n".join(_render_request(history, index) for index in requests)
    latest = history.latest_user_index
    if latest is None:
        return EMPTY_SECTION_TEXT
    return f"{ALL_ANSWERED}{_render_request(history, latest)}"


def _render_request(history: CompactionHistory, index: int) -> str:
    """Return one request as a line: its turn number and its beginning, redacted."""
    facts = history.facts[index]
    words = redact(facts.user_words[:_MAX_READ_CHARS]) or "(an image or a file without words)"
    beginning = clip(one_line(words), _BEGINNING_CHARS)
    return f"[{history.turns[index]}] {neutralize_summary_marks(beginning)}"


def find_open_requests(facts: Sequence[MessageFacts]) -> list[int]:
    """Return the indices of the requests without a final answer, oldest first.

    A request is answered if its turn ends with a text of the assistant without calls. Only the last requests of the
    conversation can be open: earlier ones are answered, or the user has moved on.
    """
    request_indices: list[int] = []
    end = len(facts)
    for index in range(len(facts) - 1, -1, -1):
        if facts[index].is_user:
            if len(request_indices) == MAX_OPEN_REQUESTS or _is_answered(facts[index + 1 : end]):
                break
            request_indices.append(index)
            end = index
    return request_indices[::-1]


def _is_answered(turn_facts: Sequence[MessageFacts]) -> bool:
    """Return whether the messages after a request end with an answer."""
    for facts in reversed(turn_facts):
        role = facts.message.get("role")
        if facts.without_summary is not None and role in ("assistant", "tool"):
            return (
                role == "assistant"
                and not facts.calls
                and bool(text_of(facts.without_summary).strip())
            )
    return False
