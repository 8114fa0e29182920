"""Points of proxied threads, and what stands for their beginnings: the same on each database."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from decimal import Decimal

import pytest

from everthread.core.pricing import CanonicalUsage
from everthread.store.models import (
    NewCompaction,
    NewMessage,
    NewSession,
    NewThreadLink,
    NewUsage,
    Rewrite,
    ThreadLink,
)
from everthread.store.sql.messages import AppendRequest
from everthread.store.store import PREPARED_AT_ONCE, Store
from tests.store.conftest import Clock, close_sound, open_at

REWRITE = Rewrite("t", "e", "d3", 0, 3, "s3", "r1 r2", "thread", b'{"role":"user"},\x00\xff', 10, 2, {"seen": 3})


def point(digest: str, previous: str = "", *, thread: str = "A", length: int = 1, tenant: str = "t") -> NewThreadLink:
    link = ThreadLink(tenant, "", digest, previous, f"s{digest}", thread, length, None, f"r{digest}")
    said = NewMessage({"role": "user", "content": f"said {digest}"}, event=digest)
    return NewThreadLink(link, previous, NewSession(id=thread, tenant=tenant, platform="gateway"), None, [said])


async def extend(store: Store, new: NewThreadLink) -> ThreadLink | None:
    """Store one point; the stored one, None where its step is taken."""
    [link] = await store.extend_thread(new.link.thread, [new])
    return link


async def test_a_request_is_stored_with_its_answer_usage_and_state(store: Store) -> None:
    await extend(store, point("d1"))
    points = [point("d2", "d1", length=2), point("d3", "d2", length=3)]
    usage = NewUsage("A", "m", CanonicalUsage(input_tokens=5))
    second, third = await store.extend_thread("A", points, [usage], ("key", {"a": 1}))
    assert second is not None
    assert third is not None
    assert [message.id for message in await store.messages("A")][1:] == [second.message, third.message]
    assert [(one.thread, one.usage.input_tokens) for one in await store.usage("A")] == [("A", 5)]
    assert await store.get_state("A", "key") == {"a": 1}


async def test_where_the_step_of_a_request_is_taken_nothing_is_stored_with_it(store: Store) -> None:
    await extend(store, point("d1"))
    await extend(store, point("d2", "d1", length=2))
    points = [point("other", "d1", length=2), point("answer", "other", length=3)]
    usage = NewUsage("A", "m", CanonicalUsage(input_tokens=5))
    assert await store.extend_thread("A", points, [usage], ("key", 1)) == [None]
    assert (len(await store.messages("A")), await store.usage("A"), await store.get_state("A", "key")) == (2, [], None)


async def test_usage_goes_to_the_thread_that_has_the_point_already(store: Store) -> None:
    await extend(store, point("d1"))
    usage = NewUsage("B", "m", CanonicalUsage(input_tokens=5))
    [link] = await store.extend_thread("B", [point("d1", thread="B"), point("d2", "d1", thread="B")], [usage])
    assert link is not None
    assert link.thread == "A"
    assert [one.session for one in await store.usage("A")] == ["A"]


async def test_a_point_comes_with_its_thread_and_messages(store: Store) -> None:
    first = await extend(store, point("d1"))
    second = await extend(store, point("d2", "d1", length=2))
    assert first is not None
    assert second is not None
    stored = await store.messages("A")
    assert [message.id for message in stored] == [first.message, second.message]
    assert await extend(store, point("d2", "d1", length=2)) == second, "again it is the same"
    assert len(await store.messages("A")) == 2


async def test_a_step_is_taken_once(store: Store) -> None:
    first = await extend(store, point("d1"))
    await extend(store, point("d2", "d1", length=2))
    assert await extend(store, point("other", "d1", length=2)) is None
    assert len(await store.messages("A")) == 2, "who lost stored nothing"
    assert first is not None
    assert first.message is not None
    branch = replace(point("other", "d1", thread="B", length=2), branch_of=("A", first.message))
    assert await extend(store, branch) is not None
    assert [message.body["content"] for message in await store.messages("B")] == ["said d1", "said other"]
    assert (await store.session("B")).kind == "branch"


async def test_the_longest_known_beginning_is_found(store: Store) -> None:
    for length in range(1, 4):
        await extend(store, point(f"d{length}", f"d{length - 1}" if length > 1 else "", length=length))
    digests = [f"d{length}" for length in range(1, 900)]
    found = await store.find_link("t", "", digests)
    assert found is not None
    assert (found.link.digest, found.next, found.results) == ("d3", None, "rd1 rd2 rd3")
    found = await store.find_link("t", "", digests[:2])
    assert found is not None
    assert (found.link.digest, found.next) == ("d2", "d3")
    assert [entry.link.digest for entry in await store.find_skeletons("t", "", ["sd1", "sd2"])] == ["d2", "d1"]
    for elsewhere in (("other", ""), ("t", "scope")):
        assert await store.find_link(*elsewhere, digests) is None
        assert await store.find_skeletons(*elsewhere, ["sd1"]) == []


async def test_the_first_rewrite_of_a_beginning_stays(store: Store) -> None:
    assert await store.put_rewrite(REWRITE) == REWRITE
    assert await store.put_rewrite(replace(REWRITE, replacement=b"late", depth=9)) == REWRITE
    stronger = replace(REWRITE, strength=1, replacement=b"stronger")
    longer = replace(REWRITE, chain="d5", skeleton="s5", length=5)
    for new in (stronger, longer):
        assert await store.put_rewrite(new) == new
    digests = [f"d{length}" for length in range(1, 900)]
    assert await store.find_rewrites("t", "e", digests) == [longer, stronger, REWRITE]
    assert await store.find_rewrites("t", "e", digests[:4]) == [stronger, REWRITE]
    assert await store.find_similar_rewrites("t", "e", ["s1", "s3"]) == [stronger, REWRITE]
    for elsewhere in (("other", "e"), ("t", "other")):
        assert await store.find_rewrites(*elsewhere, digests) == []
        assert await store.find_similar_rewrites(*elsewhere, ["s3"]) == []


async def test_a_search_that_goes_on_finds_what_a_whole_one_does(store: Store) -> None:
    """Whatever was made, taken back or deleted between the two, by this process or another."""
    await extend(store, point("d1"))
    chance = random.Random(7)  # noqa: S311 - what happens, the same each time
    engines, before = ["e", "f"], None
    made: list[Rewrite] = []
    for length in range(1, 120):
        digests, skeletons = ([f"{kind}{place}" for place in range(1, length + 1)] for kind in "ds")
        step = chance.random()
        if step < 0.2:
            place = chance.randint(1, length)
            new = replace(
                REWRITE, engine=chance.choice(engines), chain=chance.choice([f"d{place}", "x"]), thread="A",
                skeleton=chance.choice([f"s{place}", ""]), length=place, strength=len(made),
            )  # fmt: skip
            made.append(await store.put_rewrite(new))
        elif step < 0.3 and made:
            gone = made.pop(chance.randrange(len(made)))
            sql = chance.choice(
                ["DELETE FROM rewrites", "UPDATE rewrites SET chain = 'undone:' || chain, skeleton = ''"]
            )
            await store._write(lambda tx, sql=sql, gone=gone: tx.run(f"{sql} WHERE strength = ?", (gone.strength,)))  # type: ignore[misc]
        whole, *_ = await store.match_rewrites("t", engines, [digests], skeletons)
        found, before, _ = await store.match_rewrites("t", engines, [digests], skeletons, before)
        longest = [(exact[:1], similar) for exact, similar in whole]
        assert [(exact[:1], similar) for exact, similar in found] == longest
        if chance.random() < 0.1:  # the client went on otherwise
            other = [*digests[:-1], "other"]
            assert (await store.match_rewrites("t", engines, [other], skeletons, before))[0] == (
                await store.match_rewrites("t", engines, [other], skeletons)
            )[0]


async def test_a_compaction_counts_once_for_its_thread(store: Store) -> None:
    await extend(store, point("d1"))
    made = NewCompaction([], 900, 300, author="extractive", warnings=[], cost=Decimal("0.25"))
    mine = replace(REWRITE, thread="A")
    for rewrite in (mine, mine, replace(mine, chain="d4", thread="nowhere")):
        await store.put_rewrite(rewrite, made)
    await store.put_rewrite(replace(mine, chain="d5"))
    (record,) = await store.compactions("A")
    assert (record.thread, record.session, record.record) == ("A", "A", made)
    told = await store.insights(since=0, until=1e12, platform="gateway")
    assert (told.compactions, told.tokens_saved) == (1, 600)
    (thread,) = await store.list_threads()
    assert thread.compactions == 1


async def test_what_belongs_to_a_thread_goes_with_it(store: Store) -> None:
    await extend(store, point("d1"))
    await extend(store, point("d1", thread="B", tenant="u"))
    for tenant, thread in (("t", "A"), ("u", "B")):
        await store.put_rewrite(replace(REWRITE, tenant=tenant, thread=thread))
    await store.delete_thread("A")
    assert await store.find_link("t", "", ["d1"]) is None
    assert await store.find_rewrites("t", "e", ["d3"]) == []
    assert await store.find_link("u", "", ["d1"]) is not None
    assert len(await store.find_rewrites("u", "e", ["d3"])) == 1


async def test_of_two_stores_that_race_one_wins(url: str, clock: Clock) -> None:
    stores = [open_at(url, clock) for _ in range(2)]
    await extend(stores[0], point("d1"))
    for turn in range(20):
        previous = "d1" if turn == 0 else f"w{turn - 1}"
        new = [point(f"{name}{turn}", previous, length=turn + 2) for name in "ab"]
        made = await asyncio.gather(*(extend(store, each) for store, each in zip(stores, new, strict=True)))
        assert sum(link is not None for link in made) == 1
        winner = next(link for link in made if link is not None)
        await extend(stores[0], point(f"w{turn}", winner.digest, length=turn + 2))
        rows = [replace(REWRITE, chain=f"c{turn}", replacement=name.encode()) for name in "ab"]
        kept = await asyncio.gather(*(store.put_rewrite(row) for store, row in zip(stores, rows, strict=True)))
        assert kept[0] == kept[1]
    for opened in stores:
        await close_sound(opened)


async def test_a_long_history_keeps_no_other_write_waiting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, prepare = threading.Event(), threading.Event(), AppendRequest.prepare

    def wait(request: AppendRequest) -> None:
        if len(request.new) > PREPARED_AT_ONCE:
            begun.set()
            may_end.wait(60)
        prepare(request)

    monkeypatch.setattr(AppendRequest, "prepare", wait)
    messages = [NewMessage({"role": "user", "content": f"said {number}"}, event=f"d{number}") for number in range(100)]
    long = asyncio.create_task(extend(store, replace(point("d1", length=100), messages=messages)))
    await asyncio.to_thread(begun.wait, 60)
    other = await extend(store, point("e1", thread="B"))
    assert other is not None
    assert not long.done()
    may_end.set()
    assert await long is not None
    assert len(await store.history("A")) == 100
