"""Checks of a gateway at its start, and an auxiliary model that cannot be used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from everthread.config import parse_config
from everthread.errors import EngineError
from everthread.factory import open_store
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.gateway_setup import CLAUDE_MODEL, FILLER, HELLO, ask_claude, open_gateways
from tests.gateway.raw_http import RawMessage, open_raw_upstream


async def test_an_unknown_engine_is_an_error_at_start(tmp_path: Path) -> None:
    store = open_store(tmp_path / "s.db")
    config = parse_config("context: {engine: nobody}\ngateway: {port: 0}")
    with pytest.raises(EngineError, match="nobody"):
        async with open_gateway(config, store=store, auth="none"):
            pass
    await store.close()


async def never(_request: RawMessage, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(600)


@pytest.mark.parametrize("hangs", [True, False])
async def test_the_journal_replaces_an_unusable_auxiliary_model(
    hangs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is not there, or a model that never answers: the journal serves, and the model rests."""
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    async with (
        open_gateways(tmp_path, window=6_000) as gateways,
        open_raw_upstream(never) as silent,
    ):
        key = "" if hangs else ", api_key_env: NO_SUCH_KEY"
        settings = (
            f"auxiliary: {{compression: {{provider: custom, base_url: '{silent.url}/v1', model: writer{key}}}}}\n"
            "compression: {economics: false, background: false}"
        )
        url = await gateways.start(settings=settings, manage_seconds=40 if hangs else 300)
        client = gateways.anthropic_client(url, await gateways.create_key(tokens=10**9))
        history = list[Any](HELLO)
        for number in range(16):
            answer = await ask_claude(client, history)
            history += [
                {"role": "assistant", "content": answer.content[0].text},
                {"role": "user", "content": f"Entry {number}: {FILLER * 12}"},
            ]
        assert any("EVERTHREAD SUMMARY" in str(one.body) for one in gateways.provider.log)
        assert bool(silent.received) == hangs


async def _talk_with_writer(tmp_path: Path, writer: Provider, entries: int) -> Sequence[int]:
    """Talk through a gateway whose summaries the model `writer` makes; return the compactions after each request."""
    async with open_gateways(tmp_path, window=20_000) as gateways:
        settings = (
            f"auxiliary: {{compression: {{provider: custom, base_url: '{writer.url}/v1', model: writer}}}}\n"
            "compression: {economics: false, background: false}"
        )
        url = await gateways.start(settings=settings)
        client = gateways.anthropic_client(url, await gateways.create_key(tokens=10**9))
        history = list[Any](HELLO)
        compactions = []
        for number in range(entries):
            answer = await client.messages.with_raw_response.create(
                model=CLAUDE_MODEL, max_tokens=100, messages=history
            )
            compactions.append(int(answer.headers["x-everthread-compactions"]))
            history += [
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": f"Entry {number}: {FILLER * 30}"},
            ]
        return compactions


async def test_asks_a_model_twice_for_a_usable_summary(tmp_path: Path) -> None:
    """Then it rests, and the journal serves the next compactions."""
    models = [ServedModel("writer", 32_000)]
    async with Provider(models, lambda _: "I am fine, thanks.") as writer:
        compactions = await _talk_with_writer(tmp_path, writer, 40)
        assert compactions[-1] > 1
        summary_requests = [record for record in writer.log if record.request]
        assert len(summary_requests) == 2


async def test_compacts_for_the_long_context_that_a_client_requests(
    tmp_path: Path,
) -> None:
    """Claude's window is 200,000 tokens, or a million if the request asks for it."""
    async with open_gateways(tmp_path, window=6_000) as gateways:
        url = await gateways.start(settings="compression: {economics: false, background: false}")
        client = gateways.anthropic_client(url, await gateways.create_key())
        history: list[Any] = []
        for number in range(6):
            history += [
                {"role": "user", "content": f"Entry {number}: {FILLER * 30}"},
                {"role": "assistant", "content": "Yes."},
            ]
        history.append({"role": "user", "content": "And now?"})
        request_body: Any = {
            "model": CLAUDE_MODEL,
            "max_tokens": 100,
            "messages": history,
        }
        betas = {"anthropic-beta": "context-1m-2025-08-07"}
        long = await client.messages.with_raw_response.create(**request_body, extra_headers=betas)
        short = await client.messages.with_raw_response.create(**request_body)
        assert [answer.headers["x-everthread-compactions"] for answer in (long, short)] == [
            "0",
            "1",
        ]


def test_preloads_the_modules_of_the_first_requests() -> None:
    """An import in a request would stop all others."""
    code = (
        "import asyncio, sys\n"
        "from everthread.factory.gateways import preload\n"
        "asyncio.run(preload())\n"
        "needed = {'genai_prices', 'splintr', 'everthread.compaction.summarizers.llm_summarizer', "
        "'anyio._backends._asyncio'}\n"
        "print(*(needed - set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == ""
    assert done.stderr == ""
