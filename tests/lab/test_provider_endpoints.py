"""Compaction items, thinking budgets and WebSockets of the simulated provider, as real providers handle them."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from everthread.lab.provider import Provider, ServedModel

ITEMS: list[Any] = [
    {"role": "user", "content": "Mend the parser"},
    {"role": "assistant", "content": "It is mended."},
]
TRIGGER = {"type": "compaction_trigger"}


async def post(provider: Provider, path: str, body: dict[str, Any]) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=60) as http:
        return await http.post(
            f"{provider.url}{path}",
            json=body,
            headers={"anthropic-version": "2023-06-01"},
        )


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_a_trigger_with_an_item_and_accepts_it_back(
    stream: bool,
) -> None:
    async with Provider({"gpt-5": 100_000}) as provider:
        body = {"model": "gpt-5", "input": [*ITEMS, TRIGGER], "stream": stream}
        answer = await post(provider, "/v1/responses", body)
        assert answer.status_code == 200
        if stream:
            assert answer.text.count('"type": "compaction"') >= 2
            assert "response.completed" in answer.text
            return
        [item] = answer.json()["output"]
        assert item["type"] == "compaction"
        more = {"model": "gpt-5", "input": [item, {"role": "user", "content": "Go on"}]}
        assert (await post(provider, "/v1/responses", more)).status_code == 200
        spoilt = {**item, "encrypted_content": item["encrypted_content"][:-1]}
        refused = await post(
            provider, "/v1/responses", {**more, "input": [spoilt, more["input"][1]]}
        )
        assert refused.status_code == 400
        assert "could not be verified" in refused.text


async def test_refuses_a_trigger_that_is_not_last() -> None:
    async with Provider({"gpt-5": 100_000}) as provider:
        answer = await post(
            provider, "/v1/responses", {"model": "gpt-5", "input": [TRIGGER, *ITEMS]}
        )
        assert answer.status_code == 400
        assert "must be the last item" in answer.text


async def test_compacts_at_the_compact_endpoint() -> None:
    async with Provider({"gpt-5": 100_000}) as provider:
        answer = await post(provider, "/v1/responses/compact", {"model": "gpt-5", "input": ITEMS})
        compaction = answer.json()
        assert compaction["object"] == "response.compaction"
        assert [item["type"] for item in compaction["output"]] == ["compaction"]
        assert (
            await post(provider, "/v1/responses/compact", {"model": "no", "input": ITEMS})
        ).status_code == 404
        wrong = await post(provider, "/v1/responses/compact", {"model": "gpt-5", "input": []})
        assert wrong.status_code == 400


async def test_refuses_compactions_if_the_model_has_none() -> None:
    async with Provider([ServedModel("gpt-5", compacts=False)]) as provider:
        answer = await post(
            provider, "/v1/responses", {"model": "gpt-5", "input": [*ITEMS, TRIGGER]}
        )
        assert answer.status_code == 400
        assert "compaction_trigger" in answer.text
        path = await post(provider, "/v1/responses/compact", {"model": "gpt-5", "input": ITEMS})
        assert path.status_code == 404


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (4_000, "`max_tokens` must be greater than `thinking.budget_tokens`"),
        (100, "greater than or equal to 1024"),
        (None, "budget_tokens: Field required"),
        (2_000, ""),
    ],
)
async def test_checks_the_thinking_budget(budget: int | None, words: str) -> None:
    async with Provider({"claude-sonnet-5": 100_000}) as provider:
        thinking = {"type": "enabled"} | ({} if budget is None else {"budget_tokens": budget})
        body = {
            "model": "claude-sonnet-5",
            "max_tokens": 4_000,
            "thinking": thinking,
            "messages": ITEMS[:1],
        }
        answer = await post(provider, "/v1/messages", body)
        assert answer.status_code == (400 if words else 200)
        assert words in answer.text


@pytest.mark.parametrize(("given", "status"), [({}, 405), ({"upgrade_status": 426}, 426)])
async def test_refuses_and_records_a_websocket(given: Any, status: int) -> None:
    async with (
        Provider({"gpt-5": 100_000}, **given) as provider,
        httpx2.AsyncClient(timeout=60) as http,
    ):
        headers = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
        }
        assert (
            await http.get(f"{provider.url}/v1/responses", headers=headers)
        ).status_code == status
        assert (await http.get(f"{provider.url}/v1/responses")).status_code == 405
        assert [record.status for record in provider.log] == [status, 405]
