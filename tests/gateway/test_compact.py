"""`POST /v1/compact` over HTTP: three protocols in, fewer messages, a receipt and a handle out."""

from __future__ import annotations

import httpx2
import pytest

from everthread.core.types import Api
from tests.apis import APIS
from tests.gateway.gateway_setup import Gateways
from tests.gateway.manager_setup import HistoryClient, numbered_text


@pytest.mark.parametrize("api", APIS)
async def test_returns_a_smaller_conversation_with_a_receipt(
    api: Api, gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    client = HistoryClient(api, extra={"max_tokens": 500} if api == "anthropic" else {})
    for turn in range(12):
        client.add_user_message(numbered_text(turn, 600, "ledger"))
        client.add_answer(f"Noted {turn}.")
    client.add_user_message("And now?")
    field = "input" if api == "openai_responses" else "messages"
    url = await gateways.start("none", key=None)
    answer = await http.post(f"{url}/v1/compact", json={**client.body(), "window": 8_000})
    assert answer.status_code == 200, answer.text
    result = answer.json()
    assert result["receipt"]["changed"] is True
    assert result["receipt"]["reason"] == ""
    assert result["receipt"]["tokens_after"] < result["receipt"]["tokens_before"]
    assert len(result[field]) < len(client.messages)
    assert result[field][-1] == client.messages[-1]
    history = await gateways.store.load_history(result["handle"])
    assert len(history) == len(client.messages)
    assert not gateways.provider.log, "no provider is asked"
    uncompacted = await http.post(f"{url}/v1/compact", json={**client.body(), "window": 900_000})
    receipt = uncompacted.json()["receipt"]
    assert uncompacted.json()[field] == client.body()[field]
    assert receipt["changed"] is False
    assert receipt["reason"].startswith("the conversation is too short to compact: 25 messages")
    assert "in a window of 900,000" in receipt["reason"]


async def test_explains_why_a_history_may_not_be_compacted(
    gateways: Gateways, http: httpx2.AsyncClient
) -> None:
    refused_body = {
        "model": "gpt-5",
        "input": [{"role": "user", "content": "And now?"}],
        "previous_response_id": "resp_1",
    }
    chat = {
        "model": "gpt-4o",
        "messages": [{"role": "user", "content": "Hello"}],
    }
    url = await gateways.start("none", key=None)
    answer = await http.post(f"{url}/v1/compact", json=refused_body)
    why = "the provider keeps or changes this history itself (previous_response_id)"
    assert answer.json()["receipt"]["reason"] == why
    refused = await http.post(f"{url}/v1/compact", content=b"[]")
    assert refused.status_code == 400
    many = b'{"model": "m", "messages": [' + b"1," * 400_000 + b"1]}"
    response = await http.post(f"{url}/v1/compact", content=many)
    assert response.status_code == 413
    off = await gateways.start(
        "none",
        key=None,
        settings="compression: {enabled: false}\n",
    )
    answer = await http.post(f"{off}/v1/compact", json=chat)
    assert (
        answer.json()["receipt"]["reason"] == "compression is disabled (compression.enabled: false)"
    )
