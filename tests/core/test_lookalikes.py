"""Names that are easily taken for each other."""

from __future__ import annotations

import pytest

from everthread.core.lookalikes import MOST, alike, lookalikes


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("grey_level", "gray_level"),
        ("OPS-7712", "OPS-7721"),
        ("conf/eu-2.yaml", "conf/eu-22.yaml"),
        ("onOpen", "onOpened"),
        ("ab12cd34", "ab12cd43"),
    ],
)
def test_near_twins(one: str, other: str) -> None:
    assert alike(one, other)
    assert lookalikes([one, "something_else", other]) == {one, other}


@pytest.mark.parametrize(
    ("one", "other"), [("same_name", "same_name"), ("load_all", "load_everything"), ("alpha", "omega"), ("abc", "abd")]
)
def test_others_are_none(one: str, other: str) -> None:
    assert lookalikes([one, other]) == set()


def test_a_series_and_a_crowd_have_no_twins() -> None:
    assert lookalikes(f"worker-{n}" for n in range(1, 6)) == set()
    assert lookalikes([*(f"{chr(97 + n % 26)}{n}{'x' * n}" for n in range(5, MOST + 6)), "grey_lv", "gray_lv"]) == set()
