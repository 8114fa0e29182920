"""Vectors as they are kept, and two rankings joined."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.ranking import fused
from everthread.core.vectors import MOST_NUMBERS, nearest, packed
from everthread.errors import InputError


def test_the_nearest_come_first_and_nothing_far_does() -> None:
    pytest.importorskip("numpy")
    kept = [(1, packed([1.0, 0.0, 0.1])), (2, packed([0.9, 0.4, 0.0])), (3, packed([-1.0, 0.0, 0.0])), (4, b"\x01")]
    found = nearest(packed([100.0, 0.0, 0.0]), kept, 10, least=0.5)
    assert [key for key, _ in found] == [1, 2], "3 points away, 4 is of another model"
    assert found[0][1] == pytest.approx(1 / math.hypot(1, 0.1), abs=0.01)
    assert nearest(packed([1.0]), kept, 10, least=-1)[0][0] == 4
    assert nearest(b"", [], 10, least=0) == []


@pytest.mark.parametrize("numbers", [[], [0.0, 0.0], [math.nan], [math.inf], [1.0] * (MOST_NUMBERS + 1)])
def test_what_is_no_direction_is_refused(numbers: list[float]) -> None:
    with pytest.raises(InputError):
        packed(numbers)


@given(
    st.lists(st.integers(0, 40), unique=True, max_size=20),
    st.lists(st.integers(0, 40), unique=True, max_size=20),
    st.integers(2, 12),
)
def test_no_ranking_can_starve_the_other(first: list[int], second: list[int], most: int) -> None:
    joined = fused(first, second, most)
    assert len(joined) == len(set(joined)) == min(most, len({*first, *second}))
    assert set(first[:1]) | set(second[:1]) <= set(joined)
    if not second:
        assert joined == first[:most]
    if most >= 8:
        assert set(first[: most // 8]) | set(second[: most // 8]) <= set(joined)
