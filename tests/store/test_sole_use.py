"""The lock of the only gateway on a file: held by one process, given up when another one comes."""

from __future__ import annotations

from pathlib import Path

from everthread.store.sole_use import SoleUse


def test_the_first_one_is_alone_until_another_comes(tmp_path: Path) -> None:
    first = SoleUse(tmp_path / "store.db")
    assert first.is_held()
    second = SoleUse(tmp_path / "store.db")
    assert not second.is_held()
    assert not first.is_held(), "it was asked"
    assert not second.is_held(), "both share the file now"
    third = SoleUse(tmp_path / "store.db")
    first.close()
    assert not third.is_held()
    assert not second.is_held()
    for one in (second, third):
        one.close()
    again = SoleUse(tmp_path / "store.db")
    assert again.is_held(), "all others have ended"
    again.close()
    assert not again.is_held()


def test_a_process_that_could_not_share_is_noticed_by_the_next_lone_one(
    tmp_path: Path,
) -> None:
    first = SoleUse(tmp_path / "store.db")
    waiting = SoleUse(tmp_path / "store.db")
    first.close()
    newer = SoleUse(tmp_path / "store.db")
    assert newer.is_held(), "the one that waits has not asked again"
    assert not waiting.is_held()
    assert not newer.is_held()
    for one in (waiting, newer):
        one.close()


def test_without_a_lock_file_no_process_is_alone(tmp_path: Path) -> None:
    assert not SoleUse(tmp_path / "missing" / "store.db").is_held()
