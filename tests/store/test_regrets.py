"""What was fetched again after a compaction: each thing once, counted where it belongs, gone with its thread."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from everthread.errors import InputError, TranscriptError, UnknownIdError
from everthread.factory import open_store
from everthread.store.regretted import RegretRecord
from everthread.store.sql_store import SqlStore
from tests.store.conftest import Clock
from tests.store.talk import compact, new_thread, numbered


async def test_each_thing_counts_once_for_its_compaction(store: SqlStore, clock: Clock) -> None:
    first = await new_thread(store, *numbered(1, 6))
    one = (await compact(store, first.id)).session
    assert await store.regrets(first.id) == []
    assert await store.note_regret(one.id, "read", "read:ab:", call_id="c1")
    assert not await store.note_regret(one.id, "read", "read:ab:", call_id="c2")
    clock.now += 1
    assert await store.note_regret(one.id, "run", "read:ab:")
    await store.append(one.id, numbered(7, 12))
    two = (await compact(store, one.id)).session
    assert await store.note_regret(two.id, "read", "read:ab:", call_id="c3")
    found = await store.regrets(two.id)
    assert found[0] == RegretRecord(one.id, "read", "read:ab:", "c1", clock.now - 1)
    assert sorted((entry.session == two.id, entry.kind) for entry in found) == [
        (False, "read"), (False, "run"), (True, "read"),
    ]  # fmt: skip
    with pytest.raises(UnknownIdError):
        await store.note_regret("nobody", "read", "x")
    with pytest.raises(InputError, match="not by 'guess'"):
        await store.note_regret(one.id, "guess", "x")


async def test_a_period_counts_its_own_without_those_undone(store: SqlStore, clock: Clock) -> None:
    first = await new_thread(store, *numbered(1, 6), tenant="a")
    other = await new_thread(store, *numbered(1, 6), tenant="b")
    made = (await compact(store, first.id)).session
    theirs = (await compact(store, other.id)).session
    await store.note_regret(made.id, "recall", "message:3")
    await store.note_regret(theirs.id, "recall", "message:9")
    clock.now += 100
    await store.note_regret(made.id, "run", "run:1")

    async def counted(**how: object) -> dict[str, int]:
        return dict((await store.insights(since=0, until=clock.now + 1, **how)).regrets)  # type: ignore[arg-type]  # of the call

    assert await counted() == {"read": 0, "run": 1, "recall": 2}
    assert await counted(tenant="a") == {"read": 0, "run": 1, "recall": 1}
    assert await counted(tenant="b", platform="none") == {"read": 0, "run": 0, "recall": 0}
    late = await store.insights(since=clock.now, until=clock.now + 1)
    assert late.regrets == {"read": 0, "run": 1, "recall": 0}
    await store.undo(made.id)
    assert await counted(tenant="a") == {"read": 0, "run": 0, "recall": 0}
    assert await store.regrets(first.id) == []


async def test_they_leave_and_come_back_with_the_thread(
    store: SqlStore, kind: str, new_url: Callable[..., str]
) -> None:
    first = await new_thread(store, *numbered(1, 6))
    made = (await compact(store, first.id)).session
    await store.note_regret(made.id, "recall", "message:3", call_id="c")
    lines = await store.export(first.id)
    elsewhere = open_store(new_url(kind))
    await elsewhere.import_lines(lines)
    assert await elsewhere.regrets(first.id) == await store.regrets(first.id)
    assert await elsewhere.export(first.id) == lines
    await elsewhere.delete_thread(first.id)
    assert dict((await elsewhere.insights(since=0, until=1e12)).regrets) == {"read": 0, "run": 0, "recall": 0}
    for field, wrong in (("session", "nobody"), ("what", 3)):
        broken = [{**line, field: wrong} if line["type"] == "regret" else line for line in lines]
        with pytest.raises(TranscriptError):
            await elsewhere.import_lines(broken)
    await elsewhere.close()
