"""`tool_output.tables`: lists of like objects go to the model as tables, and are stored as they came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.outputs import as_table
from everthread.core.types import Api, Reply
from tests.gateway.clients import APIS
from tests.gateway.test_recall import talking

ROWS = json.dumps([{"identifier": n, "name_of_branch": f"branch {n}", "balance_total": n * 7} for n in range(60)])

CALL: Any = {"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}


@pytest.mark.parametrize("api", APIS)
async def test_the_model_reads_a_table_the_same_each_time_and_the_store_keeps_the_json(
    api: Api, tmp_path: Path
) -> None:
    async with talking(tmp_path, api, streams=False, settings="tool_output: {tables: true}\n") as talk:
        client = talk.client
        reply: Any = {"role": "assistant", "content": "", "tool_calls": [CALL]}
        client.says("What do the branches have?")
        client.hears(Reply(reply, "tool_calls"))
        client.returns("c1", ROWS)
        await talk.ask()
        first = talk.messages()
        assert json.dumps(as_table(ROWS))[1:-1] in json.dumps(first)
        assert "identifier" in json.dumps(first)
        assert json.dumps(first).count("name_of_branch") == 1
        await talk.ask("And the second one?")
        assert talk.messages()[: len(first)] == first
        [row] = await talk.house.store.list_threads()
        stored = json.dumps([message.body for message in await talk.house.store.history(row.first.id)])
        assert json.dumps(ROWS)[1:-1] in stored
