"""A request that cannot need a change is forwarded before it is read, and stored with its answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import pytest

from everthread.core.types import Api
from everthread.errors import StoreError
from everthread.gateway.contracts import THREAD_HEADER
from everthread.gateway.fail_open import FailOpen
from everthread.gateway.managed.forwarded_handler import ForwardedHandler
from everthread.gateway.managed.managed_handler import ManagedHandler
from everthread.gateway.monitoring.metrics import Metrics
from everthread.store.store import Store
from everthread.thread.events import RecordFailed
from tests.apis import APIS
from tests.gateway.forwarding_setup import (
    answer_outcome,
    begin_turn,
    locate_request,
    send_and_record,
    stored_texts,
)
from tests.gateway.manager_setup import HistoryClient, Managers, prepare_request, text_of_tokens
from tests.gateway.store_wrappers import BreakableStore

WINDOW = 40_000
OPENING = text_of_tokens(900, "größer")


@pytest.fixture
def managers(managers: Managers) -> Managers:
    managers.window = WINDOW
    return managers


@pytest.mark.parametrize("api", APIS)
async def test_a_known_thread_is_forwarded_before_it_is_read(managers: Managers, api: Api) -> None:
    manager = managers.open(is_sole_writer=True)
    client = HistoryClient(api)
    first = await send_and_record(manager, client, OPENING)
    assert isinstance(first, ManagedHandler)
    for number in range(3):
        client.add_user_message(f"Next {number}, größer.")
        incoming = locate_request(manager, client)
        turn = manager.forward_first(incoming)
        assert isinstance(turn, ForwardedHandler)
        assert turn.outgoing.body is incoming.body.raw
        assert turn.outgoing.headers[THREAD_HEADER] == first.thread
        await turn.record(answer_outcome(client, f"Answer {number}."))
    texts = [OPENING, "Yes."]
    for number in range(3):
        texts += [f"Next {number}, größer.", f"Answer {number}."]
    stored = await stored_texts(managers.store, first.thread)
    assert stored == texts
    usage = await managers.store.usage.list_usage(first.thread)
    assert len(usage) == 4


async def test_stores_a_request_before_its_long_answer_ends(
    managers: Managers,
) -> None:
    manager = managers.open()
    client = HistoryClient("anthropic")
    first = await send_and_record(manager, client, OPENING)
    client.add_user_message("Take your time.")
    turn = await begin_turn(manager, client)
    assert isinstance(turn, ForwardedHandler)
    async with asyncio.timeout(60):
        while len(await managers.store.load_history(first.thread)) < 3:  # noqa: ASYNC110 - the store has no event
            await asyncio.sleep(0.05)
    await turn.record(answer_outcome(client))
    history = await managers.store.load_history(first.thread)
    assert len(history) == 4


async def test_reads_a_thread_over_half_of_its_threshold_before_forwarding(
    managers: Managers,
) -> None:
    manager = managers.open()
    client = HistoryClient("anthropic")
    client.add_user_message(OPENING)
    turn = await begin_turn(manager, client)
    await turn.record(answer_outcome(client, tokens=WINDOW // 4 - 600))
    client.add_user_message("Short.")
    assert manager.forward_first(locate_request(manager, client)) is not None
    client.messages.pop()
    client.add_user_message("Long. " * 150)
    assert manager.forward_first(locate_request(manager, client)) is None


async def test_reads_other_requests_before_forwarding(managers: Managers) -> None:
    """A changed answer, changed words, other settings, another tenant or session, and a repeated request."""

    manager = managers.open()
    client = HistoryClient("openai_chat", tools=[], extra={"temperature": 0.5})
    await send_and_record(manager, client, OPENING)
    await send_and_record(manager, client, "And then?")
    client.add_user_message("Last.")
    assert manager.forward_first(locate_request(manager, client)) is not None
    *past, answer, last = client.messages
    changed: list[Any] = [
        {
            "messages": [*past, {**answer, "content": "No."}, last],
        },
        {
            "messages": [
                *past[:2],
                {**past[2], "content": "Else?"},
                answer,
                last,
            ],
        },
        {"messages": past},
        {"extra": {"temperature": 0.7}},
        {"tenant": "other"},
        {"headers": {"x-session-id": "other"}},
        {"mode": "observe"},
    ]
    for change in changed:
        other = replace(client, **change)
        assert manager.forward_first(locate_request(manager, other)) is None, change


async def test_reads_a_rewritten_thread_before_forwarding(managers: Managers) -> None:
    managers.window = 8_000
    manager = managers.open(background=False)
    client = HistoryClient("anthropic")
    for number in range(14):
        client.add_user_message(text_of_tokens(500, f"topic {number}"))
        client.add_answer("Yes.")
    turn = await send_and_record(manager, client, "Go on.")
    assert turn.outgoing.is_rewritten
    client.add_user_message("And now?")
    assert manager.forward_first(locate_request(manager, client)) is None


async def test_sets_cache_marks_before_forwarding(
    managers: Managers,
) -> None:
    manager = managers.open(cache_marks=True)
    client = HistoryClient("anthropic", system=text_of_tokens(4_000, "rules"))
    client.add_user_message(OPENING)
    first = await begin_turn(manager, client)
    await first.record(answer_outcome(client, tokens=4_000))
    client.add_user_message("And now?")
    incoming = locate_request(manager, client)
    turn = manager.forward_first(incoming)
    assert turn is not None
    read = await prepare_request(
        manager, replace(incoming, body=replace(incoming.body, located_body=None))
    )
    assert turn.outgoing.is_rewritten
    assert turn.outgoing.body.count(b'"cache_control"') == 4
    assert turn.outgoing.body == read.outgoing.body


async def test_reads_and_shrinks_a_refused_request(managers: Managers) -> None:
    manager = managers.open(background=False)
    client = HistoryClient("anthropic", extra={"max_tokens": 100})
    for number in range(14):
        client.add_user_message(text_of_tokens(500, f"topic {number}"))
        client.add_answer("Yes.")
    await send_and_record(manager, client, "Go on.")
    client.add_user_message("And now?")
    turn = await begin_turn(manager, client)
    assert isinstance(turn, ForwardedHandler)
    refusal = b'{"type":"error","error":{"type":"invalid_request_error","message":'
    refusal += b'"prompt is too long: 9001 tokens > 6000 maximum"}}'
    refused = turn.outgoing
    smaller = await turn.recover(400, refusal)
    assert smaller is not None
    assert smaller.is_rewritten
    assert len(smaller.body) < len(refused.body)
    await turn.record(answer_outcome(client))


async def test_a_failure_after_the_answer_is_logged_and_counted(managers: Managers) -> None:
    store = BreakableStore(managers.store)
    managers.store = cast("Store", store)
    manager = managers.open(is_sole_writer=True)
    metrics = Metrics()
    fail_open = FailOpen(manager, metrics, 60)
    client = HistoryClient("anthropic")
    await send_and_record(manager, client, OPENING)
    for error in (StoreError("the disk is full"), RuntimeError("a mistake")):
        store.error = error
        client.add_user_message("And now?")
        incoming = locate_request(manager, client)
        turn = fail_open.forward_first(incoming)
        assert turn is not None
        recording = turn.record(answer_outcome(client))
        await fail_open.attempt("answered", incoming, recording, is_awaited=False)
    errors = [event.error for event in managers.events_of(RecordFailed)]
    assert errors == ["the disk is full"]
    assert metrics.value("failed_open", step="answered") == 1
