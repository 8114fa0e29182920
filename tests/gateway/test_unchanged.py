"""A client says that a file is unchanged since its last reading, which was compacted: the model gets the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.types import Api, Reply
from tests.gateway.clients import APIS, Client, Gate, answer, running, words

FILE = "def tide(hour):\n    return 4.2 * hour  # metres at the harbour\n"
STUB = "Wasted call: file unchanged since your last Read."


def reads(client: Client, number: int, text: str) -> None:
    function = {"name": "Read", "arguments": json.dumps({"file_path": "/src/tide.py"})}
    call: Any = {"id": f"call_{number}", "type": "function", "function": function}
    client.hears(Reply({"role": "assistant", "content": "Reading.", "tool_calls": [call]}, "tool_calls"))
    client.returns(f"call_{number}", text)


@pytest.mark.parametrize("api", APIS)
async def test_the_file_stands_where_the_client_said_that_it_is_unchanged(api: Api, tmp_path: Path) -> None:
    async def run(place: Gate) -> None:
        manager = place.manager(background=False)
        client = Client(api, extra={"max_tokens": 500} if api == "anthropic" else {})
        client.says("Read the file.")
        reads(client, 1, FILE)
        sent = await answer(manager, client)
        for turn in range(10):
            client.says(f"Ledger {turn}: {words(600, f'ledger {turn}')}")
            sent = await answer(manager, client)
        assert sent.rewritten
        client.says("Read it again.")
        reads(client, 2, STUB)
        sent = await answer(manager, client)
        assert "4.2 * hour" in json.dumps(json.loads(sent.body)).split("Read it again.")[1]
        assert STUB not in sent.body.decode()
        client.says("Go on.")
        after = await answer(manager, client)
        field = "input" if api == "openai_responses" else "messages"
        first, second = (json.loads(one.body)[field] for one in (sent, after))
        assert second[: len(first)] == first

    await running(tmp_path, run)


async def test_a_file_that_is_still_there_is_not_told_again(tmp_path: Path) -> None:
    async def run(place: Gate) -> None:
        client = Client("openai_chat")
        client.says("Read the file.")
        reads(client, 1, FILE)
        reads(client, 2, STUB)
        sent = await answer(place.manager(), client)
        assert not sent.rewritten

    await running(tmp_path, run)
