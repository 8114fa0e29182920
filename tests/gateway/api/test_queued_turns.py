"""Messages are answered in order, reported event by event, and stopped only on request."""

from __future__ import annotations

import asyncio
from typing import Any

from everthread.core.messages import text_of
from everthread.errors import ModelError
from tests.gateway.api.api_setup import (
    FAST_OPTIONS,
    ApiGateway,
    WaitingModel,
    error_of,
    open_api,
)

SECRET = "-".join(("sk", "proj", "a8Kq2Zt7Wm4Rx9Lp3Vb6" * 2))
FILLER = "the ledger of the northern branch was settled and compared twice. " * 38


async def test_answers_with_json_or_with_events(api: ApiGateway) -> None:
    thread = await api.create_thread(title="Invoices", metadata={"customer": "4711"})
    answer = await api.read_answer(thread, "one")
    assert answer["text"] == "re: one"
    assert answer["usage"]["calls"] == 1
    hold = api.model.block_answer_to("two")
    seen: list[tuple[str, Any]] = []
    async with api.stream(f"/api/threads/{thread}/messages", "two") as events:
        assert events.headers["content-type"].startswith("text/event-stream")
        async for name, data in events:
            seen.append((name, data))
            if data.get("text") == "Wait. ":
                asyncio.get_running_loop().call_later(0.2, hold.set)
    assert b": still here" in events.raw
    names = [name for name, _ in seen]
    assert names[0] == "turn_started"
    assert {"estimate", "request", "usage", "turn_ended"} <= set(names)
    text = "".join(data["text"] for name, data in seen if name == "delta")
    assert text.split() == ["Wait.", "re:", "two"]
    assert names[-1] == "turn"
    assert seen[-1][1]["answer"]["text"] == "re: two"
    history = await api.history(thread)
    assert history == ["one", "re: one", "two", "re: two"]
    details = await api.get(f"/api/threads/{thread}")
    assert details["title"] == "Invoices"
    assert details["metadata"] == {"customer": "4711"}
    assert details["turns"] == []


async def test_queues_messages_during_a_turn_and_answers_them_in_order(
    api: ApiGateway,
) -> None:
    thread = await api.create_thread()
    hold = api.model.block_answer_to("one")
    first = await api.start_turn(thread, "one")
    queued = []
    for text in ("two", "/usage", "three"):
        answer = await api.send_message(thread, text, wait=0)
        assert answer.status_code == 202
        assert answer.json()["state"] == "queued"
        queued.append(answer.json()["id"])
    full = await api.send_message(thread, "four", wait=0)
    assert error_of(full) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    contents = [turn["content"] for turn in await api.open_turns(thread)]
    assert contents == ["one", "two", "/usage", "three"]
    hold.set()
    assert (await first).json()["answer"]["text"] == "re: one"
    for turn in queued:
        ended = await api.queue.wait(await api.queue.load_turn("acme", turn), seconds=10)
        assert ended.state == "answered"
    assert api.model.started == ["one", "two", "three"], "no model sees a command"
    history = await api.history(thread)
    assert history == [
        "one",
        "re: one",
        "two",
        "re: two",
        "three",
        "re: three",
    ]


async def test_repeating_a_request_with_its_key_is_one_turn(api: ApiGateway) -> None:
    thread = await api.create_thread()
    hold = api.model.block_answer_to("pay")
    both = [asyncio.create_task(api.send_message(thread, "pay", key="k1")) for _ in range(2)]
    await api.model.wait_until_asked("pay")
    hold.set()
    answers = [(await one).json() for one in both]
    assert answers[0] == answers[1]
    response = await api.send_message(thread, "pay", key="k1")
    assert response.json() == answers[0]
    other = await api.send_message(thread, "pay more", key="k1")
    assert error_of(other) == (409, "key_reused")
    assert api.model.started == ["pay"]


async def test_a_client_that_leaves_stops_nothing_and_can_read_on(
    api: ApiGateway,
) -> None:
    thread = await api.create_thread()
    hold = api.model.block_answer_to("one")
    last_event = 0
    async with api.stream(f"/api/threads/{thread}/messages", "one") as events:
        turn = events.headers["x-everthread-turn"]
        async for name, _ in events:
            last_event += 1
            if name == "delta":
                break
    await asyncio.sleep(0.1)
    assert (await api.queue.load_turn("acme", turn)).state == "running"
    hold.set()
    path = f"/api/threads/{thread}/turns/{turn}/events"
    async with api.stream(path, last_event=last_event) as events:
        rest = await events.all()
    assert "turn_started" not in [name for name, _ in rest]
    text = "".join(data["text"] for name, data in rest if name == "delta")
    assert text.split() == ["re:", "one"]
    assert rest[-1][1]["state"] == "answered"
    async with api.stream(path, last_event=9_999) as events:
        assert [name for name, _ in await events.all()] == ["turn"]


async def test_cancels_a_queued_or_the_running_turn(api: ApiGateway) -> None:
    thread = await api.create_thread()
    cancel = f"/api/threads/{thread}/cancel"
    api.model.block_answer_to("one")
    first = await api.start_turn(thread, "one")
    second = (await api.send_message(thread, "two", wait=0)).json()
    third = asyncio.create_task(api.send_message(thread, "three"))
    await asyncio.sleep(0.1)
    stopped = await api.post(cancel, turn=second["id"])
    states = [turn["state"] for turn in stopped["turns"]]
    assert states == ["cancelled"]
    await api.post(cancel)
    assert error_of(await first) == (409, "cancelled")
    assert (await third).json()["answer"]["text"] == "re: three"
    history = await api.history(thread)
    assert history[0] == "one"
    assert "interrupted" in history[1]
    assert history[2:] == ["three", "re: three"]
    response = await api.post(cancel, queued=True)
    assert response == {"turns": []}


async def test_reports_a_model_failure_and_continues_the_thread(
    store_url: str,
) -> None:
    def answer(request: Any) -> Any:
        if text_of(request.messages[-1]) == "bad":
            return ModelError(f"the key {SECRET} is refused", status=401)
        return "fine"

    async with open_api(store_url, WaitingModel(answer)) as api:
        thread = await api.create_thread()
        bad = await api.send_message(thread, "bad")
        assert error_of(bad) == (502, "model_failed")
        assert SECRET not in bad.text
        assert await api.read_answer_text(thread, "good") == "fine"
        history = await api.history(thread)
        assert history[0] == "bad"


async def test_closing_lets_a_turn_end_and_keeps_waiting_messages(
    store_url: str,
) -> None:
    model = WaitingModel()
    hold = model.block_answer_to("one")
    async with open_api(store_url, model) as api:
        thread = await api.create_thread()
        first = await api.start_turn(thread, "one")
        second = asyncio.create_task(api.send_message(thread, "two"))
        await api.wait_for_turns(thread, 2)
        asyncio.get_running_loop().call_later(0.2, hold.set)
    assert (await first).json()["answer"]["text"] == "re: one"
    waiting = await second
    assert waiting.status_code == 202
    async with open_api(store_url) as later:
        turn = await later.queue.load_turn("acme", waiting.json()["id"])
        result = await later.queue.wait(turn, seconds=10)
        assert result.state == "answered"
        history = await later.history(thread)
        assert history == ["one", "re: one", "two", "re: two"]


async def test_closing_interrupts_a_turn_that_does_not_end(store_url: str) -> None:
    model = WaitingModel()
    model.block_answer_to("one")
    async with open_api(store_url, model, grace_seconds=2.2) as api:
        thread = await api.create_thread()
        first = await api.start_turn(thread, "one")
    assert error_of(await first) == (503, "interrupted")
    async with open_api(store_url) as later:
        answer = await later.read_answer_text(thread, "two")
        assert answer == "re: two", "the lease was given back"
        history = await later.history(thread)
        assert "interrupted" in history[1]


async def test_compacts_a_history_over_85_percent_before_the_turn(
    store_url: str,
) -> None:
    model = WaitingModel(lambda _: "Noted.", window=9_000)
    settings = "compression: {threshold: 0.95, background: false}"
    async with open_api(store_url, model, settings=settings) as api:
        thread = await api.create_thread()
        for number in range(17):
            await api.read_answer(thread, f"{number}: {FILLER}")
        records = await api.store.list_compactions(thread)
        assert records
        reasons = {record.record.reason for record in records}
        assert reasons == {"hygiene"}


async def test_a_failing_compaction_before_a_turn_is_reported_and_drops_nothing(
    store_url: str,
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError("the engine has a fault")

    def break_compaction(open_agent: Any) -> Any:
        async def open_broken_agent(**options: Any) -> Any:
            agent = await open_agent(**options)
            agent.conversation.compact_before_incoming = fail
            return agent

        return open_broken_agent

    async with open_api(store_url, wrap=break_compaction) as api:
        thread = await api.create_thread()
        async with api.stream(f"/api/threads/{thread}/messages", "one") as reader:
            events = dict(await reader.all())
        assert "the engine has a fault" in events["compaction_failed"]["error"]
        assert events["turn"]["answer"]["text"] == "re: one"


async def test_closes_surplus_agents_and_opens_them_again(store_url: str) -> None:
    options = FAST_OPTIONS.__class__(
        max_queued=3,
        max_agents=2,
        poll_seconds=0.03,
        lease_seconds=5,
    )
    async with open_api(store_url, options=options) as api:
        threads = [await api.create_thread() for _ in range(5)]
        for _ in range(2):
            questions = (api.read_answer_text(thread, f"in {thread}") for thread in threads)
            answers = await asyncio.gather(*questions)
            assert answers == [f"re: in {thread}" for thread in threads]
        for thread in threads:
            history = await api.history(thread)
            assert len(history) == 4
