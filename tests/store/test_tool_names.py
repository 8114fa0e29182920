"""A result without a tool name belongs to the tool that its call names."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.store.records import NewMessage
from everthread.store.search_records import SearchHit
from everthread.store.store import Store
from tests.chat_messages import calls_message, result_message
from tests.store.messages import compact_session, new_thread, tool_result, user_messages
from tests.store.searching import search


def calling(**tools: str) -> NewMessage:
    """Calls, by their ids."""
    calls = [
        {
            "id": key,
            "type": "function",
            "function": {"name": name},
        }
        for key, name in tools.items()
    ]
    body: Any = calls_message(*calls)
    return NewMessage(body)


def answer(call_id: str, text: str, **more: Any) -> NewMessage:
    body: Any = result_message(call_id, text)
    return NewMessage(body, **more)


def blocks(role: str, *parts: dict[str, Any], **more: Any) -> NewMessage:
    body: Any = {"role": role, "content": list(parts)}
    return NewMessage(body, **more)


async def hits(store: Store, text: str, **more: Any) -> list[SearchHit]:
    return await search(store, text, **more)


async def tools_of(store: Store, text: str) -> list[str]:
    return [hit.tool for hit in await hits(store, text)]


async def accounts(store: Store) -> dict[str, tuple[int, int]]:
    found = await store.usage.load_insights(since=0, until=1e12)
    return {row.tool: (row.results, row.tokens) for row in found.by_tool}


@pytest.mark.parametrize("together", [True, False])
async def test_the_call_names_the_tool(store: Store, together: bool) -> None:
    thread = await new_thread(store, "go")
    messages = [
        calling(c1="terminal", c2="read_file"),
        answer("c2", "walnut", tokens=7),
        answer("c1", "hazel"),
    ]
    for some in [messages] if together else [[message] for message in messages]:
        await store.append(thread, some)
    assert await tools_of(store, "walnut") == ["read_file"]
    assert await tools_of(store, "hazel") == ["terminal"]
    assert len(await hits(store, "walnut", tool="read_file")) == 1
    assert await hits(store, "walnut", tool="terminal") == []
    assert await accounts(store) == {"read_file": (1, 7), "terminal": (1, 0)}


async def test_a_call_far_back_is_found(store: Store) -> None:
    thread = await new_thread(store, calling(early="slow_job"))
    await store.append(thread, [calling(**{f"c{n}": f"tool{n}"}) for n in range(50)])
    await store.append(thread, [answer("early", "walnut")])
    assert await tools_of(store, "walnut") == ["slow_job"]


async def test_of_calls_with_one_id_the_last_before_the_result_counts(
    store: Store,
) -> None:
    thread = await new_thread(store, calling(c="first"), answer("c", "walnut"), calling(c="second"))
    await store.append(thread, [answer("c", "hazel"), calling(c="third"), answer("c", "beech")])
    assert [await tools_of(store, word) for word in ("walnut", "hazel", "beech")] == [
        ["first"],
        ["second"],
        ["third"],
    ]


async def test_finds_the_call_before_a_compaction(store: Store) -> None:
    thread = await new_thread(store, *user_messages("a", "b", "c", "d"), calling(c="terminal"))
    await compact_session(
        store,
        thread,
        tail=1,
        late=[answer("c", "walnut")],
    )
    await store.append(thread, [answer("c", "hazel")])
    assert await tools_of(store, "walnut") == await tools_of(store, "hazel") == ["terminal"]


async def test_tool_name_of_the_result_wins_and_unknown_calls_have_none(
    store: Store,
) -> None:
    thread = await new_thread(store, calling(call="terminal"), tool_result("named", "walnut"))
    await store.append(thread, [answer("nobody", "hazel", tokens=9), answer("", "beech")])
    assert [await tools_of(store, word) for word in ("walnut", "hazel", "beech")] == [
        ["named"],
        [""],
        [""],
    ]
    assert await accounts(store) == {"named": (1, 0)}


async def test_results_in_content_blocks(store: Store) -> None:
    thread = await new_thread(
        store,
        blocks(
            "assistant",
            *(
                {
                    "type": "tool_use",
                    "id": key,
                    "name": f"tool_{key}",
                    "input": {},
                }
                for key in "ab"
            ),
        ),
    )
    parts = [
        {
            "type": "tool_result",
            "tool_use_id": key,
            "content": f"walnut {key}",
        }
        for key in "ab"
    ]
    await store.append(thread, [blocks("user", parts[0], tokens=5), blocks("user", *parts)])
    assert sorted(await tools_of(store, "walnut")) == ["tool_a", "tool_a,tool_b"]
    assert len(await hits(store, "walnut", tool="tool_a")) == 2
    assert len(await hits(store, "walnut", tool="tool_b")) == 1
    assert (await accounts(store))["tool_a"] == (1, 5)


async def test_import_names_the_tools(store: Store, other_store: Store) -> None:
    thread = await new_thread(store, calling(c="terminal"), answer("c", "walnut", tokens=3))
    await other_store.import_lines(await store.export(thread))
    assert await tools_of(other_store, "walnut") == ["terminal"]
    assert await accounts(other_store) == await accounts(store) == {"terminal": (1, 3)}
