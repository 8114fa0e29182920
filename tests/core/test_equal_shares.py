"""A budget that is shared equally."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.equal_shares import find_largest_equal_share


@pytest.mark.parametrize(
    ("sizes", "total", "share"),
    [
        ([], 10, 10),
        ([3, 4], 10, 10),
        ([3, 20], 10, 7),
        ([20, 30, 40], 10, 3),
        ([1, 30, 40], 11, 5),
    ],
)
def test_short_items_stay_whole_and_long_ones_share_the_rest(
    sizes: list[int], total: int, share: int
) -> None:
    assert find_largest_equal_share(sizes, total) == share


@given(st.lists(st.integers(0, 1_000), max_size=20), st.integers(0, 5_000))
def test_items_cut_to_the_share_fit(sizes: list[int], total: int) -> None:
    share = find_largest_equal_share(sizes, total)
    assert sum(min(size, share) for size in sizes) <= total
