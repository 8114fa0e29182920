"""A dict of limited size keeps its newest entries."""

from __future__ import annotations

from everthread.core.recent_dict import RecentDict


def test_drops_the_entry_set_longest_ago() -> None:
    recent: RecentDict[str, int] = RecentDict(2)
    recent["a"] = 1
    recent["b"] = 2
    recent["a"] = 3
    recent["c"] = 4
    assert dict(recent) == {"a": 3, "c": 4}
