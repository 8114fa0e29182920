"""Whole conversations far past the window, through the manager, against the simulated provider."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import calls_of, text_of
from everthread.core.summary_marks import SUMMARY_START
from everthread.core.types import Api, ModelRequest
from everthread.gateway.managed.manager import ProxyManager
from everthread.thread.events import CompactionDone
from everthread.wire.codecs import CODECS
from tests.apis import APIS
from tests.chat_messages import calls_reply, function_call
from tests.conversation.http_setup import TOOL
from tests.gateway.manager_setup import (
    NAMES,
    Exchange,
    HistoryClient,
    ManagersWithProvider,
    compactions_of,
    open_managers_with_provider,
    prepare_request,
    statuses_of,
    text_of_tokens,
    thread_of,
    tokens_of,
)
from tests.store.messages import texts_of


def script(request: ModelRequest) -> Any:
    """Answer each request of the user by a call first, then by text."""
    last = request.messages[-1]
    text = text_of(last)
    if last["role"] != "user" or "look" not in text:
        return f"Noted: {text_of_tokens(60, 'answer')}"
    arguments = json.dumps({"command": f"cat ledger_{len(text)}.txt"})
    call_id = f"call_{len(request.messages)}_{len(text)}"
    return calls_reply(function_call(call_id, "terminal", arguments), text="Let me look.")


@pytest.fixture
async def managers_with_provider(tmp_path: Path) -> AsyncIterator[ManagersWithProvider]:
    """Managers before a provider whose models call a tool."""
    async with open_managers_with_provider(tmp_path, script) as opened:
        yield opened


def make_client(api: Api) -> HistoryClient:
    extra = {"max_tokens": 500} if api == "anthropic" else {}
    return HistoryClient(api, tools=[TOOL], extra=extra)


async def send_turns(
    managers_with_provider: ManagersWithProvider,
    manager: ProxyManager,
    client: HistoryClient,
    turns: range,
) -> list[Exchange]:
    exchanges = []
    for turn in turns:
        text = text_of_tokens(300, f"ledger {turn}")
        client.add_user_message(f"Please look at ledger {turn}{'.' * turn} {text}")
        exchange = await managers_with_provider.send(manager, client)
        exchanges.append(exchange)
        for call in calls_of(exchange.reply.message):
            client.add_result(call.id, text_of_tokens(400, f"line of {turn}"))
        exchanges.append(await managers_with_provider.send(manager, client))
    return exchanges


def assert_prefix_stable(api: Api, exchanges: list[Exchange]) -> None:
    """Between two rewrites each request begins with the very bytes of the one before."""
    field = "input" if api == "openai_responses" else "messages"
    unchanged = 0
    for exchange, following in itertools.pairwise(exchanges):
        if compactions_of(exchange.sent) == compactions_of(following.sent):
            messages = json.loads(exchange.sent.body)[field]
            next_messages = json.loads(following.sent.body)[field]
            assert next_messages[: len(messages)] == messages
            unchanged += 1
    assert unchanged > len(exchanges) / 3


@pytest.mark.parametrize("api", APIS)
async def test_continues_a_conversation_far_past_the_window(
    api: Api, managers_with_provider: ManagersWithProvider
) -> None:
    client = make_client(api)
    exchanges = await send_turns(
        managers_with_provider,
        managers_with_provider.open(),
        client=client,
        turns=range(25),
    )
    assert set(statuses_of(managers_with_provider.provider)) == {200}
    assert len(json.dumps(client.messages)) > 3 * 4 * managers_with_provider.window
    assert len({thread_of(exchange.sent) for exchange in exchanges}) == 1
    assert len(managers_with_provider.events_of(CompactionDone)) >= 3
    compactions = [compactions_of(exchange.sent) for exchange in exchanges]
    assert compactions == sorted(compactions), "no request returns to an earlier one"
    assert compactions[-1] >= 3
    assert_prefix_stable(api, exchanges)
    tokens = tokens_of(exchanges[-1].sent)
    assert tokens.before > 2 * managers_with_provider.window
    assert tokens.after < managers_with_provider.window


@pytest.mark.parametrize("api", APIS)
async def test_stores_every_message_once(
    api: Api, managers_with_provider: ManagersWithProvider
) -> None:
    client = make_client(api)
    exchanges = await send_turns(
        managers_with_provider,
        managers_with_provider.open(),
        client=client,
        turns=range(8),
    )
    thread = thread_of(exchanges[0].sent)
    stored = [message.body for message in await managers_with_provider.store.load_history(thread)]
    sent = CODECS[api].decode_messages(client.messages, model=NAMES[api])
    assert [(body["role"], text_of(body)) for body in stored] == [
        (body["role"], text_of(body)) for body in sent
    ]
    session = await managers_with_provider.store.load_session(thread)
    assert session.platform == "gateway"
    assert session.tenant == "t"
    assert session.system == "Be brief."
    records = await managers_with_provider.store.usage.list_usage(thread)
    tasks = {record.task for record in records}
    assert tasks == {"main"}
    prompt_tokens = [record.usage.prompt_tokens for record in records]
    assert prompt_tokens == [record.prompt_tokens for record in managers_with_provider.provider.log]


async def test_two_processes_can_take_turns(managers_with_provider: ManagersWithProvider) -> None:
    client = make_client("anthropic")
    managers = [managers_with_provider.open(), managers_with_provider.open()]
    exchanges = []
    for turn in range(16):
        manager = managers[turn % 2]
        exchanges += await send_turns(
            managers_with_provider,
            manager,
            client=client,
            turns=range(turn, turn + 1),
        )
    assert len({thread_of(exchange.sent) for exchange in exchanges}) == 1
    assert_prefix_stable("anthropic", exchanges)
    stored = texts_of(await managers_with_provider.store.load_history(thread_of(exchanges[0].sent)))
    sent = CODECS["anthropic"].decode_messages(client.messages)
    assert stored == list(map(text_of, sent))


async def test_racing_processes_send_the_same_rewrite(
    managers_with_provider: ManagersWithProvider,
) -> None:
    client = make_client("openai_chat")
    await send_turns(
        managers_with_provider,
        managers_with_provider.open(enabled=False),
        client=client,
        turns=range(6),
    )
    client.add_user_message("And now?")
    managers = [managers_with_provider.open(background=False) for _ in range(3)]
    turns = await asyncio.gather(
        *(prepare_request(manager, client.incoming()) for manager in managers)
    )
    assert len({turn.outgoing.body for turn in turns}) == 1
    assert turns[0].outgoing.is_rewritten
    assert SUMMARY_START.encode() in turns[0].outgoing.body
