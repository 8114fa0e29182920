"""A client that formats its history differently in every request keeps its thread and its compactions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic

from everthread.config import parse_config
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.gateway_setup import FILLER
from tests.gateway.manager_setup import statuses_of


def vary_history(history: list[dict[str, str]], turn: int) -> list[Any]:
    """Strings and blocks by turns, the cache mark on the last message only, a reminder for the moment."""
    varied: list[Any] = [
        {
            "role": message["role"],
            "content": [{"type": "text", "text": message["text"]}]
            if (at + turn) % 2
            else message["text"],
        }
        for at, message in enumerate(history)
    ]
    mark = {"type": "ephemeral"}
    reminder = {
        "type": "text",
        "text": f"<system-reminder>It is turn {turn}.</system-reminder>",
    }
    last = {
        "type": "text",
        "text": history[-1]["text"],
        "cache_control": mark,
    }
    varied[-1] = {"content": [reminder, last], "role": "user"}
    return varied


async def test_a_client_that_varies_its_formatting_keeps_its_thread_and_compactions(
    tmp_path: Path,
) -> None:
    async with Provider([ServedModel("claude-sonnet-5", 6_000, shows="max_model_len")]) as provider:
        config = parse_config(
            f"gateway: {{port: 0, upstreams: [{{name: lab, url: '{provider.url}'}}], native: {{enabled: false}}}}\n"
            "compression: {background: false, economics: false}\n"
            f"store: {{url: 'sqlite:///{tmp_path / 'looks.db'}'}}\n"
        )
        async with (
            open_gateway(config) as gateway,
            anthropic.AsyncAnthropic(
                base_url=gateway.url,
                api_key="k",
                max_retries=0,
            ) as client,
        ):
            history: list[dict[str, str]] = []
            threads = set()
            compactions = []
            for turn in range(14):
                history.append({"role": "user", "text": f"Entry {turn}: {FILLER * 12}"})
                sent: Any = vary_history(history, turn)
                raw = await client.messages.with_raw_response.create(
                    model="claude-sonnet-5", messages=sent, max_tokens=200
                )
                threads.add(raw.headers["x-everthread-thread"])
                compactions.append(int(raw.headers["x-everthread-compactions"]))
                content: Any = (await raw.parse()).content
                history.append({"role": "assistant", "text": content[0].text})
        assert len(threads) == 1
        assert compactions == sorted(compactions)
        assert compactions[-1] >= 2
        assert statuses_of(provider) == [200] * 14
