"""The messages before and after a search hit."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from everthread import open_store
from everthread.store.records import NewMessage
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from tests.store.messages import (
    append_texts,
    compact_session,
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_thread,
    summary_message,
    tool_result,
)
from tests.store.searching import FILLER


async def find_neighbours(store: Store, query: str) -> list[tuple[str, str]]:
    """Return the texts before and after each hit."""
    hits = (await store.find(SearchQuery(query))).hits
    return [(str(hit.before or ""), str(hit.after or "")) for hit in hits]


async def assert_neighbours(store: Store, expected: Mapping[str, tuple[str, str]]) -> None:
    """Check the texts before and after the only hit of each query."""
    neighbours = {query: await find_neighbours(store, query) for query in expected}
    assert neighbours == {query: [texts] for query, texts in expected.items()}


async def test_hit_comes_with_its_neighbours(store: Store) -> None:
    await new_thread(store, "alpha", "bravo", "charlie")
    await new_thread(store, "other")
    expected = {
        "alpha": ("", "user: bravo"),
        "bravo": ("user: alpha", "user: charlie"),
        "charlie": ("user: bravo", ""),
        "other": ("", ""),
    }
    await assert_neighbours(store, expected)
    assert await find_neighbours(store, "nothing") == []


async def test_damaged_neighbour_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = open_store(path)
    await new_thread(store, "alpha", "bravo", "charlie")
    await assert_neighbours(store, {"bravo": ("user: alpha", "user: charlie")})
    await store.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE messages SET body = CAST(replace(body, 'alpha\"}', 'alph') AS BLOB)"
        )
    store = open_store(path)
    await assert_neighbours(store, {"bravo": ("", "user: charlie")})
    await store.close()


async def test_tool_result_in_a_user_message_is_shown_with_its_tool(
    store: Store,
) -> None:
    call = {
        "type": "tool_use",
        "id": "c",
        "name": "terminal",
        "input": {"a": "pytest"},
    }
    result = {
        "type": "tool_result",
        "tool_use_id": "c",
        "content": "12 passed",
    }
    call_body: Any = {"role": "assistant", "content": [call]}
    result_body: Any = {"role": "user", "content": [result]}
    await new_thread(
        store,
        "run them",
        NewMessage(call_body),
        NewMessage(result_body),
        "thanks",
        tool_result("grep", "3 matches"),
        "bye",
    )
    [(before, after)] = await find_neighbours(store, "passed")
    assert before.startswith("assistant: terminal")
    assert after == "user: thanks"
    expected = {
        "thanks": ("user (terminal): 12 passed", "tool (grep): 3 matches"),
        "bye": ("tool (grep): 3 matches", ""),
    }
    await assert_neighbours(store, expected)


async def test_neighbour_is_short_and_holds_no_secret(store: Store) -> None:
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    await new_thread(store, f"the key is {token}", "needle", f"first\n\nline {FILLER * 9}")
    [(before, after)] = await find_neighbours(store, "needle")
    assert before.startswith("user: the key is ")
    assert token[:12] not in before
    assert after.startswith("user: first line lorem")
    assert after.endswith("…")
    assert len(after) < 110


async def test_lookups_and_empty_messages_are_not_neighbours(store: Store) -> None:
    await new_thread(
        store,
        tool_result("recall", "the old needle"),
        "spoon",
        NewMessage({"role": "assistant"}),
    )
    await assert_neighbours(store, {"spoon": ("", "")})


async def test_neighbour_that_the_passage_includes_is_left_out(store: Store) -> None:
    shown = "look at the ok button"
    thread = await new_thread(store, "ok", shown, "fine")
    message = (await store.list_messages(thread))[1].id
    [(before, after)] = await store.find_neighbours([(message, shown)])
    assert str(before) == "user: ok", "words of the message itself are not neighbours"
    assert str(after) == "user: fine"
    [(_, after)] = await store.find_neighbours([(message, f"{shown}\n→ fine")])
    assert after is None
    assert await store.find_neighbours([(None, "an output")]) == [(None, None)]


async def test_finds_neighbours_across_a_compaction(store: Store) -> None:
    thread = await numbered_thread(store, 4)
    ids = [message.id for message in await store.list_messages(thread)]
    shorter = new_user_message("short", kind="derived", origin=ids[3])
    await store.continue_session(thread, [ids[0], summary_message(), shorter], seen_count=4)
    await store.append(thread, numbered_messages(5, 6))
    expected = {
        "m4": ("user: m3", "user: m5"),
        "m5": ("user: m4", "user: m6"),
        "m1": ("", "user: m2"),
    }
    await assert_neighbours(store, expected)
    await store.undo(thread)
    await assert_neighbours(store, {"m5": ("user: m4", "user: m6")})


async def test_branch_keeps_the_neighbours_that_it_shares(store: Store) -> None:
    thread = await numbered_thread(store, 4)
    await compact_session(store, thread, tail=1)
    await store.append(thread, numbered_messages(5, 6))
    history = await store.load_history(thread)
    branch = await store.branch(thread, history[4].id)
    await append_texts(store, branch.id, "twig")
    expected = {"twig": ("user: m5", ""), "m5": ("user: m4", "user: m6")}
    await assert_neighbours(store, expected)
    await store.delete_thread(thread)
    expected = {"m5": ("user: m4", "user: twig"), "m2": ("user: m1", "user: m3")}
    await assert_neighbours(store, expected)
