"""A lossless conversation over the three protocols, its nodes written by a model: every request is valid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from everthread import Conversation
from everthread.core.messages import text_of
from everthread.core.turns import user_text
from everthread.core.types import Api, ModelRequest
from everthread.core.validation import validate_messages
from everthread.thread.events import CompactionDone
from everthread.thread.lookup.pins import add_pin
from tests.chat_messages import call_reply
from tests.compaction.lossless.lossless_setup import NODE
from tests.conversation.conversation_setup import make_text
from tests.conversation.http_setup import (
    KEY,
    NAMES,
    answer_script,
    make_summary_text,
    open_http_conversations,
    served_model,
)

EXTRA = "context: {engine: lossless}\ncompression: {background: false, protect_last_n: 2}\nrecall: {enabled: false}"
RULE = "Never rename a public function."
TURNS = 16


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-lab")


def answer_or_look_up(request: ModelRequest) -> Any:
    """Answer; look something up first in every fourth turn."""
    last = request.messages[-1]
    found = re.match(r"Turn (\d+)", user_text(last))
    if found and int(found[1]) % 4 == 3:
        return call_reply(
            (
                "lcm_grep",
                {"pattern": f"box_{int(found[1]) - 2:03d}"},
                f"call_{found[1]}",
            )
        )
    return make_text(150, "answer")


def write_summary(_request: ModelRequest) -> str:
    return make_summary_text(
        "Fill the shelves.",
        Key_Decisions="- Boxes are numbered.",
        Critical_Context="- The hall is dry.",
    )


async def send_turn(conversation: Conversation, number: int) -> None:
    rule = f" {RULE}" if number == 1 else ""
    said = f"Turn {number}: box_{number:03d} stands on shelf-{number * 7919:06x}.{rule}"
    answer = await conversation.send(f"{said} {make_text(350, f'topic {number}')}")
    while answer.calls:
        results: list[Any] = []
        for call in answer.calls:
            text = await conversation.handle_tool_call(call.name, json.loads(call.arguments))
            assert f"shelf-{(number - 2) * 7919:06x}" in text
            results.append({"role": "tool", "tool_call_id": call.id, "content": text})
        await conversation.add_results(results)
        answer = await conversation.send()


@pytest.mark.parametrize("api", list(NAMES))
async def test_requests_are_valid_and_the_summary_names_stored_nodes(
    tmp_path: Path, api: Api
) -> None:
    async with open_http_conversations(
        tmp_path,
        [served_model(NAMES[api], 8_000)],
        answer_script(answer_or_look_up, write_summary),
    ) as conversations:
        conversation = await conversations.open(NAMES[api], api=api, extra=EXTRA)
        await add_pin(conversations.store, conversation.id, "The release is named Osprey.")
        for number in range(TURNS):
            if number == TURNS // 2:  # another process continues
                await conversation.close()
                conversation = await conversations.open(
                    NAMES[api], api=api, extra=EXTRA, resume=conversation.id
                )
            await send_turn(conversation, number)
        assert len(conversations.watch.of(CompactionDone)) >= 2
        assert {record.status for record in conversations.provider.log} == {200}, (
            "no request was wrong or too large"
        )
        for record in conversations.main_calls():
            spoken = [text for message in record.request.messages if (text := user_text(message))]
            assert re.match(r"Turn \d+: box_", spoken[-1]), (
                "the latest request is last and unchanged"
            )
        shown = "\n".join(map(text_of, conversation.messages))
        view = shown[shown.index("[EVERTHREAD SUMMARY") : shown.index("[END OF EVERTHREAD SUMMARY")]
        nodes = {
            node.id: node for node in await conversations.store.state.list_nodes(conversation.id)
        }
        heads = re.findall(
            r"^\[node (\w+): turns (\d+)-(\d+), .* by ([^\]]+)\]$", view, re.MULTILINE
        )
        assert [head[0] for head in heads] == NODE.findall(view)
        assert all(author == NAMES[api] for *_, author in heads), (
            "by a model, none of them makeshift"
        )
        assert all(
            (nodes[head[0]].first_turn, nodes[head[0]].last_turn) == tuple(map(int, head[1:3]))
            for head in heads
        )
        assert view.count(RULE) == 1, "a rule is written once, after the nodes"
        assert view.count("The release is named Osprey.") == 1
        assert view.index(RULE) > view.index("[end of nodes]")
        for form in ("openai", "openai_responses", "anthropic"):
            assert validate_messages(conversation.messages, api=form) == []
