"""The requests that the user still waits for."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.compaction.cutting.cut_plan import CutPlan
from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.summary.sections import NONE
from everthread.core.messages import (
    clip,
    one_line,
    text_of,
)
from everthread.core.secrets.redaction import redact
from everthread.core.transcript import neutralize_summary_marks

MAX_OPEN_REQUESTS = 3
"""Maximum open requests to list: after three new ones the user has moved on from older ones."""
ALL_ANSWERED = "None is open. The latest, which was answered: "
_BEGINNING_CHARS = 240
_MAX_READ_CHARS = 2_000
"""Characters of a request to read for its beginning, so that a secret in it is seen whole."""


def task_lines(plan: CutPlan) -> str:
    """Return the requests without a final answer, each with number and beginning.

    The full texts are in another section. If all have an answer, return the latest and say so: the preamble refers to
    this section.
    """
    requests = open_requests(plan.history.facts)
    if requests:
        return "\n".join(_request_line(plan, index) for index in requests)
    latest = plan.history.latest_user
    return NONE if latest is None else f"{ALL_ANSWERED}{_request_line(plan, latest)}"


def _request_line(plan: CutPlan, index: int) -> str:
    facts = plan.history.facts[index]
    if facts.beginning is None:
        words = (
            redact(facts.words[:_MAX_READ_CHARS])
            if facts.redacted is None
            else facts.redacted
        )
        facts.beginning = words or "(an image or a file without words)"
    return f"[{plan.turns[index]}] {neutralize_summary_marks(clip(one_line(facts.beginning), _BEGINNING_CHARS))}"


def open_requests(facts: Sequence[MessageFacts]) -> list[int]:
    """Return the indices of the requests without a final answer, oldest first.

    A turn is answered when it ends with the assistant speaking and calling nothing. Only the requests at the end of the
    conversation can be open: the user moved on from earlier ones, or they are done.
    """
    requests: list[int] = []
    end = len(facts)
    for index in range(len(facts) - 1, -1, -1):
        if facts[index].is_user:
            if len(requests) == MAX_OPEN_REQUESTS or _is_answered(
                facts[index + 1 : end]
            ):
                break
            requests.append(index)
            end = index
    return requests[::-1]


def _is_answered(turn: Sequence[MessageFacts]) -> bool:
    """Return whether the messages after a request end with an answer."""
    for facts in reversed(turn):
        role = facts.message.get("role")
        if facts.rest is not None and role in ("assistant", "tool"):
            return (
                role == "assistant"
                and not facts.calls
                and bool(text_of(facts.rest).strip())
            )
    return False
