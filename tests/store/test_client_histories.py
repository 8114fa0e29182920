"""Histories of clients that send them whole: links of one chain, and the rewrites of its beginning."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message
from everthread.store.records import NewCompaction, NewMessage, NewSession, SessionKind
from everthread.store.rewrite_records import (
    CLIENT_NOTES_ROLE,
    UNDONE_STATE_KEY,
    ContextEntry,
    NewRewrite,
    NewThreadLink,
    ProxiedContext,
    Rewrite,
    RewriteState,
    ThreadLink,
)
from everthread.store.sql.stored_messages import AppendRequest
from everthread.store.store import Store
from everthread.store.topics.client_history_store import MAX_PREPARED_BY_WRITER
from everthread.store.usage_records import NewUsage
from everthread.testing import SteppedClock
from tests.chat_messages import calls_message, function_call, result_message
from tests.store.conftest import open_at
from tests.store.links import extend, new_chain, new_link
from tests.store.messages import new_user_message, read_context, texts_of
from tests.store.tables import transaction

REWRITE = Rewrite(
    tenant="t",
    engine="e",
    digest="d3",
    strength=0,
    replaced_count=3,
    loose_digest="s3",
    results="r1 r2",
    thread="A",
    replacement=b'{"role":"user"},\x00\xff',
    depth=2,
    state=RewriteState({"seen": 3}),
)
RECORD = NewCompaction(
    [],
    900,
    300,
    summary="They said things.",
    warnings=[],
)


def new_rewrite(rewrite: Rewrite = REWRITE) -> NewRewrite:
    """Return a first compaction of four messages whose summary covers the first three."""
    summary = ContextEntry(None, {"role": "user", "content": RECORD.summary})
    context = ProxiedContext(
        [summary, ContextEntry(3)],
        range(3),
        inherited_count=0,
        own_roles=["user"] * 4,
    )
    return NewRewrite(
        rewrite,
        RECORD,
        context,
        scope="",
        digest="d4",
        digests=[rewrite.digest],
    )


async def store_link(store: Store, new: NewThreadLink) -> ThreadLink:
    link = await extend(store, new)
    assert link is not None
    return link


async def match_rewrites(
    store: Store,
    digests: Sequence[str],
    loose_digests: Sequence[str],
    *,
    tenant: str = "t",
    engine: str = "e",
) -> tuple[list[Rewrite], list[Rewrite]]:
    """Return the rewrites of an exact beginning, and those of a beginning with the same loose digest."""
    [matches], *_ = await store.client_histories.match_rewrites(
        tenant, [engine], digests, loose_digests
    )
    return matches


async def test_stores_links_with_their_messages_usage_and_state(store: Store) -> None:
    first, *new_links = new_chain(3)
    await extend(store, first)
    usage = NewUsage("A", "m", CanonicalUsage(input_tokens=5))
    links = await store.client_histories.extend_thread("A", new_links, [usage], ("key", {"a": 1}))
    stored_ids = [message.id for message in await store.list_messages("A")]
    assert [link and link.last_message_id for link in links] == stored_ids[1:]
    [record] = await store.usage.list_usage("A")
    assert record.thread == "A"
    assert record.usage.input_tokens == 5
    assert await store.state.get_state("A", "key") == {"a": 1}


async def test_stores_nothing_if_another_link_follows_already(store: Store) -> None:
    await store.client_histories.extend_thread("A", new_chain(2))
    late_links = [
        new_link("other", "d1", length=2),
        new_link("answer", "other", length=3),
    ]
    usage = NewUsage("A", "m", CanonicalUsage(input_tokens=5))
    links = await store.client_histories.extend_thread("A", late_links, [usage], ("key", 1))
    assert links == [None]
    messages = await store.list_messages("A")
    assert len(messages) == 2
    assert await store.usage.list_usage("A") == []
    assert await store.state.get_state("A", "key") is None


async def test_usage_goes_to_the_thread_that_has_the_link_already(
    store: Store,
) -> None:
    await extend(store, new_link("d1"))
    usage = NewUsage("B", "m", CanonicalUsage(input_tokens=5))
    new_links = [new_link("d1", thread="B"), new_link("d2", "d1", thread="B")]
    [link] = await store.client_histories.extend_thread("B", new_links, [usage])
    assert link is not None
    assert link.thread == "A"
    [record] = await store.usage.list_usage("A")
    assert record.session == "A"


async def test_repeated_link_is_stored_once(store: Store) -> None:
    links = await store.client_histories.extend_thread("A", new_chain(2))
    link = await extend(store, new_chain(2)[-1])
    assert link == links[-1]
    messages = await store.list_messages("A")
    assert len(messages) == 2


async def test_only_one_link_follows_another_in_a_thread(store: Store) -> None:
    first, _ = await store.client_histories.extend_thread("A", new_chain(2))
    assert await extend(store, new_link("other", "d1", length=2)) is None
    messages = await store.list_messages("A")
    assert len(messages) == 2
    assert first is not None
    assert first.last_message_id is not None
    branch = replace(
        new_link("other", "d1", thread="B", length=2),
        follows="",
        branch_of=("A", first.last_message_id),
    )
    await store_link(store, branch)
    assert await read_context(store, "B") == "said d1, said other"
    session = await store.load_session("B")
    assert session.kind == "branch"


async def test_link_follows_only_the_stored_end_of_its_thread(store: Store) -> None:
    await extend(store, new_link("d1"))
    not_stored = new_link("d3", "d2", length=3)
    assert await extend(store, not_stored) is None
    await extend(store, new_link("x1", thread="B"))
    in_other_thread = new_link("d2", "x1", length=2)
    assert await extend(store, in_other_thread) is None
    assert await read_context(store, "A") == "said d1"
    await extend(store, new_link("d2", "d1", length=2))
    last = await store.client_histories.load_last_link("A")
    assert last is not None
    assert last.digest == "d2"
    assert await store.client_histories.load_last_link("unknown") is None
    other_history = replace(new_link("n1"), follows="d2")
    await store_link(store, other_history)
    assert await extend(store, replace(new_link("n2"), follows="d2")) is None
    assert await read_context(store, "A") == "said d1, said d2, said n1"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("follows = 'gone'", "1 link(s) follow a link that is not in their thread"),
        ("last_message_id = 0", "1 link(s) have older messages than the link they follow"),
    ],
)
async def test_check_reports_broken_links(
    url: str, clock: SteppedClock, damage: str, problem: str
) -> None:
    store = open_at(url, clock)
    await store.client_histories.extend_thread("A", new_chain(2))
    with transaction(store) as tx:
        tx.run(f"UPDATE links SET {damage} WHERE digest = 'd2'")  # noqa: S608 - from this test
    health = await store.check()
    assert health.problems == (problem,)
    await store.close()


async def test_finds_the_longest_stored_beginning(store: Store) -> None:
    await store.client_histories.extend_thread("A", new_chain(3))
    digests = [f"d{length}" for length in range(1, 900)]
    match = await store.client_histories.find_link("t", "", digests)
    assert match is not None
    assert match.link.digest == "d3"
    assert match.next_digest is None
    assert match.results == "rd1 rd2 rd3"
    match = await store.client_histories.find_link("t", "", digests[:2])
    assert match is not None
    assert match.link.digest == "d2"
    assert match.next_digest == "d3"
    matches = await store.client_histories.find_links_by_loose_digest("t", "", ["sd1", "sd2"])
    assert [match.link.digest for match in matches] == ["d2", "d1"]
    for tenant, scope in (("other", ""), ("t", "scope")):
        assert await store.client_histories.find_link(tenant, scope, digests) is None
        assert await store.client_histories.find_links_by_loose_digest(tenant, scope, ["sd1"]) == []


async def test_first_rewrite_of_a_beginning_stays(store: Store) -> None:
    assert await store.client_histories.put_rewrite(REWRITE) == REWRITE
    late = replace(REWRITE, replacement=b"late", depth=9)
    assert await store.client_histories.put_rewrite(late) == REWRITE
    stronger = replace(REWRITE, strength=1, replacement=b"stronger")
    longer = replace(
        REWRITE,
        digest="d5",
        loose_digest="s5",
        replaced_count=5,
    )
    for new in (stronger, longer):
        assert await store.client_histories.put_rewrite(new) == new
    digests = [f"d{length}" for length in range(1, 900)]
    unknown = ["x"] * 900
    assert await match_rewrites(store, digests, unknown) == (
        [longer, stronger, REWRITE],
        [],
    )
    assert await match_rewrites(store, digests[:4], unknown) == (
        [stronger, REWRITE],
        [],
    )
    loose_digests = ["s1", "s3"]
    assert await match_rewrites(store, [], loose_digests) == ([], [stronger, REWRITE])
    for other in ({"tenant": "other"}, {"engine": "other"}):
        assert await match_rewrites(store, digests, ["s3"], **other) == ([], [])


async def test_lists_the_engines_of_a_threads_rewrites(store: Store) -> None:
    for engine in ("e with recall", "e"):
        await store.client_histories.put_rewrite(replace(REWRITE, engine=engine))
        await store.client_histories.put_rewrite(replace(REWRITE, engine=engine, strength=1))
    assert await store.client_histories.list_rewrite_engines("A") == ["e", "e with recall"]
    assert await store.client_histories.list_rewrite_engines("another") == []


async def test_resumed_search_finds_the_same_as_a_full_one(store: Store) -> None:
    """Also if rewrites were stored or deleted between the two, by this process or another."""
    await extend(store, new_link("d1"))
    chance = random.Random(7)  # noqa: S311 - the same each time
    engines = ["e", "f"]
    search = None
    rewrites: list[Rewrite] = []
    for length in range(1, 120):
        digests = [f"d{n}" for n in range(1, length + 1)]
        loose_digests = [f"s{n}" for n in range(1, length + 1)]
        step = chance.random()
        if step < 0.2:
            position = chance.randint(1, length)
            new = replace(
                REWRITE,
                engine=chance.choice(engines),
                digest=chance.choice([f"d{position}", "x"]),
                loose_digest=chance.choice([f"s{position}", ""]),
                replaced_count=position,
                strength=len(rewrites),
            )
            rewrites.append(await store.client_histories.put_rewrite(new))
        elif step < 0.3 and rewrites:
            removed = rewrites.pop(chance.randrange(len(rewrites)))
            with transaction(store) as tx:
                tx.run("DELETE FROM rewrites WHERE strength = ?", (removed.strength,))
        full, *_ = await store.client_histories.match_rewrites("t", engines, digests, loose_digests)
        resumed, search, _ = await store.client_histories.match_rewrites(
            "t", engines, digests, loose_digests, search
        )
        assert [(exact[:1], similar) for exact, similar in resumed] == [
            (exact[:1], similar) for exact, similar in full
        ]
        if chance.random() < 0.1:  # the client continued from an earlier message
            digests[-1] = "other"
            full, *_ = await store.client_histories.match_rewrites(
                "t", engines, digests, loose_digests
            )
            resumed, *_ = await store.client_histories.match_rewrites(
                "t", engines, digests, loose_digests, search
            )
            assert resumed == full


async def test_compaction_continues_its_thread_once(store: Store) -> None:
    await store.client_histories.extend_thread("A", new_chain(4))
    history = await store.load_history("A")
    new = replace(
        new_rewrite(),
        record=replace(RECORD, author="journal", cost=Decimal("0.25")),
    )
    rewrite = await store.client_histories.commit_rewrite(new)
    assert await store.client_histories.commit_rewrite(new) == rewrite, (
        "another process made the same"
    )
    [compaction] = await store.list_compactions("A")
    covered = [message.id for message in history[:3]]
    assert compaction.record == replace(new.record, covered=covered)
    assert compaction.parent == "A"
    assert compaction.session == await store.get_compression_tip("A") == rewrite.session
    summary, kept = await store.list_messages(rewrite.session)
    assert summary.kind == "summary"
    assert kept.id == history[3].id, "each message is stored once"
    await extend(store, new_link("d5", "d4", length=5))
    messages = await store.list_messages(rewrite.session)
    assert len(messages) == 3
    stored_history = await store.load_history("A")
    assert texts_of(stored_history[:4]) == texts_of(history)
    insights = await store.usage.load_insights(since=0, until=1e12, platform="gateway")
    assert insights.compactions == 1
    assert insights.tokens_saved == 600
    [thread] = await store.list_threads()
    assert thread.compaction_count == 1


async def test_second_compaction_keeps_the_result_of_the_first(store: Store) -> None:
    await store.client_histories.extend_thread("A", new_chain(6))
    history = await store.load_history("A")
    first = await store.client_histories.commit_rewrite(new_rewrite())
    entries = [
        ContextEntry(None, {"role": "user", "content": "Two."}),
        ContextEntry(1, {"role": "user", "content": "cut"}, is_changed=True),
        ContextEntry(3),
    ]
    context = ProxiedContext(
        entries,
        [2],
        inherited_count=1,
        own_roles=["user"] * 3,
    )
    new = NewRewrite(
        replace(REWRITE, digest="d5", replaced_count=5),
        RECORD,
        context,
        scope="",
        digest="d6",
        base_session=first.session,
        digests=["d3", "d5"],
    )
    second = await store.client_histories.commit_rewrite(new)
    summary, shortened, kept = await store.list_messages(second.session)
    assert summary.kind == "summary"
    assert shortened.kind == "derived"
    assert shortened.origin == history[3].id
    assert kept.id == history[5].id
    assert await store.client_histories.commit_rewrite(new) == second
    compactions = await store.list_compactions("A")
    assert len(compactions) == 2


async def test_messages_that_are_not_stored_do_not_shift_the_others(store: Store) -> None:
    """A client may split an answer, and put a message with its own notes between: neither part is stored again."""
    bodies: list[Message] = [
        {"role": "user", "content": "Look."},
        calls_message(function_call("c1", "read"), text="I look."),
        result_message("c1", "found"),
    ]
    link = new_link("d1", length=5)
    await store.client_histories.extend_thread(
        "A", [replace(link, messages=[NewMessage(body) for body in bodies])]
    )
    history = await store.load_history("A")
    own_roles = ["user", "assistant", CLIENT_NOTES_ROLE, "assistant", "tool"]
    cut: Message = {"role": "user", "content": "cut"}
    entries = [ContextEntry(position, cut, is_changed=True) for position in range(5)]
    context = ProxiedContext(entries, (), inherited_count=0, own_roles=own_roles)
    new = replace(new_rewrite(), context=context, digest="d1")
    rewrite = await store.client_histories.commit_rewrite(new)
    origins = [message.origin for message in await store.list_messages(rewrite.session)]
    question, answer, result = (message.id for message in history)
    assert origins == [question, None, None, answer, result]


async def test_undone_rewrite_is_not_used_again(store: Store) -> None:
    await store.client_histories.extend_thread("A", new_chain(4))
    await store.client_histories.commit_rewrite(new_rewrite())
    await extend(store, new_link("d5", "d4", length=5))
    reopened = await store.undo("A")
    assert reopened.id == "A"
    messages = await store.list_messages("A")
    assert len(messages) == 5, "later messages stay"
    assert await match_rewrites(store, ["d3"], ["s1", "s2", "s3"]) == ([], [])
    undone = await store.state.get_state("A", UNDONE_STATE_KEY)
    assert undone is not None
    assert undone["until"] > 0
    made_again = replace(REWRITE, replacement=b"{}")
    assert await store.client_histories.put_rewrite(made_again) == made_again
    assert await match_rewrites(store, ["d3"], ["s1", "s2", "s3"]) == ([made_again], [])


async def test_links_and_rewrites_are_deleted_with_their_thread(store: Store) -> None:
    await extend(store, new_link("d1"))
    await extend(store, new_link("d1", thread="B", tenant="u"))
    for tenant, thread in (("t", "A"), ("u", "B")):
        await store.client_histories.put_rewrite(replace(REWRITE, tenant=tenant, thread=thread))
    await store.delete_thread("A")
    loose_digests = ["x"] * 3
    assert await store.client_histories.find_link("t", "", ["d1"]) is None
    assert await match_rewrites(store, ["d3"], loose_digests) == ([], [])
    assert await store.client_histories.find_link("u", "", ["d1"]) is not None
    exact, _ = await match_rewrites(store, ["d3"], loose_digests, tenant="u")
    assert len(exact) == 1


async def test_one_of_two_stores_that_race_wins(stores: list[Store]) -> None:
    await extend(stores[0], new_link("d1"))
    previous = "d1"
    for turn in range(20):
        links = await asyncio.gather(
            *(
                extend(store, new_link(f"{name}{turn}", previous, length=turn + 2))
                for store, name in zip(stores, "wxyz", strict=True)
            )
        )
        [winner] = [link for link in links if link is not None]
        previous = winner.digest
        rewrites = await asyncio.gather(
            *(
                store.client_histories.put_rewrite(
                    replace(REWRITE, digest=f"c{turn}", replacement=name)
                )
                for store, name in zip(stores, (b"a", b"b", b"c", b"d"), strict=True)
            )
        )
        assert all(rewrite == rewrites[0] for rewrite in rewrites)


async def test_long_history_keeps_no_other_write_waiting(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun = threading.Event()
    may_end = threading.Event()
    prepare = AppendRequest.prepare

    def wait(request: AppendRequest) -> None:
        if len(request.new) > MAX_PREPARED_BY_WRITER:
            has_begun.set()
            may_end.wait(60)
        prepare(request)

    monkeypatch.setattr(AppendRequest, "prepare", wait)
    messages = [new_user_message(f"said {number}") for number in range(100)]
    long = replace(new_link("d1", length=100), messages=messages)
    writing = asyncio.create_task(store_link(store, long))
    await asyncio.to_thread(has_begun.wait, 60)
    await store_link(store, new_link("e1", thread="B"))
    assert not writing.done()
    may_end.set()
    await writing
    history = await store.load_history("A")
    assert len(history) == 100


async def test_client_session_is_the_name_of_one_platform(store: Store) -> None:
    platforms = {
        "first": "langchain",
        "second": "langchain",
        "other": "google-adk",
    }
    for thread, platform in platforms.items():
        await store.create_session(
            NewSession(
                id=thread,
                platform=platform,
                client_session="support",
            )
        )
    family = await store.list_family("first")
    assert set(family) == {"first", "second"}
    assert await store.list_family("other") == ["other"]
    find_conversation = store.client_histories.find_conversation
    assert await find_conversation("default", "support", "google-adk") == "other"
    assert await find_conversation("default", "support", "gateway") is None
    end = await store.client_histories.load_conversation_end("default", "support", "gateway", 4)
    assert end is None, "a client of the gateway continues no framework's conversation"


CALL = function_call("c1", "task")


def ask(text: str) -> Message:
    return {"role": "user", "content": text}


def client_link(
    thread: str,
    kind: SessionKind,
    *bodies: Message,
    previous: str = "",
    client_parent: str = "s1",
) -> NewThreadLink:
    """A request of a client's session, as the gateway stores one."""
    digest = f"{thread}-{len(bodies)}-{previous}"
    session = NewSession(
        id=thread,
        kind=kind,
        client="coder",
        client_session="s1",
    )
    link = ThreadLink(
        "default",
        scope="",
        digest=digest,
        previous=previous,
        loose_digest="",
        thread=thread,
        message_count=len(bodies),
        last_message_id=None,
    )
    new = [NewMessage(body, event=f"{digest}:{index}") for index, body in enumerate(bodies)]
    return NewThreadLink(
        link,
        previous,
        session,
        messages=new,
        client_parent=client_parent,
    )


async def test_side_calls_belong_to_the_conversation_of_their_client(
    store: Store,
) -> None:
    await extend(store, client_link("title", "side", ask("Find a title")))
    rows = await store.list_threads()
    assert [row.first.id for row in rows] == ["title"], "no conversation is known yet"
    asked: tuple[Message, Message] = (
        ask("Mend the parser"),
        calls_message(CALL, text=""),
    )
    await extend(store, client_link("talk", "main", *asked))
    await extend(store, client_link("agent", "main", ask("Look for tests")))
    await extend(store, client_link("count", "side", ask("How many?")))
    [row] = await store.list_threads()
    assert row.first.id == "talk"
    assert row.side_call_count == 3
    subagents = await store.list_subagents("talk")
    assert set(subagents) == {"title", "agent", "count"}
    stored_row = await store.overview.load_thread_row("talk")
    assert stored_row.side_call_count == 3
    assert await store.delete_thread("talk") == 4


async def test_a_second_conversation_of_one_client_session_is_separate(
    store: Store,
) -> None:
    """A client may use one name for all requests; another belongs to the first only while that waits for results."""
    answered: tuple[Message, Message] = (
        ask("Mend the parser"),
        {"role": "assistant", "content": "It is mended."},
    )
    await extend(store, client_link("first", "main", *answered))
    await extend(store, client_link("second", "main", ask("Now the printer")))
    await extend(store, client_link("words", "side", ask("Just a word")))
    rows = await store.list_threads()
    assert {row.first.id for row in rows} == {"first", "second"}
    await extend(store, client_link("words", "side", ask("And another"), previous="words-1-"))
    rows = await store.list_threads()
    assert {row.first.id for row in rows} == {
        "first",
        "second",
        "words",
    }, "the thread continues"
    await extend(store, client_link("helper", "subagent", ask("Help")))
    await extend(store, client_link("stray", "subagent", ask("Help"), client_parent="s9"))
    listed = {row.first.id: row.first.shown_kind for row in await store.list_threads()}
    assert listed == {
        "first": "main",
        "second": "main",
        "words": "main",
        "stray": "main",
    }
