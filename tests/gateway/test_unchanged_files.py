"""A client says that a file is unchanged since its last reading, which was compacted: the model gets the file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.core.types import Api
from tests.apis import APIS
from tests.chat_messages import calls_reply, function_call
from tests.gateway.manager_setup import HistoryClient, Managers, answer_request, ask, numbered_text

FILE = "def tide(hour):\n    return 4.2 * hour  # metres at the harbour\n"
STUBS = (
    "Wasted call — file unchanged since your last Read. Refer to that earlier tool_result instead.",
    (
        "File unchanged since last read. The content from the earlier Read tool_result in this conversation is still "
        "current — refer to that instead of re-reading."
    ),
    "<system-reminder>This file is already in your context.</system-reminder>",
)
"""The texts of current and older versions of Claude Code."""
STUB = STUBS[0]


def add_read(
    client: HistoryClient, number: int, text: str, tool: str = "Read", **more: Any
) -> None:
    client.add_reply(
        calls_reply(
            function_call(
                f"call_{number}",
                tool,
                json.dumps({"file_path": "/src/tide.py", **more}),
            ),
            text="Reading.",
        )
    )
    client.add_result(f"call_{number}", text)


@pytest.mark.parametrize(
    ("api", "stub"),
    [*((api, STUB) for api in APIS), *(("anthropic", stub) for stub in STUBS[1:])],
)
async def test_replaces_a_note_on_an_unchanged_file_by_the_file(
    api: Api, stub: str, managers: Managers
) -> None:
    manager = managers.open(background=False)
    client = HistoryClient(api, extra={"max_tokens": 500} if api == "anthropic" else {})
    client.add_user_message("Read the file.")
    add_read(client, 1, FILE)
    add_read(client, 5, "def tide(hour):\n", limit=1)
    add_read(
        client,
        6,
        text="The file /src/tide.py has been updated successfully.",
        tool="Edit",
        old_string="a",
        new_string="b",
    )
    sent = await answer_request(manager, client)
    for turn in range(10):
        sent = await ask(manager, client, numbered_text(turn, 600, "ledger"))
    assert sent.is_rewritten
    client.add_user_message("Read it again.")
    add_read(client, 2, stub)
    sent = await answer_request(manager, client)
    assert "4.2 * hour" in json.dumps(json.loads(sent.body)).split("Read it again.")[1]
    assert json.dumps(stub, ensure_ascii=False)[1:-1] not in sent.body.decode()
    after = await ask(manager, client, "Go on.")
    field = "input" if api == "openai_responses" else "messages"
    first, second = (json.loads(one.body)[field] for one in (sent, after))
    assert second[: len(first)] == first


async def test_leaves_the_note_if_the_file_is_still_in_the_context(
    managers: Managers,
) -> None:
    client = HistoryClient("openai_chat")
    client.add_user_message("Read the file.")
    add_read(client, 1, FILE)
    add_read(client, 2, STUB)
    sent = await answer_request(managers.open(), client)
    assert not sent.is_rewritten
