"""What the user still waits for."""

from __future__ import annotations

from everthread.compaction.plan import Plan
from everthread.core.marks import defuse, without_summary
from everthread.core.messages import Messages, calls_of, text_of
from everthread.core.redaction import redact
from everthread.core.text import clip, one_line
from everthread.core.transcript import Turn, turns, user_text

MOST = 3
"""A user who breaks in again and again has moved on from what was asked before."""
_BEGINNING = 240


def task_lines(plan: Plan) -> str:
    """The requests without a final answer: number and beginning, for their words stand elsewhere in the context."""
    lines = []
    for index in unfulfilled(plan.messages):
        said = redact(user_text(plan.messages[index])) or "(an image or a file without words)"
        lines.append(f"[{plan.turns[index]}] {defuse(clip(one_line(said), _BEGINNING))}")
    return "\n".join(lines)


def unfulfilled(messages: Messages) -> list[int]:
    """Where the requests stand that have no final answer yet, oldest first.

    A turn is answered when it ends with the assistant speaking and calling nothing. Only the requests at the end of the
    conversation can be open: what stands before an answered turn was passed over or is done.
    """
    found: list[int] = []
    for turn in reversed(turns(messages)):
        if turn.user is None or _answered(messages, turn) or len(found) == MOST:
            break
        found.append(turn.user)
    return found[::-1]


def _answered(messages: Messages, turn: Turn) -> bool:
    for index in range(turn.end - 1, turn.start, -1):
        message = without_summary(messages[index])
        if message is None:
            continue
        if message.get("role") == "assistant":
            return not calls_of(message) and bool(text_of(message).strip())
        if message.get("role") == "tool":
            return False
    return False
