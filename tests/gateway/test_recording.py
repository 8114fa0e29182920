"""Messages are known while they are being stored; those that could not be stored are stored with the next request."""

from __future__ import annotations

import asyncio
import gc
from copy import deepcopy
from dataclasses import dataclass

import pytest

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import Api, ModelReply
from everthread.gateway.contracts import THREAD_HEADER, RequestHandler
from everthread.gateway.managed.managed_handler import ManagedHandler
from everthread.gateway.managed.manager import ProxyManager
from everthread.thread.caller.caller_request import Outcome
from everthread.thread.events import RecordFailed
from tests.apis import APIS
from tests.gateway.manager_setup import (
    HistoryClient,
    Managers,
    answer_request,
    ask,
    prepare_request,
    text_reply,
    thread_of,
)
from tests.gateway.store_wrappers import FailingStore, WatchedStore
from tests.store.messages import texts_of

OPENING = ["Where do we go?", "Left or right."]


@dataclass
class SoleGateway:
    """A gateway that has its store for itself, and a client whose first question is answered."""

    store: WatchedStore
    manager: ProxyManager
    client: HistoryClient

    async def ask(self, question: str) -> RequestHandler:
        self.client.add_user_message(question)
        return await prepare_request(self.manager, self.client.incoming())


@pytest.fixture
async def sole_gateway(managers: Managers) -> SoleGateway:
    store = WatchedStore(managers.store)
    gateway = SoleGateway(
        store, managers.open(store=store, is_sole_writer=True), HistoryClient("anthropic")
    )
    await ask(gateway.manager, gateway.client, *OPENING)
    assert store.written == [["user"], ["assistant"]], (
        "a new thread is stored before the client learns its name"
    )
    store.written.clear()
    return gateway


async def test_a_sole_gateway_stores_a_request_with_its_answer(
    sole_gateway: SoleGateway,
) -> None:
    turn = await sole_gateway.ask("Left.")
    thread = (await turn.make_response_headers())[THREAD_HEADER]
    assert sole_gateway.store.written == [], "the client gets its thread before that"
    usage = CanonicalUsage(input_tokens=7)
    await turn.record(Outcome(200, text_reply("Done."), usage))
    assert sole_gateway.store.written == [["user", "assistant"]]
    stored = texts_of(await sole_gateway.store.load_history(thread))
    assert stored == [*OPENING, "Left.", "Done."]
    stored_usage = await sole_gateway.store.usage.list_usage(thread)
    assert stored_usage[-1].usage.input_tokens == 7


async def test_a_stored_request_is_freed_without_a_garbage_collection(
    sole_gateway: SoleGateway,
) -> None:
    sole_gateway.client.add_user_message("Left.")
    gc.collect()
    gc.disable()
    try:
        await answer_request(sole_gateway.manager, sole_gateway.client, "Done.")
        await asyncio.sleep(0)
        new_objects = gc.get_objects(generation=0)  # nothing was collected since
        assert not [one for one in new_objects if isinstance(one, ManagedHandler)]
    finally:
        gc.enable()


async def test_a_sole_gateway_stores_a_request_whose_answer_is_late(
    sole_gateway: SoleGateway,
) -> None:
    turn = await sole_gateway.ask("Left.")
    async with asyncio.timeout(60):
        while not sole_gateway.store.written:  # noqa: ASYNC110 - set in the background
            await asyncio.sleep(0.01)
    assert sole_gateway.store.written == [["user"]]
    await turn.record(Outcome(500))
    history = await sole_gateway.store.load_history(turn.thread)
    assert len(history) == 3


async def test_a_branch_does_not_wait_for_the_answer_before_it(
    sole_gateway: SoleGateway,
) -> None:
    other = deepcopy(sole_gateway.client)
    first = await sole_gateway.ask("Left.")
    other.add_user_message("Left.")
    other.add_assistant_message("In another window.")
    other.add_user_message("And on.")
    second = await prepare_request(sole_gateway.manager, other.incoming())
    await second.call.recorder.store_request()
    assert sole_gateway.store.written == [["user"], ["assistant", "user"]]
    await first.record(Outcome(500))
    await second.record(Outcome(500))


async def test_a_sole_gateway_stores_failed_messages_with_the_next_request(
    sole_gateway: SoleGateway,
) -> None:
    own_store = sole_gateway.store.wrapped_store
    sole_gateway.store.wrapped_store = FailingStore(own_store, {1})
    await ask(sole_gateway.manager, sole_gateway.client, question="Left.", text="Done.")
    sole_gateway.store.wrapped_store = own_store
    sent = await ask(sole_gateway.manager, sole_gateway.client, question="Further.", text="There.")
    stored = texts_of(await sole_gateway.store.load_history(thread_of(sent)))
    assert stored == [*OPENING, "Left.", "Done.", "Further.", "There."]


async def stored_threads(managers: Managers) -> list[list[str]]:
    rows = await managers.store.list_threads(tenant="t")
    return [texts_of(await managers.store.load_history(row.first.id)) for row in rows]


def numbered_dialogue(turns: int) -> list[str]:
    return [f"{kind} {turn}" for turn in range(turns) for kind in ("Question", "Answer")]


def begin_recording(turn: RequestHandler, reply: ModelReply) -> asyncio.Task[None]:
    return asyncio.create_task(turn.record(Outcome(200, reply)))


@pytest.mark.parametrize("fails", [set(), {1}, {2}, {4, 5}], ids=str)
async def test_a_client_quicker_than_the_store_stays_in_its_thread(
    fails: set[int], managers: Managers
) -> None:
    manager = managers.open(store=FailingStore(managers.store, fails))
    client = HistoryClient("anthropic")
    recordings = []
    threads = set()
    for number in range(6):
        client.add_user_message(f"Question {number}")
        turn = await prepare_request(manager, client.incoming())
        threads.add(thread_of(turn))
        reply = text_reply(f"Answer {number}")
        client.add_reply(reply)
        recordings.append(begin_recording(turn, reply))
        await asyncio.sleep(0)  # the client has its answer, and continues at once
    await asyncio.gather(*recordings)
    stored = await stored_threads(managers)
    assert numbered_dialogue(6) in stored
    assert bool(managers.events_of(RecordFailed)) == bool(fails)
    if not fails:
        assert len(stored) == len(threads)
        assert len(threads) == 1


@pytest.mark.parametrize("api", APIS)
async def test_three_processes_and_late_writes_make_no_branch(api: Api, managers: Managers) -> None:
    """Each turn meets another process while the one before is still storing; some turns are sent twice."""
    processes = [
        managers.open(store=FailingStore(managers.store, set(), seconds=0.03 * number))
        for number in (1, 2, 3)
    ]
    client = HistoryClient(api)
    recordings = []
    for number in range(12):
        client.add_user_message(f"Question {number}")
        reply = text_reply(f"Answer {number}")
        # A client that lost its answer asks again.
        for manager in processes[number % 3 : number % 3 + 1 + number % 2]:
            turn = await prepare_request(manager, client.incoming())
            recordings.append(begin_recording(turn, reply))
            await asyncio.sleep(0)
        client.add_reply(reply)
        if not number:  # other processes do not know an unstored message
            await asyncio.gather(*recordings)
    await asyncio.gather(*recordings)
    stored = await stored_threads(managers)
    assert stored == [numbered_dialogue(12)]


async def test_two_continuations_of_one_message_get_a_thread_each(
    managers: Managers,
) -> None:
    """Two processes know the same last message, and a client continues it in both."""
    processes = [managers.open(), managers.open()]
    client = HistoryClient("anthropic")
    client.add_user_message(OPENING[0])
    reply = text_reply(OPENING[1])
    for manager in processes:
        await (await prepare_request(manager, client.incoming())).record(Outcome(200, reply))
    client.add_reply(reply)
    turns = {}
    clients = {}
    for manager, text in zip(processes, ("Left.", "Right."), strict=True):
        clients[text] = deepcopy(client)
        clients[text].add_user_message(text)
        turns[text] = await prepare_request(manager, clients[text].incoming())
    assert len({thread_of(turn) for turn in turns.values()}) == 1, (
        "both expect to continue the same thread"
    )
    threads = {
        text: (await turn.make_response_headers())[THREAD_HEADER] for text, turn in turns.items()
    }
    for manager, (text, turn) in zip(processes, turns.items(), strict=True):
        stored = texts_of(await managers.store.load_history(threads[text]))
        assert stored == [*OPENING, text]
        await turn.record(Outcome(200, reply))
        clients[text].add_reply(reply)
        sent_next = await ask(manager, clients[text], "Next")
        assert thread_of(sent_next) == threads[text]


async def test_names_no_thread_if_the_request_could_not_be_stored(
    managers: Managers,
) -> None:
    manager = managers.open(store=FailingStore(managers.store, {1}))
    client = HistoryClient("openai_chat")
    client.add_user_message("Is anybody there?")
    turn = await prepare_request(manager, client.incoming())
    headers = await turn.make_response_headers()
    assert THREAD_HEADER not in headers
    assert headers["x-everthread-compactions"] == "0"
    await turn.record(Outcome(500))


async def test_recognizes_a_repeated_request_without_searching_the_store(
    managers: Managers,
) -> None:
    store = WatchedStore(managers.store)
    manager = managers.open(store=store)
    client = HistoryClient("anthropic")
    client.add_user_message("Once more, please.")
    reply = text_reply("Gladly.")
    first = await prepare_request(manager, client.incoming())
    await first.record(Outcome(200, reply))
    searches = store.searches
    again = await prepare_request(manager, client.incoming())
    await again.record(Outcome(200, reply))
    assert store.searches == searches
    assert thread_of(again) == thread_of(first)
    stored = await stored_threads(managers)
    assert stored == [["Once more, please.", "Gladly."]]
