"""A cache of the points of threads (ends of requests and answers) that this process has seen."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.recent_dict import RecentDict
from everthread.store.rewrite_records import ThreadLink, ThreadLinkMatch
from everthread.thread.finding.thread_match import Family, Point
from everthread.thread.history import History
from everthread.thread.identity import (
    MIN_END_MESSAGES,
    KnownPoint,
    has_thread_end_before,
    is_thread_named,
    list_end_skeletons,
)

MAX_POINTS = 10_000
_MAX_PASSED_POINTS = 4_000


class PointCache:
    """The last points of recently used threads, and points that threads have passed."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._last_points: RecentDict[Point, ThreadLinkMatch] = RecentDict(max_points)
        """The last known point of threads, by digest and by skeleton."""
        self._passed_points: RecentDict[Point, ThreadLinkMatch] = RecentDict(
            _MAX_PASSED_POINTS
        )
        """Earlier points by digest, at which repeated requests end."""
        self._named_thread_ends: RecentDict[str, str] = RecentDict(max_points)
        """The digest of the last known point of threads that clients name."""
        self._thread_ends = _ThreadEnds(max_points)

    def find_point(self, family: Family, history: History) -> KnownPoint | None:
        """Find the last point of a thread that a history continues.

        An earlier point is found only if the history ends there.
        """
        passed_point = self._passed_points.get((*family, history.digest(len(history))))
        if passed_point is not None:
            return KnownPoint(passed_point, len(history))
        tenant, scope = family
        prefixes = zip(
            range(len(history), 0, -1),
            reversed(history.digests),
            reversed(history.skeletons),
            strict=True,
        )
        for length, digest, skeleton in prefixes:
            point = self._last_points.get((tenant, scope, digest))
            if point is None and skeleton:
                point = self._last_points.get((tenant, scope, skeleton))
                if point is not None and not history.equals_except_cleared(
                    point.results, length
                ):
                    point = None
            if point is not None:
                return KnownPoint(point, length)
        return None

    def find_by_thread_end(self, family: Family, history: History) -> KnownPoint | None:
        """Find the thread whose last messages are in a history that lacks the thread's beginning."""
        thread_end = self._thread_ends.find(family, history)
        if thread_end is None:
            return None
        digest, length = thread_end
        point = self._last_points.get((*family, digest))
        return None if point is None else KnownPoint(point, length)

    def list_last_points(
        self, family: Family, keys: Sequence[str]
    ) -> list[ThreadLinkMatch]:
        """List the last points of threads with one of these digests or skeletons."""
        points = (self._last_points.get((*family, key)) for key in keys)
        return [point for point in points if point is not None]

    def ends_at(self, family: Family, thread: str, digest: str) -> bool:
        """Return whether the last known point of a thread has this digest."""
        point = self._last_points.get((*family, digest))
        if point is None or point.link.thread != thread or point.link.digest != digest:
            return False
        return self._named_thread_ends.get(thread, digest) == digest

    def find_named_end(self, thread: str) -> str | None:
        """Return the digest of the last known point of a thread that a client names."""
        return self._named_thread_ends.get(thread)

    def remember(self, link: ThreadLink, history: History) -> None:
        """Remember a thread's new last point in place of the previous one."""
        if self._replace_last(link):
            return
        for key in _list_previous_keys(link, history):
            passed_point = self._last_points.get(key)
            if passed_point is None or passed_point.link.thread != link.thread:
                continue  # a branch or a side call: the thread still ends there
            del self._last_points[key]
            if passed_point.link.digest == key[2] != link.digest:
                self._passed_points[key] = ThreadLinkMatch(
                    passed_point.link, link.digest, ""
                )
        point = ThreadLinkMatch(link, None, history.join_result_hashes(0, link.length))
        self._last_points[link.tenant, link.scope, link.digest] = point
        if link.skeleton:
            self._last_points[link.tenant, link.scope, link.skeleton] = point
        self._thread_ends.remember(link, history)
        if is_thread_named(link.scope):
            self._named_thread_ends[link.thread] = link.digest

    def _replace_last(self, link: ThreadLink) -> bool:
        """Replace a remembered last point by its stored form; return False if it is not remembered."""
        key = (link.tenant, link.scope, link.digest)
        known_point = self._last_points.get(key)
        if known_point is None or known_point.link.thread != link.thread:
            return False
        if (link.tenant, link.scope, link.previous) in self._last_points:
            return False  # the point before was stored late or is new: it is passed now
        point = ThreadLinkMatch(link, None, known_point.results)
        self._last_points[key] = point
        if link.skeleton:
            self._last_points[link.tenant, link.scope, link.skeleton] = point
        return True

    def replace_passed(self, link: ThreadLink, next_digest: str) -> bool:
        """Update a remembered point that is no longer its thread's last one with its stored form.

        `next_digest`: the digest of the next point. Return False if the point is not remembered as an earlier one.
        """
        key = (link.tenant, link.scope, link.digest)
        known_point = self._passed_points.get(key)
        if known_point is None or known_point.link.thread != link.thread:
            return False
        self._passed_points[key] = ThreadLinkMatch(link, next_digest, "")
        return True

    def forget_thread(self, thread: str) -> None:
        """Forget the last point of a thread that a client names."""
        self._named_thread_ends.pop(thread, None)

    def forget(self, digest: str) -> None:
        """Forget the points with this digest."""
        for points in (self._last_points, self._passed_points):
            keys = [key for key, point in points.items() if point.link.digest == digest]
            for key in keys:
                del points[key]
        ended_threads = [
            thread for thread, end in self._named_thread_ends.items() if end == digest
        ]
        for thread in ended_threads:
            del self._named_thread_ends[thread]


class _ThreadEnds:
    """The last messages of threads, used to recognise a part of a conversation."""

    def __init__(self, max_ends: int) -> None:
        self._ends: RecentDict[Point, tuple[str, tuple[str, ...]]] = RecentDict(
            max_ends
        )
        """For each thread's last message, the digest of its last point and the skeletons of its last messages."""

    def remember(self, link: ThreadLink, history: History) -> None:
        """Remember the last messages of a thread, if there are enough to recognise it."""
        skeletons = list_end_skeletons(history)
        if len(skeletons) < MIN_END_MESSAGES:
            return
        key = (link.tenant, link.scope, skeletons[-1])
        self._ends[key] = link.digest, skeletons

    def find(self, family: Family, history: History) -> tuple[str, int] | None:
        """Find a thread whose end is in a history; return the digest of its last point, and the end's position."""
        positions = [
            (position, identity.skeleton)
            for position, identity in enumerate(history.identities, 1)
            if identity.skeleton
        ]
        skeletons = [skeleton for _, skeleton in positions]
        for end in range(len(positions) - 1, 0, -1):
            position, last_skeleton = positions[end - 1]
            thread_end = self._ends.get((*family, last_skeleton))
            if thread_end is not None and has_thread_end_before(
                skeletons, end, thread_end[1]
            ):
                return thread_end[0], position
        return None


def _list_previous_keys(link: ThreadLink, history: History) -> list[Point]:
    """List the keys of the point before a link: its digest and its skeleton."""
    if not link.previous:
        return []
    keys = [(link.tenant, link.scope, link.previous)]
    for index in range(link.length - 1, -1, -1):  # it is mostly close to the end
        if history.digests[index] == link.previous:
            return [*keys, (link.tenant, link.scope, history.skeletons[index])]
    return keys
