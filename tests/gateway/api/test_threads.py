"""A thread through the API: compacted, undone, branched, searched, counted, and given commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from everthread.config import parse_config
from everthread.core.messages import text_of
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.api.api_setup import ApiGateway, WaitingModel, error_of, open_api
from tests.gateway.gateway_setup import FILLER
from tests.gateway.manager_setup import statuses_of


@dataclass
class Ledger:
    """A thread with twelve questions and answers that was compacted once."""

    api: ApiGateway
    thread: str

    async def get(self, path: str, **params: str) -> Any:
        return await self.api.get(f"/api/threads/{self.thread}{path}", **params)

    async def post(self, path: str, **body: Any) -> Any:
        return await self.api.post(f"/api/threads/{self.thread}{path}", **body)


@pytest.fixture
async def ledger(store_url: str) -> AsyncIterator[Ledger]:
    model = WaitingModel(lambda _: "Noted.", window=16_000)
    async with open_api(store_url, model) as api:
        new_ledger = Ledger(api, await api.create_thread(title="Ledger"))
        for number in range(12):
            await api.read_answer(new_ledger.thread, f"Entry {number} zebra{number}: {FILLER * 24}")
        preview = await new_ledger.post("/compress", preview=True)
        assert "Nothing was changed" in preview["text"]
        history = await api.history(new_ledger.thread, "current")
        assert len(history) == 24
        done = await new_ledger.post("/compress", focus="zebra3")
        assert done["data"]["changed"] is True, done["text"]
        yield new_ledger


async def test_a_compaction_can_be_counted_and_undone(ledger: Ledger) -> None:
    full_history = await ledger.api.history(ledger.thread)
    assert len(full_history) == 24
    assert full_history[0].startswith("Entry 0 zebra0:")
    history = await ledger.api.history(ledger.thread, "current")
    assert len(history) < 24
    page = await ledger.get("/history", limit="10", offset="20")
    assert len(page["items"]) == 4
    assert page["next"] is None
    response = await ledger.get("/history", limit="4")
    assert response["next"] == 4
    response = await ledger.get("")
    assert response["compactions"] == 1
    insights = await ledger.api.get("/api/insights?days=2")
    assert insights["threads"] == 1
    assert insights["compactions"] == 1
    assert insights["total"]["calls"] >= 12
    response = await ledger.post("/undo")
    assert response["data"]["messages"] == 24
    response = await ledger.post("/undo")
    assert response["data"] == {"undone": False}
    state = await ledger.get("/state")
    assert state["thread"] == ledger.thread
    assert state["messages"] == 24
    assert state["open_errors"] == []
    response = await ledger.get("/usage")
    assert response["sums"]["main"]["calls"] == 12


async def test_compacted_messages_are_found_and_can_be_branched_at(
    ledger: Ledger,
) -> None:
    api = ledger.api
    hits = (await ledger.get("/search", q="zebra3"))["items"]
    threads = {hit["thread"] for hit in hits}
    assert threads == {ledger.thread}
    (hit,) = [hit for hit in hits if hit["role"] == "user"]
    answer = {
        "role": "assistant",
        "tool": "",
        "text": "Noted.",
    }
    assert hit["before"] == {"message": hit["message"] - 1, **answer}
    assert hit["after"] == {"message": hit["message"] + 1, **answer}
    everywhere = await api.get("/api/search", q="zebra3", role="user")
    messages = [one["message"] for one in everywhere["items"]]
    assert messages == [hit["message"]]
    branch = await ledger.post("/branch", title="Other way", at_message=hit["message"])
    assert branch["kind"] == "branch"
    assert branch["title"] == "Other way"
    history = await api.history(branch["id"])
    assert len(history) == 7
    assert await api.read_answer_text(branch["id"], "go on here") == "Noted."
    listed = (await api.get("/api/threads"))["items"]
    assert {item["id"]: item["messages"] for item in listed} == {
        ledger.thread: 24,
        branch["id"]: 9,
    }


async def test_commands_are_messages_that_no_model_sees(api: ApiGateway) -> None:
    thread = await api.create_thread()
    await api.read_answer(thread, "hello")
    new = await api.read_answer(thread, "/new Another")
    assert new["command"] == "new"
    assert not new["failed"]
    assert new["thread"] != thread
    answer = await api.read_answer_text(new["thread"], "hi")
    assert answer == "re: hi"
    wrong = await api.read_answer(thread, "/nothing of the kind")
    assert wrong["failed"] is True
    assert "no command /nothing" in wrong["text"]
    answer = await api.read_answer_text(thread, "/sessions")
    assert "hello" in answer
    for name in ("../../etc/passwd.gguf", "gpt-4o"):
        await api.read_answer(thread, f"/model {name}")
    refused = await api.client_of("ann").post("/api/threads", json={"model": "/srv/secret.gguf"})
    assert error_of(refused) == (403, "model_not_allowed")
    assert api.model.started == ["hello", "hi"]


async def test_a_configured_gateway_continues_a_thread_past_the_window(
    store_url: str,
) -> None:
    """As `everthread serve` composes it."""
    served = [ServedModel("gpt-4o", 6_000, shows="max_model_len")]
    async with Provider(served) as provider:
        text = f"""
model: {{default: gpt-4o, provider: custom, base_url: '{provider.url}/v1'}}
gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}]}}
store: {{url: '{store_url}'}}
"""
        async with open_gateway(parse_config(text)) as gateway:
            unused: Any = None
            home = ApiGateway(gateway.url, store=unused, model=unused, queue=unused)
            thread = await home.create_thread("")
            for number in range(16):
                await home.read_answer(thread, f"Entry {number}: {FILLER * 20}", "")
            response = await home.get(f"/api/threads/{thread}", "")
            assert response["compactions"] >= 1
            history = await home.history(thread, name="")
            assert len(history) == 32
            await home.client_of("").aclose()
        assert set(statuses_of(provider)) == {200}
        assert text_of(provider.log[-1].request.messages[-1]).startswith("Entry 15")  # type: ignore[union-attr]  # it answered
