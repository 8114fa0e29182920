"""The lock of the only gateway on a file: held by one process, given up when another one comes."""

from __future__ import annotations

from pathlib import Path

from everthread.store.sole_use import SoleUse


def test_the_first_one_is_alone_until_another_comes(tmp_path: Path) -> None:
    first = SoleUse(tmp_path / "store.db")
    assert first.check_is_alone()
    second = SoleUse(tmp_path / "store.db")
    assert not second.check_is_alone()
    assert not first.check_is_alone(), "it was asked"
    assert not second.check_is_alone(), "both share the file now"
    third = SoleUse(tmp_path / "store.db")
    first.close()
    assert not third.check_is_alone()
    assert not second.check_is_alone()
    for one in (second, third):
        one.close()
    again = SoleUse(tmp_path / "store.db")
    assert again.check_is_alone(), "all others have ended"
    again.close()
    assert not again.check_is_alone()


def test_a_process_that_could_not_share_is_noticed_by_the_next_lone_one(
    tmp_path: Path,
) -> None:
    first = SoleUse(tmp_path / "store.db")
    waiting = SoleUse(tmp_path / "store.db")
    first.close()
    newer = SoleUse(tmp_path / "store.db")
    assert newer.check_is_alone(), "the one that waits has not asked again"
    assert not waiting.check_is_alone()
    assert not newer.check_is_alone()
    for one in (waiting, newer):
        one.close()


def test_without_a_lock_file_no_process_is_alone(tmp_path: Path) -> None:
    assert not SoleUse(tmp_path / "missing" / "store.db").check_is_alone()
