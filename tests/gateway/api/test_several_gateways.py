"""Several gateway processes on one store: any of them takes a message for any thread, one at a time answers it."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from everthread.gateway.access.authentication import KeyAuthenticator
from everthread.gateway.access.key_creation import issue_key
from everthread.store.key_records import KeyLimits
from everthread.store.store import Store
from tests.gateway.api.api_setup import (
    FAST_OPTIONS,
    WaitingModel,
    error_of,
    open_api,
)


async def test_any_gateway_takes_messages_and_one_at_a_time_answers(url: str) -> None:
    model = WaitingModel()
    async with open_api(url, model) as one, open_api(url, model) as two:
        thread = await one.create_thread()
        path = f"/api/threads/{thread}"
        answer = await two.read_answer_text(thread, "first")
        assert answer == "re: first"
        hold = model.block_answer_to("held at one")
        held = await one.start_turn(thread, "held at one")
        waiting = asyncio.create_task(two.read_answer_text(thread, "queued at two"))
        turn = (await one.wait_for_turns(thread, 2))[0]["id"]
        # Longer than a lease: it is renewed while the turn runs.
        await asyncio.sleep(2 * FAST_OPTIONS.lease_seconds)
        assert model.started.count("held at one") == 1
        async with two.stream(f"{path}/turns/{turn}/events") as reader:
            hold.set()
            name, data = (await reader.all())[-1]
        assert name == "turn", "a reader at any gateway gets the end"
        assert data["answer"]["text"] == "re: held at one"
        assert (await held).json()["answer"]["text"] == "re: held at one"
        assert await waiting == "re: queued at two"
        model.block_answer_to("stop me")
        running = await one.start_turn(thread, "stop me")
        response = await two.post(f"{path}/cancel")
        assert len(response["turns"]) == 1
        assert error_of(await running) == (409, "cancelled")
        questions = ["first", "held at one", "queued at two", "stop me"]
        history = await two.history(thread)
        assert history[:-1:2] == questions
        assert model.started == questions


async def test_turns_are_charged_to_their_key_whoever_answers(url: str) -> None:
    """The account is the store's."""

    def access(store: Store) -> KeyAuthenticator:
        return KeyAuthenticator(store, cache_seconds=0.0)

    token, key = issue_key(
        tenant="acme",
        scopes=("threads",),
        limits=KeyLimits(tokens=50),
    )
    async with open_api(url, access=access) as one, open_api(url, access=access) as two:
        await one.store.keys.create_key(key)
        thread = await one.create_thread(token)
        await one.read_answer(thread, "a question of a few words", token)
        for api in (one, two):
            refused = await api.send_message(thread, "one more", token)
            for _ in range(50):  # another process's charge takes a moment
                if refused.status_code == 429:
                    break
                await asyncio.sleep(0.1)
                refused = await api.send_message(thread, "one more", token)
            assert error_of(refused) == (429, "tokens_per_day_exceeded")
            await api.get(f"/api/threads/{thread}", token)


async def test_many_messages_at_two_gateways_lose_nothing(url: str) -> None:
    """Each message is answered once, and each answer follows its question."""
    model = WaitingModel()
    options = replace(FAST_OPTIONS, max_queued=50, lease_seconds=5)
    async with (
        open_api(url, model, options=options) as one,
        open_api(url, model, options=options) as two,
    ):
        threads = [await one.create_thread() for _ in range(3)]
        sent = {
            f"{number} in {thread}": api.read_answer_text(thread, f"{number} in {thread}")
            for thread in threads
            for number, api in enumerate((one, two) * 3)
        }
        answers = await asyncio.gather(*sent.values())
        assert answers == [f"re: {text}" for text in sent]
        for thread in threads:
            history = await two.history(thread)
            assert history[1::2] == [f"re: {text}" for text in history[::2]]
            assert sorted(history[::2]) == [f"{n} in {thread}" for n in range(6)]
        assert sorted(model.started) == sorted(sent)
