"""Several gateway processes on one store: any of them takes a message for any thread, one at a time answers it."""

from __future__ import annotations

import asyncio

from everthread.core.messages import text_of
from everthread.gateway.access.authentication import KeyAuthenticator
from everthread.gateway.access.key_creation import issue_key
from everthread.store.key_records import KeyLimits
from everthread.store.store import Store
from tests.gateway.api.api_setup import (
    FAST_OPTIONS,
    STREAM,
    EventReader,
    WaitingModel,
    open_api,
)


async def test_two_gateways_on_one_store(url: str) -> None:
    model = WaitingModel()
    async with open_api(url, model) as one, open_api(url, model) as two:
        thread = await one.thread()
        assert (await two.say(thread, "first, at two")).json()["answer"][
            "text"
        ] == "re: first, at two"
        gate = model.hold("held at one")
        held = asyncio.create_task(one.say(thread, "held at one"))
        await model.until("held at one")
        waiting = asyncio.create_task(two.say(thread, "queued at two"))
        path = f"/api/threads/{thread}"
        while len((await one.of("ann").get(path)).json()["turns"]) < 2:  # noqa: ASYNC110 - as a client
            await asyncio.sleep(0.01)
        # Longer than a lease: it is renewed while the turn runs.
        await asyncio.sleep(2 * FAST_OPTIONS.lease_seconds)
        assert model.begun.count("held at one") == 1
        turn = (await two.of("ann").get(path)).json()["turns"][0]["id"]
        read = two.of("ann").stream(
            "GET", f"{path}/turns/{turn}/events", headers=STREAM
        )
        async with read as response:
            gate.set()
            elsewhere = await EventReader(response).all()
        assert elsewhere[-1][0] == "turn", (
            "whichever process answers, a reader at any of them is told the end"
        )
        assert elsewhere[-1][1]["answer"]["text"] == "re: held at one"
        assert (await held).json()["answer"]["text"] == "re: held at one"
        assert (await waiting).json()["answer"]["text"] == "re: queued at two"
        gate = model.hold("stop me")
        running = asyncio.create_task(one.say(thread, "stop me"))
        await model.until("stop me")
        stopped = await two.of("ann").post(f"{path}/cancel", json={})
        assert len(stopped.json()["turns"]) == 1
        assert (await running).json()["error"]["code"] == "cancelled"
        said = ["first, at two", "held at one", "queued at two", "stop me"]
        assert [text for text in await two.history(thread) if "re: " not in text][
            :-1
        ] == said
        assert model.begun == said


async def test_what_turns_use_is_paid_by_their_key(url: str) -> None:
    """Also where another process answers: the account is the store's."""

    def access(store: Store) -> KeyAuthenticator:
        return KeyAuthenticator(store, ttl=0.0)

    token, key = issue_key(
        tenant="acme", scopes=("threads",), limits=KeyLimits(tokens=50)
    )
    async with open_api(url, access=access) as one, open_api(url, access=access) as two:
        await one.store.create_key(key)
        thread = await one.thread(token)
        assert (
            await one.say(thread, "a question of a few words", token)
        ).status_code == 200
        for home in (one, two):
            refused = await home.say(thread, "one more", token)
            for _ in range(50):  # what another process charged is known a moment later
                if refused.status_code == 429:
                    break
                await asyncio.sleep(0.1)
                refused = await home.say(thread, "one more", token)
            assert (refused.status_code, refused.json()["error"]["code"]) == (
                429,
                "tokens_per_day_exceeded",
            )
            assert (
                await home.of(token).get(f"/api/threads/{thread}")
            ).status_code == 200


async def test_many_messages_at_two_gateways_lose_nothing(url: str) -> None:
    """Each message is answered once, and each answer follows its question."""
    model = WaitingModel()
    options = FAST_OPTIONS.__class__(
        queue=50, lease_seconds=5, poll_seconds=0.02, sweep_seconds=0.2
    )
    async with (
        open_api(url, model, options=options) as one,
        open_api(url, model, options=options) as two,
    ):
        threads = [await one.thread() for _ in range(3)]
        texts = [
            (thread, f"{number} in {thread[:4]}")
            for number in range(6)
            for thread in threads
        ]
        sent = [
            house.say(thread, text)
            for (thread, text), house in zip(texts, [one, two] * 9, strict=True)
        ]
        answers = await asyncio.gather(*sent)
        for (_, text), answer in zip(texts, answers, strict=True):
            assert answer.json()["answer"]["text"] == f"re: {text}"
        for thread in threads:
            history = await two.history(thread)
            assert history[1::2] == [f"re: {text}" for text in history[::2]]
            assert sorted(history[::2]) == sorted(
                text for at, text in texts if at == thread
            )
        assert all(text_of(request.messages[-1]) for request in model.requests)
        assert len(model.begun) == len(texts)
