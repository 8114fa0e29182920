"""`previous_response_id`: the provider keeps the history, so the gateway leaves the request alone and says so."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from everthread.config import parse_config
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider, ServedModel


async def test_the_request_is_forwarded_unchanged_and_the_answer_says_so(
    tmp_path: Path,
) -> None:
    async with Provider(
        [ServedModel("gpt-5", 6_000, shows="max_model_len")]
    ) as provider:
        config = parse_config(
            f"gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}], native: {{enabled: false}}}}\n"
            f"store: {{url: 'sqlite:///{tmp_path / 'state.db'}'}}\n"
        )
        async with (
            open_gateway(config) as gateway,
            openai.AsyncOpenAI(
                base_url=f"{gateway.url}/v1", api_key="k", max_retries=0
            ) as client,
        ):
            first = await client.responses.create(model="gpt-5", input="One.")
            with pytest.raises(openai.APIStatusError, match="not found") as refused:
                await client.responses.create(
                    model="gpt-5", input="Two.", previous_response_id=first.id
                )
        assert (
            refused.value.response.headers["x-everthread-notice"]
            == "passed on unmanaged: previous_response_id"
        )
        assert provider.log[-1].body == {
            "model": "gpt-5",
            "input": "Two.",
            "previous_response_id": first.id,
        }
