"""Names that are easily taken for each other: all but a letter or two is the same."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

MOST = 40
"""Among more names than these nobody told any apart."""
SERIES = 3
"""More names than these that are alike are a series."""
SHORTEST = 4
APART = 2
"""So many characters in the middle of two names may differ."""


def lookalikes(names: Iterable[str]) -> set[str]:
    """Those of the names that have a near twin among them."""
    long = [name for name in dict.fromkeys(names) if len(name) >= SHORTEST]
    if len(long) > MOST:
        return set()
    twins: dict[str, set[str]] = {}
    for one, other in combinations(long, 2):
        if alike(one, other):
            twins.setdefault(one, set()).add(other)
            twins.setdefault(other, set()).add(one)
    return {name for name, others in twins.items() if len(others) < SERIES}


def alike(one: str, other: str) -> bool:
    """Whether two different names are the same at both ends, up to a letter or two between them."""
    shorter, longer = sorted((len(one), len(other)))
    if one == other or longer - shorter > APART:
        return False
    start = _same(one, other)
    end = min(_same(one[::-1], other[::-1]), shorter - start)
    return longer - start - end <= APART and start + end >= SHORTEST - 1


def _same(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
