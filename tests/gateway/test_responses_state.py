"""`responses_state: emulate`: a client that refers to answers by their ids, an upstream that keeps none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from everthread.config import parse_config
from everthread.core.messages import text_of
from everthread.factory.gateway import open_gateway
from everthread.lab.provider import Provider, ServedModel

WINDOW = 6_000
FILLER = "the ledger of the northern branch was settled and every entry was compared twice with its receipt. "


def configured(folder: Path, provider: Provider, state: str) -> Any:
    return parse_config(
        f"gateway: {{port: 0, responses_state: {state}, upstreams: [{{name: lab, url: '{provider.url}'}}], "
        f"native: {{enabled: false}}}}\nstore: {{url: 'sqlite:///{folder / 'state.db'}'}}\n"
        "compression: {background: false}\n"
    )


def served() -> list[ServedModel]:
    return [ServedModel("gpt-5", WINDOW, shows="max_model_len")]


@pytest.mark.parametrize("stream", [True, False])
async def test_the_whole_conversation_is_sent_far_past_the_window(stream: bool, tmp_path: Path) -> None:
    """Through two gateways by turns: any of them resolves any id."""
    async with Provider(served()) as provider:
        config = configured(tmp_path, provider, "emulate")
        async with open_gateway(config) as one, open_gateway(config) as other:
            clients = [openai.AsyncOpenAI(base_url=f"{gate.url}/v1", api_key="k", max_retries=0)
                       for gate in (one, other)]  # fmt: skip
            previous: str | None = None
            for number in range(16):
                asked: Any = {"model": "gpt-5", "input": f"Entry {number}: {FILLER * 12}"}
                if previous:
                    asked["previous_response_id"] = previous
                create = clients[number % 2].responses
                if stream:
                    async with create.stream(**asked) as events:
                        previous = (await events.get_final_response()).id
                else:
                    previous = (await create.create(**asked)).id
            for client in clients:
                await client.close()
        assert [record.status for record in provider.log] == [200] * 16
        third, last = provider.log[2].request, provider.log[-1].request
        assert third is not None
        assert last is not None
        assert [message["role"] for message in third.messages] == ["user", "assistant"] * 2 + ["user"]
        assert text_of(third.messages[0]).startswith("Entry 0:")
        assert "previous_response_id" not in provider.log[2].body
        assert provider.log[-1].prompt_tokens < WINDOW
        assert len(last.messages) < 31, "it was compacted on the way"


async def test_ids_of_others_and_unknown_ones_are_left_to_the_upstream(tmp_path: Path) -> None:
    async with Provider(served()) as provider:
        async with (
            open_gateway(configured(tmp_path, provider, "emulate")) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
        ):
            secret = await client.responses.create(model="gpt-5", input="Mine.", store=False)
            for unknown in ("resp_unknown", secret.id):
                with pytest.raises(openai.APIStatusError, match="not found"):
                    await client.responses.create(model="gpt-5", input="x", previous_response_id=unknown)
        assert provider.log[-1].body["previous_response_id"] == secret.id


async def test_by_default_such_requests_go_as_they_come(tmp_path: Path) -> None:
    async with Provider(served()) as provider:
        async with (
            open_gateway(configured(tmp_path, provider, "pass")) as gateway,
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
        ):
            first = await client.responses.create(model="gpt-5", input="One.")
            with pytest.raises(openai.APIStatusError, match="not found"):
                await client.responses.create(model="gpt-5", input="Two.", previous_response_id=first.id)
        assert provider.log[-1].body == {"model": "gpt-5", "input": "Two.", "previous_response_id": first.id}
