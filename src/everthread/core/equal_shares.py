"""Share a budget equally among items of different sizes."""

from __future__ import annotations

from collections.abc import Sequence


def find_largest_equal_share(sizes: Sequence[int], total: int) -> int:
    """Return the largest size to which each item may be cut so that all together take at most `total`.

    If all items fit uncut, return `total`.
    """
    remaining = total
    ascending = sorted(sizes)
    for position, size in enumerate(ascending):
        share = remaining // (len(ascending) - position)
        if size > share:
            return share
        remaining -= size
    return total
