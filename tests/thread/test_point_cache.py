"""The points of threads that a process remembers."""

from __future__ import annotations

from everthread.thread.finding.point_cache import PointCache
from everthread.thread.finding.thread_match import Family, ThreadMatch
from everthread.thread.history import build_history, identify

FAMILY = Family("t", "")


def test_a_point_stored_after_its_successor_was_announced_is_no_end() -> None:
    """An answer may be stored while the request that continues it is already expected."""
    said = [{"role": "user", "content": word} for word in ("one", "two", "three")]
    whole = build_history([identify("openai_chat", message) for message in said])
    start = whole.until(1)
    first = ThreadMatch(FAMILY, "thread")
    second = first.after(start)
    cache = PointCache()
    cache.remember(first.link(start), start)
    cache.remember(second.link(whole), whole)
    cache.remember(first.link(start), start)
    cache.remember(second.link(whole), whole)
    assert cache.find(FAMILY, start.extend(whole.pieces[2:])) is None
