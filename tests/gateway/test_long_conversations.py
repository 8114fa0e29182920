"""Whole conversations far past the window, through the manager, against the simulated provider."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import text_of
from everthread.core.summary_marks import SUMMARY_START
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Request
from everthread.gateway.contracts import ProxyTurn
from everthread.gateway.managed.managed_turn import ManagedTurn
from everthread.thread.caller.replacement_text import parse_replacement
from everthread.thread.caller.rewrite_task import RewriteState
from everthread.thread.events import CompactionDone
from everthread.thread.wire_messages import decode_messages
from tests.chat_messages import calls_reply, function_call
from tests.conversation.http_setup import TOOL
from tests.gateway.manager_setup import (
    APIS,
    CODECS,
    NAMES,
    HistoryClient,
    ProviderSetup,
    make_text,
    open_manager_setup,
    thread_of,
)
from tests.store.messages import texts_of


def script(request: Request) -> Any:
    """Every request of the user is answered by a call first, then by words."""
    last = request.messages[-1]
    if last["role"] == "user" and "look" in text_of(last):
        number = sum(message["role"] == "user" for message in request.messages)
        return calls_reply(
            function_call(
                f"call_{number}_{len(text_of(last))}",
                "terminal",
                json.dumps({"command": f"cat ledger_{len(text_of(last))}.txt"}),
            ),
            text="Let me look.",
        )
    return f"Noted: {make_text(60, 'answer')}"


async def send_turns(
    setup: ProviderSetup,
    manager: Any,
    client: HistoryClient,
    turns: int,
    start: int = 0,
) -> list[Any]:
    done = []
    for turn in range(start, start + turns):
        client.add_user_message(
            f"Please look at ledger {turn}{'.' * turn} {make_text(300, f'ledger {turn}')}"
        )
        exchange = await setup.send(manager, client)
        done.append(exchange)
        for call in exchange.reply.message.get("tool_calls", []):
            client.add_result(call["id"], make_text(400, f"line of {turn}"))
        exchange = await setup.send(manager, client)
        done.append(exchange)
    return done


@pytest.mark.parametrize("api", APIS)
async def test_continues_a_conversation_far_past_the_window(
    api: Api, tmp_path: Path
) -> None:
    async with open_manager_setup(tmp_path, script) as setup:
        client = HistoryClient(
            api, tools=[TOOL], extra={"max_tokens": 500} if api == "anthropic" else {}
        )
        manager = setup.manager()
        done = await send_turns(setup, manager, client, 25)
        log = setup.provider.log
        assert all(record.status == 200 for record in log), (
            "upstream never saw a request it refuses"
        )
        assert (
            sum(len(json.dumps(message)) for message in client.messages)
            > 3 * 4 * setup.window
        )
        assert len({thread_of(exchange.sent) for exchange in done}) == 1
        rewrites = len(setup.of(CompactionDone))
        assert rewrites >= 3
        compactions = [
            int(exchange.sent.headers["x-everthread-compactions"]) for exchange in done
        ]
        assert compactions == sorted(compactions), (
            "a later request never goes back behind a rewrite"
        )
        assert compactions[-1] >= 3
        assert_prefix_stable(api, done)
        before, after = map(
            int, done[-1].sent.headers["x-everthread-tokens"].split("/")
        )
        assert before > 2 * setup.window > 2 * after


def assert_prefix_stable(api: Api, done: list[Any]) -> None:
    """Between two rewrites each request begins with the very bytes of the one before."""
    field = "input" if api == "openai_responses" else "messages"
    before: tuple[str, list[Any]] | None = None
    changes = 0
    for exchange in done:
        sent = json.loads(exchange.sent.body)[field]
        depth = exchange.sent.headers["x-everthread-compactions"]
        if before is not None and before[0] == depth:
            assert sent[: len(before[1])] == before[1]
            changes += 1
        before = depth, sent
    assert changes > len(done) / 3


@pytest.mark.parametrize("api", APIS)
async def test_stores_every_message_once(api: Api, tmp_path: Path) -> None:
    async with open_manager_setup(tmp_path, script) as setup:
        client = HistoryClient(
            api, tools=[TOOL], extra={"max_tokens": 500} if api == "anthropic" else {}
        )
        manager = setup.manager()
        done = await send_turns(setup, manager, client, 8)
        thread = thread_of(done[0].sent)
        stored = [message.body for message in await setup.store.history(thread)]
        core = CODECS[api].decode_messages(client.messages, model=NAMES[api])
        assert [(body["role"], text_of(body)) for body in stored] == [
            (body["role"], text_of(body)) for body in core
        ]
        session = await setup.store.session(thread)
        assert (session.platform, session.tenant, session.system) == (
            "gateway",
            "t",
            "Be brief.",
        )
        records = await setup.store.usage(thread)
        assert [record.task for record in records] == ["main"] * len(done)
        assert [record.usage.prompt_tokens for record in records] == [
            record.prompt_tokens for record in setup.provider.log
        ]


async def ask_after_a_compaction(
    setup: ProviderSetup,
) -> tuple[HistoryClient, ProxyTurn]:
    client = HistoryClient("openai_chat", tools=[TOOL])
    manager = setup.manager()
    await send_turns(setup, manager, client, 12)
    await manager.wait_for_background_work()
    client.add_user_message("And now?")
    return client, await manager.prepare(client.incoming())


async def test_stores_a_rewrite_with_its_tokens(tmp_path: Path) -> None:
    """The process that makes a rewrite counts it, so that no request has to."""
    async with open_manager_setup(tmp_path, script) as setup:
        _, turn = await ask_after_a_compaction(setup)
        assert isinstance(turn, ManagedTurn)
        used = turn.call.rewrite
        assert used is not None
        state = RewriteState.load(used.state)
        values = [value for value, _ in parse_replacement(used)]
        messages = decode_messages("openai_chat", values, turn.request.model)
        assert (state.model, state.tokens) == (
            turn.request.model,
            TokenCounter(turn.request.model).messages(messages),
        )


async def test_two_processes_can_take_turns(tmp_path: Path) -> None:
    async with open_manager_setup(tmp_path, script) as setup:
        client = HistoryClient("anthropic", tools=[TOOL], extra={"max_tokens": 400})
        managers = [setup.manager(), setup.manager()]
        done = []
        for turn in range(16):
            done += await send_turns(setup, managers[turn % 2], client, 1, start=turn)
        assert len({thread_of(exchange.sent) for exchange in done}) == 1
        assert_prefix_stable("anthropic", done)
        thread = thread_of(done[0].sent)
        stored = texts_of(await setup.store.history(thread))
        core = CODECS["anthropic"].decode_messages(client.messages)
        assert stored == [text_of(body) for body in core]


async def test_racing_processes_send_the_same_rewrite(tmp_path: Path) -> None:
    async with open_manager_setup(tmp_path, script) as setup:
        client = HistoryClient("openai_chat", tools=[TOOL])
        await send_turns(setup, setup.manager(enabled=False), client, 6)
        client.add_user_message("And now?")
        managers = [setup.manager(background=False) for _ in range(3)]
        turns = await asyncio.gather(
            *(manager.prepare(client.incoming()) for manager in managers)
        )
        sent = [turn.sent for turn in turns]
        assert len({outgoing.body for outgoing in sent}) == 1
        assert sent[0].rewritten
        assert SUMMARY_START.encode() in sent[0].body
