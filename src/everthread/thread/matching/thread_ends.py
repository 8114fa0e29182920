"""Recognise a part of a conversation by the last messages of its thread."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.recent_dict import RecentDict
from everthread.store.rewrite_records import ThreadLink
from everthread.thread.matching.history import History
from everthread.thread.matching.thread_match import ClientScope, LinkKey

MIN_END_MESSAGES = 4
"""Minimum messages of a thread's end by which it is found in a history without its beginning."""
MAX_END_MESSAGES = 8
"""Maximum messages of a thread's end to compare."""


class ThreadEnds:
    """The last messages of threads, used to recognise a part of a conversation."""

    def __init__(self, max_ends: int) -> None:
        self._ends: RecentDict[LinkKey, tuple[str, tuple[str, ...]]] = RecentDict(max_ends)
        """For each thread's last message, the digest of its last link and the skeletons of its last messages."""

    def remember(self, link: ThreadLink, history: History) -> None:
        """Remember the last messages of a thread, if there are enough to recognise it."""
        skeletons = list_end_skeletons(history)
        if len(skeletons) < MIN_END_MESSAGES:
            return
        key = (link.tenant, link.scope, skeletons[-1])
        self._ends[key] = link.digest, skeletons

    def find(self, client_scope: ClientScope, history: History) -> tuple[str, int] | None:
        """Find a thread whose end is in a history; return the digest of its last link, and the end's position."""
        positions = [
            (position, identity.skeleton)
            for position, identity in enumerate(history.identities, 1)
            if identity.skeleton
        ]
        skeletons = [skeleton for _, skeleton in positions]
        for end in range(len(positions) - 1, 0, -1):
            position, last_skeleton = positions[end - 1]
            thread_end = self._ends.get((*client_scope, last_skeleton))
            if thread_end is not None and has_thread_end_before(skeletons, end, thread_end[1]):
                return thread_end[0], position
        return None


def list_end_skeletons(history: History) -> tuple[str, ...]:
    """Return the skeletons of the last messages of a history, the newest last."""
    last_skeletons = [identity.skeleton for identity in history.identities[-2 * MAX_END_MESSAGES :]]
    return tuple(skeleton for skeleton in last_skeletons if skeleton)[-MAX_END_MESSAGES:]


def has_thread_end_before(
    skeletons: Sequence[str], position: int, thread_end: Sequence[str]
) -> bool:
    """Return whether a history has the end of a thread just before a position.

    The history may begin within that end, but at least `MIN_END_MESSAGES` messages must agree.
    """
    count = min(position, len(thread_end))
    if count < MIN_END_MESSAGES:
        return False
    return list(skeletons[position - count : position]) == list(thread_end[-count:])
