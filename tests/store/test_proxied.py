"""Points of proxied threads, and the compactions that replace their beginnings: the same on each database."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from decimal import Decimal

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.store.records import NewCompaction, NewMessage, NewSession
from everthread.store.rewrite_records import (
    UNDONE_STATE_KEY,
    ContextEntry,
    NewRewrite,
    NewThreadLink,
    ProxiedContext,
    Rewrite,
    ThreadLink,
)
from everthread.store.sql.message_rows import AppendRequest
from everthread.store.store import MAX_PREPARED_BY_WRITER, Store
from everthread.store.usage_records import NewUsage
from tests.store.conftest import Clock, close_sound, open_at
from tests.store.tables import transaction

REWRITE = Rewrite(
    "t",
    "e",
    "d3",
    0,
    3,
    "s3",
    "r1 r2",
    "thread",
    b'{"role":"user"},\x00\xff',
    "",
    2,
    {"seen": 3},
)


def point(
    digest: str,
    previous: str = "",
    *,
    thread: str = "A",
    length: int = 1,
    tenant: str = "t",
) -> NewThreadLink:
    link = ThreadLink(
        tenant, "", digest, previous, f"s{digest}", thread, length, None, f"r{digest}"
    )
    said = NewMessage({"role": "user", "content": f"said {digest}"}, event=digest)
    return NewThreadLink(
        link,
        previous,
        NewSession(id=thread, tenant=tenant, platform="gateway"),
        None,
        [said],
    )


def compaction(
    rewrite: Rewrite,
    record: NewCompaction,
    *,
    given: int,
    covered: int,
    digest: str,
    scope: str = "",
) -> NewRewrite:
    """Return a first compaction of `given` messages whose summary covers the first `covered`."""
    summary = ContextEntry(
        None, {"role": "user", "content": record.summary or "A summary."}
    )
    kept = [ContextEntry(position) for position in range(covered, given)]
    context = ProxiedContext(
        [summary, *kept], range(covered), compacted_count=given, inherited_count=0
    )
    return NewRewrite(
        rewrite, record, context, scope=scope, digest=digest, digests=[rewrite.digest]
    )


async def extend(store: Store, new: NewThreadLink) -> ThreadLink | None:
    """Store one point; return the stored one, or None if its step is taken."""
    [link] = await store.extend_thread(new.link.thread, [new])
    return link


async def test_a_request_is_stored_with_its_answer_usage_and_state(
    store: Store,
) -> None:
    await extend(store, point("d1"))
    points = [point("d2", "d1", length=2), point("d3", "d2", length=3)]
    usage = NewUsage("A", "m", CanonicalUsage(input_tokens=5))
    second, third = await store.extend_thread("A", points, [usage], ("key", {"a": 1}))
    assert second is not None
    assert third is not None
    assert [message.id for message in await store.messages("A")][1:] == [
        second.message,
        third.message,
    ]
    assert [(one.thread, one.usage.input_tokens) for one in await store.usage("A")] == [
        ("A", 5)
    ]
    assert await store.get_state("A", "key") == {"a": 1}


async def test_nothing_is_stored_if_the_step_of_a_request_is_taken(
    store: Store,
) -> None:
    await extend(store, point("d1"))
    await extend(store, point("d2", "d1", length=2))
    points = [point("other", "d1", length=2), point("answer", "other", length=3)]
    usage = NewUsage("A", "m", CanonicalUsage(input_tokens=5))
    assert await store.extend_thread("A", points, [usage], ("key", 1)) == [None]
    assert (
        len(await store.messages("A")),
        await store.usage("A"),
        await store.get_state("A", "key"),
    ) == (2, [], None)


async def test_usage_goes_to_the_thread_that_has_the_point_already(
    store: Store,
) -> None:
    await extend(store, point("d1"))
    usage = NewUsage("B", "m", CanonicalUsage(input_tokens=5))
    [link] = await store.extend_thread(
        "B", [point("d1", thread="B"), point("d2", "d1", thread="B")], [usage]
    )
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
    assert await extend(store, point("d2", "d1", length=2)) == second, (
        "again it is the same"
    )
    assert len(await store.messages("A")) == 2


async def test_a_step_is_taken_once(store: Store) -> None:
    first = await extend(store, point("d1"))
    await extend(store, point("d2", "d1", length=2))
    assert await extend(store, point("other", "d1", length=2)) is None
    assert len(await store.messages("A")) == 2, "who lost stored nothing"
    assert first is not None
    assert first.message is not None
    branch = replace(
        point("other", "d1", thread="B", length=2),
        follows="",
        branch_of=("A", first.message),
    )
    assert await extend(store, branch) is not None
    assert [message.body["content"] for message in await store.messages("B")] == [
        "said d1",
        "said other",
    ]
    assert (await store.session("B")).kind == "branch"


async def test_a_point_follows_only_the_stored_end_of_its_thread(store: Store) -> None:
    await extend(store, point("d1"))
    assert await extend(store, point("d3", "d2", length=3)) is None, (
        "what it follows is not stored"
    )
    await extend(store, point("x1", thread="B"))
    assert await extend(store, point("d2", "x1", length=2)) is None, (
        "what it follows is in another thread"
    )
    assert [message.body["content"] for message in await store.messages("A")] == [
        "said d1"
    ]
    await extend(store, point("d2", "d1", length=2))
    last = await store.last_link("A")
    assert last is not None
    assert last.digest == "d2"
    assert await store.last_link("nobody") is None
    elsewhere = replace(point("n1", length=1), follows="d2")
    assert await extend(store, elsewhere) is not None, (
        "another history of a thread that is named is appended"
    )
    assert await extend(store, replace(point("n2", length=1), follows="d2")) is None
    assert [message.body["content"] for message in await store.messages("A")] == [
        "said d1",
        "said d2",
        "said n1",
    ]


async def test_a_check_finds_points_that_follow_nothing(url: str, clock: Clock) -> None:
    store = open_at(url, clock)
    await extend(store, point("d1"))
    await extend(store, point("d2", "d1", length=2))
    with transaction(store) as tx:
        tx.run("UPDATE links SET follows = 'gone' WHERE digest = 'd2'")
    assert (await store.check()).problems == (
        "1 link(s) follow a link that is not in their thread",
    )
    with transaction(store) as tx:
        tx.run("UPDATE links SET follows = 'd1', message_id = 0 WHERE digest = 'd2'")
    expected = "1 link(s) have older messages than the link they follow"
    assert (await store.check()).problems == (expected,)
    await store.close()


async def test_the_longest_known_beginning_is_found(store: Store) -> None:
    for length in range(1, 4):
        await extend(
            store,
            point(f"d{length}", f"d{length - 1}" if length > 1 else "", length=length),
        )
    digests = [f"d{length}" for length in range(1, 900)]
    found = await store.find_link("t", "", digests)
    assert found is not None
    assert (found.link.digest, found.next_digest, found.results) == (
        "d3",
        None,
        "rd1 rd2 rd3",
    )
    found = await store.find_link("t", "", digests[:2])
    assert found is not None
    assert (found.link.digest, found.next_digest) == ("d2", "d3")
    assert [
        entry.link.digest
        for entry in await store.find_links_by_skeleton("t", "", ["sd1", "sd2"])
    ] == ["d2", "d1"]
    for elsewhere in (("other", ""), ("t", "scope")):
        assert await store.find_link(*elsewhere, digests) is None
        assert await store.find_links_by_skeleton(*elsewhere, ["sd1"]) == []


async def test_the_first_rewrite_of_a_beginning_stays(store: Store) -> None:
    assert await store.put_rewrite(REWRITE) == REWRITE
    assert (
        await store.put_rewrite(replace(REWRITE, replacement=b"late", depth=9))
        == REWRITE
    )
    stronger = replace(REWRITE, strength=1, replacement=b"stronger")
    longer = replace(REWRITE, digest="d5", skeleton="s5", length=5)
    for new in (stronger, longer):
        assert await store.put_rewrite(new) == new
    digests = [f"d{length}" for length in range(1, 900)]
    assert await store.find_rewrites("t", "e", digests) == [longer, stronger, REWRITE]
    assert await store.find_rewrites("t", "e", digests[:4]) == [stronger, REWRITE]
    assert await store.find_similar_rewrites("t", "e", ["s1", "s3"]) == [
        stronger,
        REWRITE,
    ]
    for elsewhere in (("other", "e"), ("t", "other")):
        assert await store.find_rewrites(*elsewhere, digests) == []
        assert await store.find_similar_rewrites(*elsewhere, ["s3"]) == []


async def test_the_engines_of_a_thread_s_rewrites(store: Store) -> None:
    for engine in ("e with recall", "e"):
        await store.put_rewrite(replace(REWRITE, engine=engine))
        await store.put_rewrite(replace(REWRITE, engine=engine, strength=1))
    engines = await store.list_rewrite_engines(REWRITE.thread)
    assert engines == ["e", "e with recall"]
    assert await store.list_rewrite_engines("another") == []


async def test_a_resumed_search_finds_the_same_as_a_full_one(store: Store) -> None:
    """Also if points were stored, undone or deleted between the two, by this process or another."""
    await extend(store, point("d1"))
    chance = random.Random(7)  # noqa: S311 - what happens, the same each time
    engines = ["e", "f"]
    before = None
    made: list[Rewrite] = []
    for length in range(1, 120):
        digests, skeletons = (
            [f"{kind}{place}" for place in range(1, length + 1)] for kind in "ds"
        )
        step = chance.random()
        if step < 0.2:
            place = chance.randint(1, length)
            new = replace(
                REWRITE,
                engine=chance.choice(engines),
                digest=chance.choice([f"d{place}", "x"]),
                thread="A",
                skeleton=chance.choice([f"s{place}", ""]),
                length=place,
                strength=len(made),
            )
            made.append(await store.put_rewrite(new))
        elif step < 0.3 and made:
            gone = made.pop(chance.randrange(len(made)))
            sql = chance.choice(
                [
                    "DELETE FROM rewrites",
                    "UPDATE rewrites SET chain = 'undone:' || chain, skeleton = ''",
                ]
            )
            with transaction(store) as tx:
                tx.run(f"{sql} WHERE strength = ?", (gone.strength,))
        whole, *_ = await store.match_rewrites("t", engines, digests, skeletons)
        found, before, _ = await store.match_rewrites(
            "t", engines, digests, skeletons, before
        )
        longest = [(exact[:1], similar) for exact, similar in whole]
        assert [(exact[:1], similar) for exact, similar in found] == longest
        if chance.random() < 0.1:  # the client continued from an earlier message
            other = [*digests[:-1], "other"]
            assert (await store.match_rewrites("t", engines, other, skeletons, before))[
                0
            ] == (await store.match_rewrites("t", engines, other, skeletons))[0]


async def test_a_compaction_continues_its_thread_once(store: Store) -> None:
    for number in range(1, 5):
        await extend(
            store,
            point(f"d{number}", f"d{number - 1}" if number > 1 else "", length=number),
        )
    said = await store.history("A")
    made = NewCompaction(
        [],
        900,
        300,
        summary="They said things.",
        author="journal",
        warnings=[],
        cost=Decimal("0.25"),
    )
    new = compaction(
        replace(REWRITE, thread="A"), made, given=4, covered=3, digest="d4"
    )
    first = await store.commit_rewrite(new)
    assert await store.commit_rewrite(new) == first, "another process made the same"
    [record] = await store.compactions("A")
    assert record.record == replace(made, covered=[message.id for message in said[:3]])
    assert (record.parent, record.session) == ("A", first.session)
    assert await store.get_compression_tip("A") == first.session
    shown = await store.messages(first.session)
    assert [message.kind for message in shown] == ["summary", "message"]
    assert shown[1].id == said[3].id, "each message is stored once"
    await extend(store, point("d5", "d4", length=5))
    assert len(await store.messages(first.session)) == 3, (
        "the thread continues in the new session"
    )
    assert [message.id for message in (await store.history("A"))[:4]] == [
        message.id for message in said
    ]
    told = await store.insights(since=0, until=1e12, platform="gateway")
    assert (told.compactions, told.tokens_saved) == (1, 600)
    (thread,) = await store.list_threads()
    assert thread.compactions == 1


async def test_a_second_compaction_keeps_the_result_of_the_first(store: Store) -> None:
    for number in range(1, 7):
        await extend(
            store,
            point(f"d{number}", f"d{number - 1}" if number > 1 else "", length=number),
        )
    said = await store.history("A")
    made = NewCompaction([], 900, 300, summary="One.")
    first = await store.commit_rewrite(
        compaction(replace(REWRITE, thread="A"), made, given=4, covered=3, digest="d4")
    )
    shorter = ContextEntry(1, {"role": "user", "content": "cut"}, is_changed=True)
    context = ProxiedContext(
        [
            ContextEntry(None, {"role": "user", "content": "Two."}),
            shorter,
            ContextEntry(3),
        ],
        [2],
        compacted_count=4,
        inherited_count=1,
    )
    longer = replace(REWRITE, thread="A", digest="d5", length=5)
    second = await store.commit_rewrite(
        NewRewrite(
            longer,
            made,
            context,
            scope="",
            digest="d6",
            base_session=first.session,
            digests=["d3", "d5"],
        )
    )
    shown = await store.messages(second.session)
    assert [(message.kind, message.origin) for message in shown] == [
        ("summary", None),
        ("derived", said[3].id),
        ("message", None),
    ]
    assert shown[2].id == said[5].id
    late = NewRewrite(
        longer,
        made,
        context,
        scope="",
        digest="d6",
        base_session=first.session,
        digests=["d3", "d5"],
    )
    assert await store.commit_rewrite(late) == second
    assert len(await store.compactions("A")) == 2


async def test_an_undone_compaction_is_not_used_again(store: Store) -> None:
    for number in range(1, 5):
        await extend(
            store,
            point(f"d{number}", f"d{number - 1}" if number > 1 else "", length=number),
        )
    made = NewCompaction([], 900, 300, summary="One.")
    await store.commit_rewrite(
        compaction(replace(REWRITE, thread="A"), made, given=4, covered=3, digest="d4")
    )
    await extend(store, point("d5", "d4", length=5))
    session = await store.undo("A")
    assert session.id == "A"
    assert len(await store.messages("A")) == 5, "what was said since stays"
    assert await store.find_rewrites("t", "e", ["d3"]) == []
    assert await store.find_similar_rewrites("t", "e", ["s3"]) == []
    undone = await store.get_state("A", UNDONE_STATE_KEY)
    assert undone is not None
    assert undone["until"] > 0


async def test_points_and_compactions_are_deleted_with_their_thread(
    store: Store,
) -> None:
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
        made = await asyncio.gather(
            *(extend(store, each) for store, each in zip(stores, new, strict=True))
        )
        assert sum(link is not None for link in made) == 1
        winner = next(link for link in made if link is not None)
        await extend(stores[0], point(f"w{turn}", winner.digest, length=turn + 2))
        rows = [
            replace(REWRITE, digest=f"c{turn}", replacement=name.encode())
            for name in "ab"
        ]
        kept = await asyncio.gather(
            *(store.put_rewrite(row) for store, row in zip(stores, rows, strict=True))
        )
        assert kept[0] == kept[1]
    for opened in stores:
        await close_sound(opened)


async def test_a_long_history_keeps_no_other_write_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()
    may_end = threading.Event()
    prepare = AppendRequest.prepare

    def wait(request: AppendRequest) -> None:
        if len(request.new) > MAX_PREPARED_BY_WRITER:
            begun.set()
            may_end.wait(60)
        prepare(request)

    monkeypatch.setattr(AppendRequest, "prepare", wait)
    messages = [
        NewMessage({"role": "user", "content": f"said {number}"}, event=f"d{number}")
        for number in range(100)
    ]
    long = asyncio.create_task(
        extend(store, replace(point("d1", length=100), messages=messages))
    )
    await asyncio.to_thread(begun.wait, 60)
    other = await extend(store, point("e1", thread="B"))
    assert other is not None
    assert not long.done()
    may_end.set()
    assert await long is not None
    assert len(await store.history("A")) == 100


async def test_one_session_name_on_two_platforms_is_two_families(store: Store) -> None:
    for thread, platform in (
        ("first", "langchain"),
        ("second", "langchain"),
        ("other", "google-adk"),
    ):
        await store.create_session(
            NewSession(id=thread, platform=platform, client_session="support")
        )
    assert set(await store.family("first")) == {"first", "second"}
    assert await store.family("other") == ["other"]
    conversation = store.find_conversation
    assert await conversation("default", "support", "google-adk") == "other"
    assert await conversation("default", "support", "gateway") is None
    end = await store.conversation_end("default", "support", "gateway", 4)
    assert end is None, "a client of the gateway continues no framework's conversation"
