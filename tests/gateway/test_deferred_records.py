"""Requests of a thread that follow each other at once are recorded together, and nothing is lost by that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anthropic
import httpx2
import pytest

from everthread.config import parse_config
from everthread.core.types import Api
from everthread.factory.gateways import open_gateway
from everthread.gateway.contracts import THREAD_HEADER
from everthread.gateway.managed.forwarded_handler import ForwardedHandler
from everthread.gateway.managed.manager import ProxyManager
from everthread.gateway.router import Upstream
from everthread.store.rewrite_records import ThreadLink
from everthread.store.store import Store
from everthread.thread.events import Branched, UsageRecorded
from tests.apis import APIS
from tests.gateway.forwarding_setup import (
    answer_outcome,
    begin_turn,
    send_and_record,
    stored_texts,
)
from tests.gateway.gateway_setup import Gateways, ask_claude
from tests.gateway.manager_setup import HistoryClient, Managers, text_of_tokens
from tests.gateway.store_wrappers import CountingStore

OPENING = text_of_tokens(900, "größer")
NEVER = 3_600.0
"""A delay that does not end within a test."""


@dataclass
class EagerClient:
    """A client that sends its next request as soon as it has an answer. `texts` is its conversation."""

    store: Store
    manager: ProxyManager
    client: HistoryClient
    texts: list[str]
    thread: str
    recording: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    async def begin(
        cls,
        managers: Managers,
        manager: ProxyManager,
        api: Api = "anthropic",
        **options: Any,
    ) -> EagerClient:
        """Return a client whose thread is known to the gateway."""
        client = HistoryClient(api, **options)
        turn = await send_and_record(manager, client, OPENING)
        texts = [OPENING, "Yes."]
        return cls(
            managers.store,
            manager,
            client,
            texts=texts,
            thread=turn.thread,
        )

    async def ask(self, question: str) -> str:
        """Ask and be answered; the answer is recorded later. Return the thread that the gateway names."""
        self.client.add_user_message(question)
        turn = await begin_turn(self.manager, self.client)
        thread = (await turn.make_response_headers())[THREAD_HEADER]
        answer = f"Answer to {question}"
        outcome = answer_outcome(self.client, answer)
        self.recording.append(asyncio.create_task(turn.record(outcome)))
        await asyncio.sleep(0)
        self.texts += [question, answer]
        return thread

    async def ask_all(self, questions: Sequence[str]) -> None:
        for question in questions:
            assert await self.ask(question) == self.thread

    async def count_stored_texts(self) -> int:
        texts = await stored_texts(self.store, self.thread)
        return len(texts)

    async def assert_everything_is_stored(self) -> None:
        """Check that the stored thread holds exactly the texts of the conversation."""
        texts = await stored_texts(self.store, self.thread)
        assert texts == self.texts

    def kill(self) -> None:
        """End the recording, as if the gateway had been killed."""
        for task in self.recording:
            task.cancel()


@pytest.fixture
def managers(managers: Managers) -> Managers:
    managers.window = 40_000
    return managers


@pytest.fixture
async def eager_client(managers: Managers) -> EagerClient:
    """A client of a gateway that has its store for itself and defers records without end."""
    manager = managers.open(is_sole_writer=True, record_delay=NEVER)
    return await EagerClient.begin(managers, manager)


@pytest.mark.parametrize("api", APIS)
async def test_records_quick_requests_together(managers: Managers, api: Api) -> None:
    store = CountingStore(managers.store)
    managers.store = cast("Store", store)
    manager = managers.open(is_sole_writer=True, record_delay=NEVER)
    eager_client = await EagerClient.begin(managers, manager, api)
    store.count = 0
    await eager_client.ask_all([f"Question {number}, größer?" for number in range(6)])
    assert await eager_client.count_stored_texts() == 2
    await manager.deferred_records.flush_all()
    assert store.count == 1
    await eager_client.assert_everything_is_stored()
    usage = await managers.store.usage.list_usage(eager_client.thread)
    assert len(usage) == 7
    assert len(managers.events_of(UsageRecorded)) == 7
    assert not managers.events_of(Branched)
    await eager_client.ask_all(["And now?"])
    await manager.deferred_records.flush_all()
    await eager_client.assert_everything_is_stored()


async def test_records_after_a_short_delay(managers: Managers) -> None:
    manager = managers.open(is_sole_writer=True, record_delay=0.02)
    eager_client = await EagerClient.begin(managers, manager)
    await eager_client.ask("Anything else?")
    async with asyncio.timeout(60):
        await asyncio.gather(*eager_client.recording)
    await eager_client.assert_everything_is_stored()


async def test_records_once_too_many_requests_wait(
    managers: Managers,
    eager_client: EagerClient,
) -> None:
    await eager_client.ask_all([f"Question {number}?" for number in range(20)])
    async with asyncio.timeout(60):
        await eager_client.recording[0]
    texts = await stored_texts(managers.store, eager_client.thread)
    assert 20 <= len(texts) < len(eager_client.texts)
    assert texts == eager_client.texts[: len(texts)]
    await eager_client.manager.deferred_records.flush_all()
    await eager_client.assert_everything_is_stored()


async def test_records_long_questions_soon(managers: Managers, eager_client: EagerClient) -> None:
    managers.window = 400_000
    await eager_client.ask_all([f"{number} {text_of_tokens(8_000, 'long')}" for number in range(3)])
    async with asyncio.timeout(60):
        await eager_client.recording[0]
    assert await eager_client.count_stored_texts() >= 6


async def test_records_interleaved_threads_apart(managers: Managers) -> None:
    manager = managers.open(is_sole_writer=True, record_delay=NEVER)
    headers = [{"x-session-id": f"session {number}"} for number in range(3)]
    clients = [await EagerClient.begin(managers, manager, headers=one) for one in headers]
    for number in range(5):
        for client in clients:
            await client.ask_all([f"Question {number}?"])
    await manager.deferred_records.flush_all()
    assert len({client.thread for client in clients}) == 3
    for client in clients:
        texts = await stored_texts(managers.store, client.thread)
        assert texts == client.texts
        usage = await managers.store.usage.list_usage(client.thread)
        assert len(usage) == 6


@pytest.mark.parametrize("alone", [True, False])
async def test_the_next_request_stores_what_a_killed_gateway_had_not_recorded(
    managers: Managers, *, alone: bool
) -> None:
    eager_client = await EagerClient.begin(
        managers, managers.open(is_sole_writer=True, record_delay=NEVER)
    )
    await eager_client.ask_all(["First?", "Second?", "Third?"])
    eager_client.kill()
    eager_client.manager = managers.open(is_sole_writer=alone)
    assert await eager_client.ask("Is it all there?") == eager_client.thread
    await asyncio.gather(*eager_client.recording, return_exceptions=True)
    await eager_client.assert_everything_is_stored()


async def test_another_gateway_may_store_the_next_request_first(
    managers: Managers,
    eager_client: EagerClient,
) -> None:
    await eager_client.ask_all(["First?", "Second?"])
    first_manager = eager_client.manager
    eager_client.manager = managers.open()
    assert await eager_client.ask("Third?") == eager_client.thread
    await eager_client.recording[-1]
    await first_manager.deferred_records.flush_all()
    await eager_client.assert_everything_is_stored()
    usage = await managers.store.usage.list_usage(eager_client.thread)
    assert len(usage) == 4
    assert not managers.events_of(Branched)
    eager_client.manager = first_manager
    await eager_client.ask("Fourth?")
    await first_manager.deferred_records.flush_all()
    await eager_client.assert_everything_is_stored()
    assert not managers.events_of(Branched)


async def test_nothing_waits_if_another_gateway_uses_the_store(
    managers: Managers,
) -> None:
    manager = managers.open(is_sole_writer=False, record_delay=NEVER)
    eager_client = await EagerClient.begin(managers, manager)
    await eager_client.ask("Anything else?")
    async with asyncio.timeout(60):
        await asyncio.gather(*eager_client.recording)
    await eager_client.assert_everything_is_stored()


async def test_a_request_read_before_forwarding_sees_waiting_records(
    managers: Managers,
    eager_client: EagerClient,
) -> None:
    """Another encoding of the same history continues its thread, and an earlier question asked anew is a branch."""
    await eager_client.ask_all(["First?", "Second?"])
    eager_client.client.extra = {"temperature": 0.5}
    assert await eager_client.ask("Third, with another setting?") == eager_client.thread
    await eager_client.recording[-1]
    await eager_client.assert_everything_is_stored()
    await eager_client.ask_all(["Fourth?"])
    changed = HistoryClient("anthropic", messages=eager_client.client.messages[:-4])
    changed.add_user_message("Something else instead?")
    turn = await begin_turn(eager_client.manager, changed)
    assert not isinstance(turn, ForwardedHandler)
    assert turn.thread != eager_client.thread
    await turn.record(answer_outcome(changed))
    await eager_client.manager.deferred_records.flush_all()
    await eager_client.assert_everything_is_stored()
    branch = [
        *eager_client.texts[:-4],
        "Something else instead?",
        "Yes.",
    ]
    texts = await stored_texts(managers.store, turn.thread)
    assert texts == branch
    assert len(managers.events_of(Branched)) == 1


async def test_two_requests_at_once_do_not_mix(
    managers: Managers, eager_client: EagerClient
) -> None:
    """Both continue an answer that is not recorded: one continues the thread, the other is a branch."""
    await eager_client.ask_all(["First?"])
    other = HistoryClient("anthropic", messages=list(eager_client.client.messages))
    other.add_user_message("At the same time?")
    turn = await begin_turn(eager_client.manager, other)
    await eager_client.ask_all(["Second?"])
    await turn.record(answer_outcome(other))
    await eager_client.manager.deferred_records.flush_all()
    await eager_client.assert_everything_is_stored()
    [branched] = managers.events_of(Branched)
    expected = [*eager_client.texts[:-2], "At the same time?", "Yes."]
    texts = await stored_texts(managers.store, branched.session)
    assert texts == expected


async def test_another_thread_of_the_session_triggers_the_record(
    managers: Managers,
) -> None:
    manager = managers.open(is_sole_writer=True, record_delay=NEVER)
    headers = {"x-session-id": "one"}
    eager_client = await EagerClient.begin(managers, manager, headers=headers)
    await eager_client.ask_all(["First?"])
    elsewhere = HistoryClient("anthropic", headers={"x-session-id": "two"})
    await send_and_record(manager, elsewhere, "Hello from another session")
    assert await eager_client.count_stored_texts() == 2
    compacted = HistoryClient("anthropic", headers=headers)
    await send_and_record(manager, compacted, "A summary of what was said")
    await eager_client.assert_everything_is_stored()


async def test_records_a_call_without_an_answer_at_once(
    managers: Managers,
    eager_client: EagerClient,
) -> None:
    await eager_client.ask_all(["First?"])
    eager_client.client.add_user_message("Second?")
    turn = await begin_turn(eager_client.manager, eager_client.client)
    assert isinstance(turn, ForwardedHandler)
    outcome = answer_outcome(eager_client.client)
    assert outcome.reply is not None
    unfinished = replace(outcome, reply=replace(outcome.reply, stop=None))
    async with asyncio.timeout(60):
        await turn.record(unfinished)
    texts = await stored_texts(managers.store, eager_client.thread)
    assert texts == [*eager_client.texts, "Second?"]


async def test_a_slow_answer_does_not_delay_the_record_before_it(
    managers: Managers, eager_client: EagerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.gateway.managed.forwarded_handler.READ_DELAY_SECONDS", 0.01)
    await eager_client.ask_all(["First?"])
    eager_client.client.add_user_message("Second, to be thought about?")
    turn = await begin_turn(eager_client.manager, eager_client.client)
    async with asyncio.timeout(60):
        await eager_client.recording[0]
    await eager_client.assert_everything_is_stored()
    await turn.record(answer_outcome(eager_client.client))
    texts = [
        *eager_client.texts,
        "Second, to be thought about?",
        "Yes.",
    ]
    stored = await stored_texts(managers.store, eager_client.thread)
    assert stored == texts


async def test_a_closing_manager_stores_its_waiting_records(eager_client: EagerClient) -> None:
    await eager_client.ask_all(["First?", "Second?"])
    await eager_client.manager.close()
    await eager_client.assert_everything_is_stored()


async def test_a_slow_store_does_not_delay_a_request_of_the_session(
    managers: Managers, eager_client: EagerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everthread.gateway.managed.deferred_records.MAX_FLUSH_SECONDS", 0.05)
    await eager_client.ask_all(["First?"])
    store = managers.store
    release = asyncio.Event()
    extend = store.client_histories.extend_thread

    async def wait_and_extend(*given: Any) -> list[ThreadLink | None]:
        await release.wait()
        return await extend(*given)

    monkeypatch.setattr(store.client_histories, "extend_thread", wait_and_extend)
    eager_client.client.extra = {"temperature": 0.5}
    eager_client.client.add_user_message("Second?")
    async with asyncio.timeout(60):
        turn = await begin_turn(eager_client.manager, eager_client.client)
    assert turn.thread == eager_client.thread
    release.set()
    await turn.record(answer_outcome(eager_client.client))
    await eager_client.manager.deferred_records.flush_all()
    texts = [*eager_client.texts, "Second?", "Yes."]
    stored = await stored_texts(store, eager_client.thread)
    assert stored == texts


async def talk(client: anthropic.AsyncAnthropic, turns: int) -> list[str]:
    """Ask this many times without a pause; return the texts of the conversation."""
    messages: list[Any] = []
    texts: list[str] = []
    for number in range(turns):
        texts.append(f"Question {number}: {OPENING}")
        messages.append({"role": "user", "content": texts[-1]})
        answer = await ask_claude(client, messages)
        content = [block.model_dump(exclude_none=True) for block in answer.content]
        messages.append({"role": "assistant", "content": content})
        texts.append(content[0]["text"])
    return texts


async def test_the_api_shows_the_latest_answer(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    url = await gateways.start()
    key = await gateways.create_key(scopes=("proxy", "threads"))
    texts = await talk(gateways.anthropic_client(url, key), 4)
    [row] = await gateways.store.list_threads()
    thread = row.first.id
    response = await http.get(
        f"{url}/api/threads/{thread}/history",
        headers={"authorization": f"Bearer {key}"},
    )
    assert response.status_code == 200, response.text
    assert "Question 3" in response.text
    stored = await stored_texts(gateways.store, thread)
    assert stored == texts


async def test_a_stopping_gateway_stores_the_last_answers(
    gateways: Gateways,
) -> None:
    upstreams = [Upstream("lab", gateways.provider.url, api_key="k")]
    config = parse_config("gateway: {port: 0}")
    async with open_gateway(
        config, auth="keys", store=gateways.store, upstreams=upstreams
    ) as gateway:
        key = await gateways.create_key()
        texts = await talk(gateways.anthropic_client(gateway.url, key), 6)
    [row] = await gateways.store.list_threads()
    thread = row.first.id
    stored = await stored_texts(gateways.store, thread)
    assert stored == texts
    usage = await gateways.store.usage.list_usage(thread)
    assert len(usage) == 6


async def test_a_key_cannot_spend_more_while_its_calls_wait_to_be_recorded(
    gateways: Gateways,
) -> None:
    url = await gateways.start()
    key = await gateways.create_key(tokens=3_000)
    with pytest.raises(anthropic.RateLimitError):
        await talk(gateways.anthropic_client(url, key), 50)
    [row] = await gateways.store.list_threads()
    thread = row.first.id
    calls = [record.usage.total_tokens for record in await gateways.store.usage.list_usage(thread)]
    assert sum(calls[:-1]) <= 3_000
