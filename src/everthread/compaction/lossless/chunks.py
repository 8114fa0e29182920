"""Which messages make a leaf: whole groups, up to a size, best between two turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everthread.core.messages import Messages
from everthread.core.transcript import is_user_message, spans

SOON = 0.7
"""From this share of a chunk's size on it ends where a user speaks."""
SMALL = 0.25
"""A last chunk of less joins the one before it."""


def chunks(messages: Messages, covered: Sequence[int], size: int, count: Callable[[int], int]) -> list[list[int]]:
    """The places that are covered, in runs of about `size` tokens. A group of calls and results is never split."""
    wanted = set(covered)
    found: list[list[int]] = []
    sizes: list[int] = []
    for span in spans(messages):
        places = [place for place in range(span.start, span.end) if place in wanted]
        if not places:
            continue
        tokens = sum(map(count, places))
        full = sizes and (
            sizes[-1] + tokens > size or (sizes[-1] >= SOON * size and is_user_message(messages[places[0]]))
        )
        if not found or full:
            found.append([])
            sizes.append(0)
        found[-1] += places
        sizes[-1] += tokens
    if len(found) > 1 and sizes[-1] < SMALL * size:
        last = found.pop()
        found[-1] += last
    return found
