"""The engine in a conversation over a real store: restarts, undo, branches, and everything within reach."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from everthread.compaction.lossless import LosslessEngine
from everthread.conversation.conversation import Conversation
from everthread.core.messages import text_of
from everthread.errors import InputError
from everthread.store.records import NewSession
from everthread.testing import ScriptedModel
from everthread.thread.events import CompactionDone
from tests.compaction.lossless.lossless_setup import NODE
from tests.conversation.conversation_setup import (
    Conversations,
    make_text,
    open_conversations,
)

WINDOW = 8_000


def shelf_name(number: int) -> str:
    return f"shelf-{number * 7919:06x}"


async def open_lossless(conversations: Conversations, **how: Any) -> Conversation:
    model = ScriptedModel(lambda _: make_text(120, "answer"), window=WINDOW)
    return await conversations.open(
        model,
        engine=LosslessEngine,
        background=False,
        economics=False,
        protect_last_n=2,
        **how,
    )


async def send_turns(conversation: Conversation, first: int, last: int) -> None:
    for number in range(first, last):
        await conversation.send(
            f"Turn {number}: box_{number:03d} stands on {shelf_name(number)}. {make_text(300, f'topic {number}')}"
        )


def in_view(conversation: Conversation) -> list[str]:
    return NODE.findall("\n".join(text_of(message) for message in conversation.messages))


async def read_whole(conversation: Conversation, wanted: str) -> str:
    text = ""
    offset = 0
    while True:
        answer = await conversation.handle_tool_call("lcm_expand", {"id": wanted, "offset": offset})
        assert len(answer) <= 6_500
        text += answer.partition("\n\n")[2].rpartition("\n\n[")[0]
        onward = re.search(r"go on with offset (\d+)\]$", answer)
        if onward is None:
            return text
        offset = int(onward[1])


async def test_facts_are_found_after_restarts_undo_and_branches(
    tmp_path: Path,
) -> None:
    async with open_conversations(tmp_path) as conversations:
        conversation = await open_lossless(conversations)
        await send_turns(conversation, 0, 30)
        await conversation.close()
        conversation = await open_lossless(conversations, resume=conversation.id)
        await send_turns(conversation, 30, 60)
        assert len(conversations.watch.of(CompactionDone)) >= 20
        assert all(
            event.tokens_after < conversation.threshold * 4 // 5
            for event in conversations.watch.of(CompactionDone)
        )
        kept = {
            node.id: node for node in await conversations.store.state.list_nodes(conversation.id)
        }
        assert in_view(conversation)
        assert set(in_view(conversation)) <= set(kept)
        assert all(0 < node.since <= node.until for node in kept.values())

        whole = "".join([await read_whole(conversation, node) for node in in_view(conversation)])
        shown = "\n".join(text_of(message) for message in conversation.messages)
        for number in range(60):
            found = await conversation.handle_tool_call(
                "lcm_grep", {"pattern": f"box_{number:03d}", "role": "user"}
            )
            assert f"stands on {shelf_name(number)}" in found
            assert f", turn {number + 1}, " in found
            assert shelf_name(number) in whole or shelf_name(number) in shown

        about = await conversation.handle_tool_call(
            "lcm_describe", {"id": in_view(conversation)[0]}
        )
        node = kept[in_view(conversation)[0]]
        assert f"turns {node.first_turn}-{node.last_turn}" in about
        assert f"over {len(node.sources)} " in about
        assert "written by journal" in about

        await _assert_undo(conversation, conversations)
        await _assert_branch(conversation, conversations)


async def _assert_undo(conversation: Conversation, conversations: Conversations) -> None:
    turn = 60
    before = list(conversation.messages)
    while not (await conversation.compress()).changed:
        await send_turns(conversation, turn, turn + 1)
        turn = turn + 1
        before = list(conversation.messages)
    await conversation.undo()
    assert conversation.messages == before
    await send_turns(conversation, turn, turn + 4)
    assert set(in_view(conversation)) <= {
        node.id for node in await conversations.store.state.list_nodes(conversation.id)
    }


async def _assert_branch(conversation: Conversation, conversations: Conversations) -> None:
    branch = await conversation.branch()
    assert in_view(branch) == in_view(conversation)
    await conversation.close()
    await conversations.store.delete_thread(conversation.id)
    for node in in_view(branch):
        assert "Turn" in await read_whole(branch, node)
    await send_turns(branch, 64, 70)
    assert shelf_name(3) in await branch.handle_tool_call(
        "lcm_grep", {"pattern": "box_003", "role": "user"}
    )
    await branch.close()


async def test_only_one_of_two_concurrent_compactions_stores_its_nodes(
    tmp_path: Path,
) -> None:
    async with open_conversations(tmp_path) as conversations:
        first = await open_lossless(conversations)
        await send_turns(first, 0, 5)
        second = await open_lossless(conversations, resume=first.id)
        before = {node.id for node in await conversations.store.state.list_nodes(first.id)}
        await asyncio.gather(first.compress("boxes"), second.compress("shelves"))
        after = {node.id for node in await conversations.store.state.list_nodes(first.id)}
        assert before < after
        assert set(in_view(first)) <= after
        await second.send("Turn 5: go on.")
        assert in_view(second) == in_view(await open_lossless(conversations, resume=first.id))


async def test_tools_stay_within_the_tenant_and_bounds(tmp_path: Path) -> None:
    secret = "sk-proj-" + "Ab3dE6gH9jK2mN5pQ8rT1vX4" * 2
    async with open_conversations(tmp_path) as conversations:
        other = await open_lossless(conversations, new=NewSession(tenant="other"))
        await other.send("Turn 0: the vault opens with tulip_9_omega.")
        conversation = await open_lossless(conversations)
        assert [tool["function"]["name"] for tool in conversation.tools] == [
            "lcm_grep",
            "lcm_describe",
            "lcm_expand",
        ]
        await conversation.send(f"Turn 0: my key is {secret}, for box_777.")
        await send_turns(conversation, 1, 12)
        ask = conversation.handle_tool_call
        for scope in ("thread", "all"):
            assert "nothing was found" in await ask(
                "lcm_grep", {"pattern": "tulip_9_omega", "scope": scope}
            )
        theirs = (await conversations.store.load_history(other.id))[0].id
        for wanted in (
            f"message:{theirs}",
            "message:99999",
            "output:0123456789abcdef",
            "n0123456789ab",
        ):
            for name in ("lcm_expand", "lcm_describe"):
                try:
                    answer = await ask(name, {"id": wanted})
                except InputError as error:
                    answer = str(error)
                assert "tulip" not in answer
                assert "do not try it again" in answer, (name, wanted, answer)
        found = await ask("lcm_grep", {"pattern": "box_777"})
        assert secret not in found
        assert "box_777" in found
        first = re.search(r"message:\d+", found)
        assert first is not None
        assert secret not in await ask("lcm_expand", {"id": first[0]})
        beyond = await ask("lcm_expand", {"id": first[0], "offset": 100_000})
        assert "do not go on" in beyond
        page = await ask("lcm_grep", {"pattern": r"Turn \d+: box_\d+", "mode": "regex", "limit": 3})
        assert page.count("[message:") == 3
        onward = re.search(r"go on with offset (\d+)", page)
        assert onward is not None
        more = await ask(
            "lcm_grep",
            {
                "pattern": r"Turn \d+: box_\d+",
                "mode": "regex",
                "offset": int(onward[1]),
            },
        )
        assert not set(re.findall(r"\[message:\d+\]", page)) & set(
            re.findall(r"\[message:\d+\]", more)
        )
