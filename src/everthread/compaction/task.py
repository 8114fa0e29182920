"""What the user still waits for."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.compaction.history import Facts
from everthread.compaction.plan import Plan
from everthread.core.messages import clip, one_line, text_of
from everthread.core.redaction import redact
from everthread.core.transcript import defuse

MOST = 3
"""A user who breaks in again and again has moved on from what was asked before."""
_BEGINNING = 240
_READ = 4_000
"""Characters of a request that are read to show its beginning: a secret in there is seen whole."""


def task_lines(plan: Plan) -> str:
    """The requests without a final answer: number and beginning, for their words stand elsewhere in the context."""
    lines = []
    for index in unfulfilled(plan.history.facts):
        one = plan.history.facts[index]
        if one.beginning is None:
            one.beginning = redact(one.words[:_READ]) or "(an image or a file without words)"
        lines.append(f"[{plan.turns[index]}] {defuse(clip(one_line(one.beginning), _BEGINNING))}")
    return "\n".join(lines)


def unfulfilled(facts: Sequence[Facts]) -> list[int]:
    """Where the requests stand that have no final answer yet, oldest first.

    A turn is answered when it ends with the assistant speaking and calling nothing. Only the requests at the end of the
    conversation can be open: what stands before an answered turn was passed over or is done.
    """
    found: list[int] = []
    end = len(facts)
    for index in range(len(facts) - 1, -1, -1):
        if facts[index].is_user:
            if len(found) == MOST or _is_answered(facts[index + 1 : end]):
                break
            found.append(index)
            end = index
    return found[::-1]


def _is_answered(turn: Sequence[Facts]) -> bool:
    """Whether what follows a request ends with an answer to it."""
    for one in reversed(turn):
        role = one.message.get("role")
        if one.rest is not None and role in ("assistant", "tool"):
            return role == "assistant" and not one.calls and bool(text_of(one.rest).strip())
    return False
