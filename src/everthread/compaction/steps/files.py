"""Which files the calls of a transcript were about, and what was done to them."""

from __future__ import annotations

from everthread.core.messages import Messages, calls_of
from everthread.core.toolkinds import action_of

CHANGED, READ, KNOWN = "changed", "read", "listed"
"""What was done to a file; the last: an earlier summary listed it."""


def touched(messages: Messages) -> list[tuple[str, str]]:
    """Every file the calls were about, in order, with what was done to it."""
    found = []
    for message in messages:
        for call in calls_of(message):
            action = action_of(call)
            if action is not None and action.target and action.kind in ("write", "patch", "read"):
                found.append((action.target, READ if action.kind == "read" else CHANGED))
    return found


def by_weight(files: dict[str, str]) -> list[str]:
    """Paths with what was done to each, as a list: changed files before read ones, the latest first."""
    latest = list(reversed(files))
    return sorted(latest, key=lambda path: (CHANGED, KNOWN, READ).index(files[path]))
