"""Searches within a tenant, a thread, a session, a role, a tool or a period."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.errors import UnknownIdError
from everthread.store.records import NewMessage
from everthread.store.store import Store
from everthread.testing import SteppedClock
from tests.chat_messages import calls_message, function_call
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_texts,
    tool_result,
)
from tests.store.searching import assert_bounds_find, assert_finds, search, search_texts
from tests.store.tables import transaction


async def test_searches_the_messages_of_a_role_or_a_tool(store: Store) -> None:
    await new_thread(
        store,
        new_user_message("needle"),
        tool_result("terminal", "needle t"),
        tool_result("Web-Search 2", "needle w"),
    )
    await assert_bounds_find(
        store,
        "needle",
        ({"role": "user"}, {"needle"}),
        ({"role": "tool"}, {"needle t", "needle w"}),
        ({"tool": "terminal"}, {"needle t"}),
        ({"tool": "Web-Search 2"}, {"needle w"}),
        ({"tool": "web-search 2"}, set()),
        ({"role": "tool_terminal"}, set()),
    )


async def test_names_may_have_any_length(store: Store) -> None:
    tool = "t" * 5_000
    role = "数" * 3_000
    tenant = "X" * 4_000
    of_role: Any = {"role": role, "content": "needle of a role"}
    of_tool = tool_result(tool, "needle of a tool")
    await new_thread(store, of_tool, NewMessage(of_role), tenant=tenant)
    await assert_bounds_find(
        store,
        "needle",
        ({"tool": tool, "tenant": tenant}, {"needle of a tool"}),
        ({"role": role, "tenant": tenant}, {"needle of a role"}),
    )


async def test_message_is_found_by_each_of_its_tools(store: Store) -> None:
    calls = [function_call(name, name) for name in ("read_file", "grep")]
    await new_thread(store, NewMessage(calls_message(*calls, text="needle")))
    await assert_bounds_find(
        store,
        "needle",
        ({"tool": "read_file"}, {"needle"}),
        ({"tool": "grep"}, {"needle"}),
        ({"tool": "read"}, set()),
    )


@pytest.mark.parametrize(
    "other", ["beta", "ALPHA", "alpha2", "ａｌｐｈａ", "al_pha", "ſalpha", "'alpha'"]
)
async def test_tenants_do_not_see_each_other(store: Store, other: str) -> None:
    thread = await new_thread(store, "needle of alpha", tenant="alpha")
    await new_thread(store, "needle of the other", tenant=other)
    await assert_bounds_find(
        store,
        "needle",
        ({"tenant": "alpha"}, {"needle of alpha"}),
        ({"tenant": other}, {"needle of the other"}),
        ({"tenant": None}, {"needle of alpha", "needle of the other"}),
        ({"tenant": None, "thread": thread}, {"needle of alpha"}),
        ({}, set()),
    )
    for bound in ("thread", "session"):
        with pytest.raises(UnknownIdError):
            await search_texts(
                store,
                "needle",
                tenant=other,
                **{bound: thread},
            )


async def test_searches_a_period(store: Store, thread: str) -> None:
    messages = [new_user_message(f"needle {day}", created=float(day)) for day in range(10)]
    await store.append(thread, messages)
    await assert_bounds_find(
        store,
        "needle",
        ({"since": 7}, {"needle 7", "needle 8", "needle 9"}),
        ({"until": 2}, {"needle 0", "needle 1"}),
        ({"since": 4, "until": 6}, {"needle 4", "needle 5"}),
        ({"since": 100}, set()),
    )


async def test_searches_a_thread_by_any_of_its_ids(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(1, 6, "needle "))
    await new_thread(store, "needle elsewhere")
    tip = await compact_session(store, thread)
    texts = set(numbered_texts(1, 6, "needle "))
    await assert_bounds_find(store, "needle", ({"thread": thread}, texts), ({"thread": tip}, texts))
    with pytest.raises(UnknownIdError):
        await search_texts(store, "needle", thread="unknown")


async def test_searches_the_messages_and_outputs_of_a_session(
    store: Store, clock: SteppedClock
) -> None:
    thread = await new_thread(store, *numbered_messages(1, 6, "needle "))
    await store.outputs.put_output(thread, "needle output", tool="terminal")
    clock.now += 10
    tip = await compact_session(store, thread, head=1, tail=2)
    await append_texts(store, thread, "needle 7")
    of_tip = {"needle 1", "needle 5", "needle 6", "needle 7"}
    await assert_bounds_find(
        store,
        "needle",
        ({"session": thread}, set(numbered_texts(1, 6, "needle "))),
        ({"session": tip}, of_tip),
    )
    hits = await search(store, "needle", session=tip)
    assert {hit.session for hit in hits} == {tip}
    stored_hits = await search(store, "output", session=thread)
    assert len(stored_hits) == 1
    assert await search(store, "output", session=tip) == []


async def test_searches_the_messages_that_a_branch_shares(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(1, 3, "needle "))
    stored = await store.outputs.put_output(thread, "needle haystack", tool="terminal")
    citation = f"needle cites {stored.id}"
    [cited] = await store.append(thread, [tool_result("terminal", citation)])
    branch = await store.branch(thread, cited.id)
    late_output = "needle haystack after the branch"
    await store.outputs.put_output(thread, late_output, tool="terminal")
    await append_texts(store, thread, "needle of the trunk")
    await append_texts(store, branch.id, "needle of the branch")
    twig = await store.branch(branch.id, (await store.list_messages(branch.id))[1].id)
    shared = {*numbered_texts(1, 3, "needle "), citation}

    async def assert_branches() -> None:
        await assert_bounds_find(
            store,
            "needle",
            ({"thread": branch.id}, {*shared, "needle of the branch"}),
            ({"thread": twig.id}, {"needle 1", "needle 2"}),
        )
        [hit] = await search(store, "haystack", thread=branch.id)
        assert hit.output == stored.id

    of_trunk = {*shared, "needle of the trunk"}
    await assert_finds(store, {"needle": of_trunk}, thread=thread)
    await assert_branches()
    texts = await search_texts(store, "needle")
    assert len(texts) == 6
    await store.delete_thread(thread)
    await assert_branches()
    hits = await search(store, "needle")
    assert {hit.thread for hit in hits} <= {branch.id, twig.id}


async def test_hits_after_an_undo_name_the_reopened_session(store: Store) -> None:
    thread = await new_thread(store, *numbered_messages(1, 5, "needle "))
    await compact_session(store, thread)
    await append_texts(store, thread, "needle 6")
    await store.undo(thread)
    stored_hits = await search(store, "needle", session=thread)
    assert len(stored_hits) == 6
    hits = await search(store, "needle")
    assert {hit.session for hit in hits} == {thread}


async def test_finds_everything_in_an_index_with_many_chunks(
    store: Store, thread: str, kind: str
) -> None:
    """As if millions of chunks were between the stored ones."""
    skip_ids = {
        "sqlite": "UPDATE sqlite_sequence SET seq = ? WHERE name = 'chunks'",
        "postgresql": "SELECT setval(pg_get_serial_sequence('chunks', 'id'), ?)",
    }
    ids = (
        1,
        500,
        1_500,
        9_000,
        20_000,
        70_000,
        200_000,
        1_500_000,
        4_000_000,
        900_000_000,
    )
    texts = numbered_texts(0, 9, "needle ")
    for number, chunk_id in enumerate(ids):
        message = new_user_message(texts[number], created=float(number))
        await store.append(thread, [message])
        await search_texts(store, "needle")
        with transaction(store) as tx:
            tx.run(skip_ids[kind], (chunk_id,))
    texts.reverse()
    assert await search_texts(store, "needle") == texts
    assert await search_texts(store, "need*", offset=8) == texts[8:]
    assert await search_texts(store, "needle", since=2, until=4) == texts[6:8]
    assert await search_texts(store, "needle", until=1) == texts[9:]
