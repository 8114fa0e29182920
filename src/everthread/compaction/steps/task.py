"""What the user still waits for, in the user's own words."""

from __future__ import annotations

from everthread.core.messages import Message, Messages, calls_of, text_of
from everthread.core.summary import is_summary
from everthread.core.transcript import Turn, turns, user_text

MOST = 3
"""A user who breaks in again and again has moved on from what was asked before."""


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
        message = messages[index]
        if message.get("role") == "assistant" and not is_summary(message):
            return not calls_of(message) and bool(text_of(message).strip())
        if message.get("role") == "tool":
            return False
    return False


def request_text(message: Message, room: int) -> str:
    """The request word for word; longer than `room` characters: its start and end, and where the whole is."""
    said = user_text(message) or "(an image or a file without words)"
    if len(said) <= room:
        return said
    half = max(room // 2 - 40, 20)
    left_out = f"[… {len(said) - 2 * half:,} characters; the whole message stands outside this summary …]"
    return f"{said[:half].rstrip()}\n{left_out}\n{said[-half:].lstrip()}"
