"""Lone surrogates and NUL in texts: stored unchanged, found on both databases, never an error."""

from __future__ import annotations

import pytest

from everthread.store.records import NewMessage
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from tests.chat_messages import calls_message, function_call
from tests.store.messages import new_thread, new_user_message, texts_of, tool_result
from tests.store.searching import search

SECRET = "ghp_" + "a1B2c3D4e5F6" * 3
ODD = ("\ud800", "\udfff", "\0", "a\ud83d", "\udc00b", "你\ud800好", "\ud83d \ude00")


@pytest.mark.parametrize("odd", ODD, ids=ascii)
async def test_message_with_unusual_text_is_stored_and_found(
    store: Store, other_store: Store, odd: str
) -> None:
    texts = [
        f"walnut {odd} tree",
        f"walnut {odd} token {SECRET} {odd} end",
        f"{odd} walnut {odd}",
    ]
    messages = [
        *(new_user_message(text, event=f"e{number}") for number, text in enumerate(texts)),
        NewMessage(
            calls_message(function_call(odd, f"t{odd}", f'{{"walnut": "{odd}"}}')),
            event="call",
        ),
        NewMessage(
            {
                "role": "tool",
                "content": f"walnut {odd}",
                "tool_call_id": odd,
            },
            event="result",
        ),
        NewMessage(
            {
                "role": f"r{odd}",
                "content": f"walnut {odd}",
                "name": odd,
            },
            event="role",
        ),
    ]
    snippets = []
    for each in (store, other_store):
        thread = await new_thread(each, *messages, id="s")
        history = await each.load_history(thread)
        assert texts_of(history)[:3] == texts
        await each.outputs.put_output(
            thread,
            f"walnut {odd} {SECRET}",
            call_id=odd,
            tool=f"t{odd}",
        )
        hits = await search(each, "walnut")
        assert SECRET not in "".join(hit.snippet for hit in hits)
        snippets.append(
            [(hit.message, hit.output, hit.role, hit.tool, hit.snippet) for hit in hits]
        )
    assert snippets[0] == snippets[1]
    assert len(snippets[0]) == 7


@pytest.mark.parametrize("odd", ODD, ids=ascii)
async def test_both_databases_find_unusual_text_alike(
    store: Store, other_store: Store, odd: str
) -> None:
    found = []
    for each in (store, other_store):
        await new_thread(
            each,
            new_user_message(f"walnut {odd} tree", event="a"),
            new_user_message("walnut tree", event="b"),
            id="s",
        )
        queries = [
            odd,
            f"walnut{odd}",
            f'"walnut {odd} tree"',
            f"wal{odd}*",
            f"walnut {odd}",
            f"{odd}*",
        ]
        asked = [SearchQuery(text) for text in queries]
        asked += [
            SearchQuery("walnut", role=odd),
            SearchQuery("walnut", tool=odd),
            SearchQuery("walnut", tenant=odd),
        ]
        found.append(
            [[(hit.message, hit.snippet) for hit in await each.search(query)] for query in asked]
        )
    assert found[0] == found[1]


async def test_unusual_tool_and_role_names_are_found(
    store: Store,
) -> None:
    await new_thread(
        store,
        NewMessage({"role": "r\ud800", "content": "walnut"}),
        tool_result("t\0", "walnut"),
    )
    hits = await search(store, "walnut", tool="t\0")
    assert [hit.tool for hit in hits] == ["t?"]
    hits = await search(store, "walnut", role="r\ud800")
    assert [hit.role for hit in hits] == ["r?"]
