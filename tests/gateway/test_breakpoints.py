"""Cache breakpoints for clients of OpenAI models that need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.types import Api
from tests.gateway.manager_setup import (
    HistoryClient,
    open_managers_with_provider,
    prepare_request,
    text_of_tokens,
)

OPENAI = "https://api.openai.com/v1"
MARK = {"mode": "explicit"}
TOOL = {
    "type": "function",
    "function": {"name": "read", "parameters": {}},
}


def make_client(api: Api, model: str = "gpt-5.6", **options: Any) -> HistoryClient:
    """Return a client of a model whose cache needs breakpoints."""
    return HistoryClient(api, model=model, **options)


async def sent_by(
    folder: Path, client: HistoryClient, upstream: str = OPENAI, **options: Any
) -> Any:
    async with open_managers_with_provider(folder, None) as managers_with_provider:
        manager = managers_with_provider.open(cache_marks=True, **options)
        turn = await prepare_request(manager, client.incoming(upstream))
        return json.loads(turn.outgoing.body)


@pytest.mark.parametrize("api", ["openai_chat", "openai_responses"])
async def test_the_system_prompt_ends_with_a_breakpoint(tmp_path: Path, api: Api) -> None:
    client = make_client(api, tools=[TOOL], system=None)
    role = "system" if api == "openai_chat" else "developer"
    client.messages.append({"role": role, "content": "Be brief."})
    client.add_user_message(text_of_tokens(2_000, "ledger"))
    body = await sent_by(tmp_path, client)
    first, *rest = body["messages" if api == "openai_chat" else "input"]
    kind = "text" if api == "openai_chat" else "input_text"
    part = {
        "type": kind,
        "text": "Be brief.",
        "prompt_cache_breakpoint": MARK,
    }
    assert first == {"role": role, "content": [part]}
    assert rest == client.messages[1:], "nothing else is changed"


async def test_instructions_get_no_breakpoint_so_the_first_message_does(
    tmp_path: Path,
) -> None:
    client = make_client("openai_responses", tools=[TOOL])
    client.add_user_message(text_of_tokens(2_000, "ledger"))
    body = await sent_by(tmp_path, client)
    assert body["instructions"] == "Be brief."
    assert body["input"][0]["content"][0]["prompt_cache_breakpoint"] == MARK


@pytest.mark.parametrize(
    "client",
    [
        make_client("openai_chat", tools=[TOOL], model="gpt-5.5"),
        make_client("openai_chat"),
        make_client(
            "openai_chat",
            tools=[TOOL],
            extra={"prompt_cache_options": {"mode": "explicit"}},
        ),
        make_client(
            "openai_chat",
            tools=[TOOL],
            messages=[
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "text",
                            "text": "a",
                            "prompt_cache_breakpoint": MARK,
                        }
                    ],
                }
            ],
        ),
    ],
    ids=["older model", "one-shot prompt", "own options", "own breakpoint"],
)
async def test_sends_other_requests_unchanged(tmp_path: Path, client: HistoryClient) -> None:
    client.add_user_message(text_of_tokens(2_000, "ledger"))
    assert await sent_by(tmp_path, client) == client.body()


async def test_a_short_prompt_or_another_upstream_gets_no_breakpoint(tmp_path: Path) -> None:
    client = make_client("openai_chat", tools=[TOOL])
    client.add_user_message("Hello.")
    assert await sent_by(tmp_path, client) == client.body()
    client.add_user_message(text_of_tokens(2_000, "ledger"))
    local = await sent_by(tmp_path / "other", client, "http://127.0.0.1:8000/v1")
    assert local == client.body()


async def test_after_a_compaction_the_breakpoint_stays_before_our_note(
    tmp_path: Path,
) -> None:
    async with open_managers_with_provider(tmp_path, None, window=16_000) as managers_with_provider:
        manager = managers_with_provider.open(cache_marks=True, background=False)
        client = make_client("openai_chat", tools=[TOOL])
        for number in range(40):
            client.add_user_message(f"Entry {number}: {text_of_tokens(120, 'ledger')}")
            client.add_assistant_message(text_of_tokens(120, "ok"))
        client.add_user_message("And now?")
        turn = await prepare_request(manager, client.incoming(OPENAI))
        assert turn.outgoing.headers["x-everthread-compactions"] == "1"
        system = json.loads(turn.outgoing.body)["messages"][0]["content"]
        assert [part.get("prompt_cache_breakpoint") for part in system] == [MARK, None]
        assert system[0]["text"] == "Be brief."
