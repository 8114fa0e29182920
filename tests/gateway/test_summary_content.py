"""A summary names the tools that its client has, and carries the thread's pins."""

from __future__ import annotations

from typing import Any

import pytest

from everthread.core.summary_marks import SUMMARY_START
from everthread.core.types import Api
from everthread.gateway.contracts import Outgoing
from everthread.thread.lookup.pins import add_pin
from tests.apis import APIS
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    answer_request,
    ask,
    numbered_text,
    prepare_request,
    text_of_tokens,
    thread_of,
)

MENTION = "can be read again word for word"


def tool(name: str) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {}},
        },
    }


OURS = [tool("mcp__everthread__search"), tool("mcp__everthread__expand")]
OTHERS = [tool("mcp__files__search"), tool("bash")]


def client(api: Api, tools: list[dict[str, Any]], turns: int) -> HistoryClient:
    new_client = HistoryClient(api, tools=tools)
    for turn in range(turns):
        new_client.add_user_message(numbered_text(turn, 300, "entry"))
        new_client.add_assistant_message(numbered_text(turn, 300, "reply"))
    new_client.add_user_message("And now?")
    return new_client


def summary(sent: Outgoing) -> str:
    """The body from its summary on."""
    assert sent.is_rewritten
    return sent.body.decode()[sent.body.decode().index(SUMMARY_START) :]


@pytest.mark.parametrize("api", APIS)
async def test_a_summary_names_the_tools_of_its_client_only(api: Api, managers: Managers) -> None:
    manager = managers.open(background=False)
    having = client(api, [*OTHERS, *OURS], 12)
    lacking = client(api, OTHERS, 12)
    summaries = [
        summary((await prepare_request(manager, one.incoming())).outgoing)
        for one in (having, lacking, having, lacking)
    ]
    assert summaries[0].count(MENTION) == 1
    assert "`mcp__everthread__expand` and `mcp__everthread__search`" in summaries[0]
    assert MENTION not in summaries[1]
    assert summaries[0] == summaries[2], "each sort of client gets its own bytes again"
    assert summaries[1] == summaries[3]
    grown = client(api, [*OTHERS, *OURS], 30)
    turn = await prepare_request(manager, grown.incoming())
    assert summary(turn.outgoing).count(MENTION) == 1


async def test_every_summary_carries_the_pins(managers: Managers) -> None:
    manager = managers.open(background=False)
    history = client("openai_chat", [], 4)
    sent = await answer_request(manager, history)
    assert not sent.is_rewritten
    thread = thread_of(sent)
    await add_pin(managers.store, thread, "The vault's code is 4711-B.")
    for depth in (1, 2):
        while True:
            sent = await ask(
                manager, history, f"More: {text_of_tokens(900, f'page {len(history.messages)}')}"
            )
            if sent.is_rewritten and int(sent.headers["x-everthread-compactions"]) == depth:
                break
        assert summary(sent).count("4711-B") == 1
