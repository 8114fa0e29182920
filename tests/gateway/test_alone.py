"""Who is the only gateway on a store knows it, and who is not does not think so."""

from __future__ import annotations

from pathlib import Path

from everthread.gateway.alone import Alone


def test_nobody_thinks_to_be_alone_who_is_not(tmp_path: Path) -> None:
    first = Alone(tmp_path / "store.db")
    assert first()
    second, third = Alone(tmp_path / "store.db"), Alone(tmp_path / "store.db")
    other = Alone(tmp_path / "other.db")
    assert [gateway() for gateway in (first, second, third, other)] == [False, False, False, True]
    second.close()
    assert not first()
    first.close()
    fourth = Alone(tmp_path / "store.db")
    assert [gateway() for gateway in (third, fourth)] == [False, False]
    third.close()
    assert fourth()
    fourth.close()
    other.close()
    assert not fourth()
