"""Points of threads that this process has seen. All of it may be lost at any moment."""

from __future__ import annotations

from collections.abc import Sequence

from everthread.core.recent_dict import RecentDict
from everthread.store.records import ThreadLink, ThreadLinkMatch
from everthread.thread.finding.thread_match import Family, Point
from everthread.thread.history import History
from everthread.thread.identity import (
    MIN_STRETCH,
    KnownPoint,
    end_skeletons,
    follows_thread_end,
    names_thread,
)

MAX_POINTS = 10_000
_MAX_PASSED = 4_000


class PointCache:
    """Remembers the last point of recently used threads, and points that threads have passed."""

    def __init__(self, most: int = MAX_POINTS) -> None:
        self._tips: RecentDict[Point, ThreadLinkMatch] = RecentDict(most)
        """The last known point of threads, by digest and by skeleton."""
        self._passed: RecentDict[Point, ThreadLinkMatch] = RecentDict(_MAX_PASSED)
        """Earlier points by digest: a request that is sent again ends at one."""
        self._named_ends: RecentDict[str, str] = RecentDict(most)
        """The digest of the last known point of threads that clients name."""
        self._ends = _ThreadEnds(most)

    def find(self, family: Family, history: History) -> KnownPoint | None:
        """Find the last point of a thread that a history continues.

        An earlier point is found only if the history ends there.
        """
        passed_point = self._passed.get((*family, history.digest(len(history))))
        if passed_point is not None:
            return KnownPoint(passed_point, len(history))
        tenant, scope = family
        chains = zip(
            range(len(history), 0, -1),
            reversed(history.digests),
            reversed(history.skeletons),
            strict=True,
        )
        for length, digest, skeleton in chains:
            point = self._tips.get((tenant, scope, digest))
            if point is None and skeleton:
                point = self._tips.get((tenant, scope, skeleton))
                if point is not None and not history.drifted_from(
                    point.results, length
                ):
                    point = None
            if point is not None:
                return KnownPoint(point, length)
        return None

    def find_stretch(self, family: Family, history: History) -> KnownPoint | None:
        """Find the thread whose last messages are in a history without its beginning."""
        found = self._ends.find(family, history)
        if found is None:
            return None
        digest, length = found
        point = self._tips.get((*family, digest))
        return None if point is None else KnownPoint(point, length)

    def list_last(self, family: Family, keys: Sequence[str]) -> list[ThreadLinkMatch]:
        """List the last points of threads with one of these digests or skeletons."""
        points = (self._tips.get((*family, key)) for key in keys)
        return [point for point in points if point is not None]

    def named_end(self, thread: str) -> str | None:
        """Return the digest of the last known point of a thread that a client names."""
        return self._named_ends.get(thread)

    def remember(self, link: ThreadLink, history: History) -> None:
        """Remember a thread's new last point in place of the one before it."""
        if self._replace(link):
            return
        for key in _keys_before(link, history):
            passed_point = self._tips.get(key)
            if passed_point is None or passed_point.link.thread != link.thread:
                continue  # a branch or a side call: the thread still ends there
            del self._tips[key]
            if passed_point.link.digest == key[2] != link.digest:
                self._passed[key] = ThreadLinkMatch(passed_point.link, link.digest, "")
        point = ThreadLinkMatch(link, None, history.results(0, link.length))
        self._tips[link.tenant, link.scope, link.digest] = point
        if link.skeleton:
            self._tips[link.tenant, link.scope, link.skeleton] = point
        self._ends.remember(link, history)
        if names_thread(link.scope):
            self._named_ends[link.thread] = link.digest

    def _replace(self, link: ThreadLink) -> bool:
        """Replace a remembered last point by the same point as it is stored; return False if it is not remembered."""
        key = (link.tenant, link.scope, link.digest)
        known_point = self._tips.get(key)
        if known_point is None or known_point.link.thread != link.thread:
            return False
        if (link.tenant, link.scope, link.previous) in self._tips:
            return False  # the point before was stored late or is new: it is passed now
        point = ThreadLinkMatch(link, None, known_point.results)
        self._tips[key] = point
        if link.skeleton:
            self._tips[link.tenant, link.scope, link.skeleton] = point
        return True

    def replace_passed(self, link: ThreadLink, following: str) -> bool:
        """Replace a point that its thread has passed by the same point as it is stored.

        `following`: the digest of the point after it. Return False if the point is not remembered as passed.
        """
        key = (link.tenant, link.scope, link.digest)
        known_point = self._passed.get(key)
        if known_point is None or known_point.link.thread != link.thread:
            return False
        self._passed[key] = ThreadLinkMatch(link, following, "")
        return True

    def forget_thread(self, thread: str) -> None:
        """Forget the last point of a thread that a client names."""
        self._named_ends.pop(thread, None)

    def forget(self, digest: str) -> None:
        """Forget the points with this digest."""
        for points in (self._tips, self._passed):
            keys = [key for key, point in points.items() if point.link.digest == digest]
            for key in keys:
                del points[key]
        ended_threads = [
            thread for thread, end in self._named_ends.items() if end == digest
        ]
        for thread in ended_threads:
            del self._named_ends[thread]


class _ThreadEnds:
    """The last messages of threads, by which a part of a conversation is recognised."""

    def __init__(self, most: int) -> None:
        self._ends: RecentDict[Point, tuple[str, tuple[str, ...]]] = RecentDict(most)
        """For the last message of a thread: the digest of the point and all that is kept."""

    def remember(self, link: ThreadLink, history: History) -> None:
        stretch = end_skeletons(history)
        if len(stretch) < MIN_STRETCH:
            return
        key = (link.tenant, link.scope, stretch[-1])
        self._ends[key] = link.digest, stretch

    def find(self, family: Family, history: History) -> tuple[str, int] | None:
        """Return the digest of a thread's last point, and its position in a history."""
        spoken_places = [
            (place, piece.skeleton)
            for place, piece in enumerate(history.pieces, 1)
            if piece.skeleton
        ]
        skeletons = [skeleton for _, skeleton in spoken_places]
        for end in range(len(spoken_places) - 1, 0, -1):
            place, last_skeleton = spoken_places[end - 1]
            thread_end = self._ends.get((*family, last_skeleton))
            if thread_end is not None and follows_thread_end(
                skeletons, end, thread_end[1]
            ):
                return thread_end[0], place
        return None


def _keys_before(link: ThreadLink, history: History) -> list[Point]:
    """List the keys of the point before a link: its digest and its skeleton."""
    if not link.previous:
        return []
    keys = [(link.tenant, link.scope, link.previous)]
    for index in range(link.length - 1, -1, -1):  # it is mostly close to the end
        if history.digests[index] == link.previous:
            return [*keys, (link.tenant, link.scope, history.skeletons[index])]
    return keys
