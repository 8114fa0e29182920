"""Messages are answered in order, reported event by event, and stopped only on request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from everthread.core.messages import text_of
from everthread.errors import ModelError
from tests.gateway.api.api_setup import (
    FAST_OPTIONS,
    STREAM,
    ApiSetup,
    EventReader,
    WaitingModel,
    open_api,
)

SECRET = "-".join(("sk", "proj", "a8Kq2Zt7Wm4Rx9Lp3Vb6" * 2))


def url_in(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.db'}"


async def test_a_turn_as_one_answer_and_as_events(api: ApiSetup) -> None:
    thread = await api.thread(title="Invoices", metadata={"customer": "4711"})
    answer = (await api.say(thread, "one")).json()
    assert (answer["state"], answer["answer"]["text"]) == ("answered", "re: one")
    assert answer["answer"]["usage"]["calls"] == 1
    path = f"/api/threads/{thread}/messages"
    api.model.hold("two")
    async with api.of("ann").stream(
        "POST", path, json={"content": "two"}, headers=STREAM
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = EventReader(response)
        seen: list[tuple[str, Any]] = []
        async for name, data in events:
            seen.append((name, data))
            if data.get("text") == "Wait. ":
                asyncio.get_running_loop().call_later(0.2, api.model.hold("two").set)
    assert b": still here" in events.raw
    names = [name for name, _ in seen]
    said = "".join(data["text"] for name, data in seen if name == "delta")
    assert names[0] == "turn_started"
    assert {"estimate", "request", "usage", "turn_ended"} <= set(names)
    assert said.split() == ["Wait.", "re:", "two"]
    assert (names[-1], seen[-1][1]["answer"]["text"]) == ("turn", "re: two")
    assert await api.history(thread) == ["one", "re: one", "two", "re: two"]
    found = (await api.of("ann").get(f"/api/threads/{thread}")).json()
    assert (found["title"], found["metadata"], found["turns"]) == (
        "Invoices",
        {"customer": "4711"},
        [],
    )


async def test_messages_during_a_turn_wait_and_are_answered_in_order(
    api: ApiSetup,
) -> None:
    thread = await api.thread()
    gate = api.model.hold("one")
    first = asyncio.create_task(api.say(thread, "one"))
    await api.model.until("one")
    queued = [
        await api.say(thread, text, wait=0) for text in ("two", "/usage", "three")
    ]
    assert [item.status_code for item in queued] == [202, 202, 202]
    assert [item.json()["state"] for item in queued] == ["queued"] * 3
    full = await api.say(thread, "four", wait=0)
    assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    shown = (await api.of("ann").get(f"/api/threads/{thread}")).json()["turns"]
    assert [turn["content"] for turn in shown] == ["one", "two", "/usage", "three"]
    gate.set()
    assert (await first).json()["answer"]["text"] == "re: one"
    for item, text in zip(queued, ("re: two", None, "re: three"), strict=True):
        turn = item.json()
        ended = await api.queue.wait(
            await api.queue.turn("acme", turn["id"]), seconds=10
        )
        assert ended.state == "answered"
        assert text is None or (ended.result or {})["text"] == text
    assert api.model.begun == ["one", "two", "three"], (
        "a command is not sent to the model"
    )
    told = ["one", "re: one", "two", "re: two", "three", "re: three"]
    assert await api.history(thread) == told


async def test_the_same_request_again_is_one_turn(api: ApiSetup) -> None:
    thread = await api.thread()
    gate = api.model.hold("pay")
    both = [asyncio.create_task(api.say(thread, "pay", key="k1")) for _ in range(2)]
    await api.model.until("pay")
    gate.set()
    answers = [(await one).json() for one in both]
    assert answers[0] == answers[1]
    assert (await api.say(thread, "pay", key="k1")).json() == answers[0]
    other = await api.say(thread, "pay more", key="k1")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "key_reused")
    assert api.model.begun == ["pay"]


async def test_leaving_stops_nothing_and_coming_back_reads_on(api: ApiSetup) -> None:
    thread = await api.thread()
    gate = api.model.hold("one")
    path = f"/api/threads/{thread}/messages"
    last = 0
    async with api.of("ann").stream(
        "POST", path, json={"content": "one"}, headers=STREAM
    ) as response:
        turn = response.headers["x-everthread-turn"]
        events = EventReader(response)
        async for name, _ in events:
            last += 1
            if name == "delta":
                break
    await asyncio.sleep(0.1)
    assert (await api.queue.turn("acme", turn)).state == "running"
    gate.set()
    again = {"last-event-id": str(last), **STREAM}
    path = f"/api/threads/{thread}/turns/{turn}/events"
    async with api.of("ann").stream("GET", path, headers=again) as response:
        rest = await EventReader(response).all()
    assert "turn_started" not in [name for name, _ in rest]
    assert "".join(data["text"] for name, data in rest if name == "delta").split() == [
        "re:",
        "one",
    ]
    assert rest[-1][1]["state"] == "answered"
    async with api.of("ann").stream(
        "GET", path, headers={"last-event-id": "9999", **STREAM}
    ) as response:
        assert [name for name, _ in await EventReader(response).all()] == ["turn"]


async def test_cancelling_is_its_own_call(api: ApiSetup) -> None:
    thread = await api.thread()
    ann = api.of("ann")
    api.model.hold("one")
    first = asyncio.create_task(api.say(thread, "one"))
    await api.model.until("one")
    second = (await api.say(thread, "two", wait=0)).json()
    third = asyncio.create_task(api.say(thread, "three"))
    await asyncio.sleep(0.1)
    gone = await ann.post(f"/api/threads/{thread}/cancel", json={"turn": second["id"]})
    assert [turn["state"] for turn in gone.json()["turns"]] == ["cancelled"]
    await ann.post(f"/api/threads/{thread}/cancel", json={})
    answer = await first
    assert (answer.status_code, answer.json()["error"]["code"]) == (
        409,
        "cancelled",
    )
    assert (await third).json()["answer"]["text"] == "re: three"
    history = await api.history(thread)
    assert history[0] == "one"
    assert "interrupted" in history[1]
    assert history[2:] == ["three", "re: three"]
    assert (
        await ann.post(f"/api/threads/{thread}/cancel", json={"queued": True})
    ).json() == {"turns": []}


async def test_a_model_that_fails_is_told_and_the_thread_goes_on(
    tmp_path: Path,
) -> None:
    def answers(request: Any) -> Any:
        said = text_of(request.messages[-1])
        return (
            ModelError(f"the key {SECRET} is refused", status=401)
            if said == "bad"
            else "fine"
        )

    async with open_api(url_in(tmp_path), WaitingModel(answers)) as setup:
        thread = await setup.thread()
        bad = await setup.say(thread, "bad")
        assert (bad.status_code, bad.json()["error"]["code"]) == (502, "model_failed")
        assert SECRET not in bad.text
        assert (await setup.say(thread, "good")).json()["answer"]["text"] == "fine"
        assert (await setup.history(thread))[0] == "bad"


async def test_closing_lets_turns_end_and_keeps_what_waits(tmp_path: Path) -> None:
    model = WaitingModel()
    gate = model.hold("one")
    async with open_api(url_in(tmp_path), model) as setup:
        thread = await setup.thread()
        first = asyncio.create_task(setup.say(thread, "one"))
        await model.until("one")
        second = asyncio.create_task(setup.say(thread, "two"))
        while (  # noqa: ASYNC110
            len((await setup.of("ann").get(f"/api/threads/{thread}")).json()["turns"])
            < 2
        ):
            await asyncio.sleep(0.01)
        asyncio.get_running_loop().call_later(0.2, gate.set)
    assert (await first).json()["answer"]["text"] == "re: one"
    assert (await second).status_code == 202
    async with open_api(url_in(tmp_path)) as later:
        turn = await later.queue.turn("acme", (await second).json()["id"])
        assert (await later.queue.wait(turn, seconds=10)).state == "answered"
        assert await later.history(thread) == ["one", "re: one", "two", "re: two"]


async def test_closing_interrupts_what_does_not_end(tmp_path: Path) -> None:
    model = WaitingModel()
    model.hold("one")
    async with open_api(url_in(tmp_path), model, grace_seconds=2.2) as setup:
        thread = await setup.thread()
        first = asyncio.create_task(setup.say(thread, "one"))
        await model.until("one")
    answer = await first
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "interrupted")
    async with open_api(url_in(tmp_path)) as later:
        assert (await later.say(thread, "two")).json()["answer"]["text"] == "re: two", (
            "the lease was given back"
        )
        assert "interrupted" in (await later.history(thread))[1]


async def test_hygiene_before_a_turn(tmp_path: Path) -> None:
    """At 85 % of the window, if the usual threshold is higher."""
    text = (
        "the ledger of the northern branch was settled and compared twice with its receipt. "
        * 30
    )
    settings = "compression: {threshold: 0.95, background: false}"
    async with open_api(
        url_in(tmp_path),
        WaitingModel(lambda _: "Noted.", window=9_000),
        settings=settings,
    ) as setup:
        thread = await setup.thread()
        for number in range(17):
            answer = await setup.say(thread, f"{number}: {text}")
            assert answer.status_code == 200, answer.text
        records = await setup.store.compactions(thread)
        assert records
        assert {record.record.reason for record in records} == {"hygiene"}


async def test_hygiene_that_fails_is_told_and_drops_nothing(tmp_path: Path) -> None:
    async def broken() -> None:
        raise ZeroDivisionError("the engine has a fault")

    def spoiled(opened: Any) -> Any:
        async def spoil(**given: Any) -> Any:
            agent = await opened(**given)
            agent.conversation.compact_for_hygiene = broken
            return agent

        return spoil

    async with open_api(url_in(tmp_path), wrap=spoiled) as setup:
        thread = await setup.thread()
        path = f"/api/threads/{thread}/messages"
        async with setup.of("ann").stream(
            "POST", path, json={"content": "one"}, headers=STREAM
        ) as response:
            events = dict(await EventReader(response).all())
        assert "the engine has a fault" in events["compaction_failed"]["error"]
        assert events["turn"]["answer"]["text"] == "re: one"


async def test_agents_are_closed_when_there_are_too_many(tmp_path: Path) -> None:
    options = FAST_OPTIONS.__class__(
        queue=3, agents=2, poll_seconds=0.03, lease_seconds=5
    )
    async with open_api(url_in(tmp_path), options=options) as setup:
        threads = [await setup.thread() for _ in range(5)]
        for _ in range(2):
            answers = await asyncio.gather(
                *(setup.say(thread, f"in {thread}") for thread in threads)
            )
            for thread, answer in zip(threads, answers, strict=True):
                assert answer.json()["answer"]["text"] == f"re: in {thread}"
        for thread in threads:
            assert len(await setup.history(thread)) == 4
