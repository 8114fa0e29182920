"""The whole configured gateway: unmodified clients talk far past the upstream's window."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everthread.config import parse_config
from everthread.core.types import Api
from everthread.errors import InputError
from everthread.factory.gateways import open_gateway
from everthread.lab.provider import Provider, ServedModel
from tests.gateway.gateway_setup import FILLER
from tests.gateway.load_clients import NAMES, FailedError, Sdk
from tests.gateway.manager_setup import statuses_of

WINDOW = 6_000


@pytest.fixture
async def sdk() -> AsyncIterator[Sdk]:
    opened = Sdk()
    yield opened
    await opened.close()


@asynccontextmanager
async def open_configured_gateway(
    folder: Path, *, mode: str = "managed", more: str = ""
) -> AsyncIterator[tuple[Provider, str]]:
    served = [ServedModel(name, WINDOW, shows="max_model_len") for name in NAMES.values()]
    async with Provider(served) as provider:
        text = f"""
gateway: {{port: 0, mode: {mode}, {more} upstreams: [{{name: lab, url: '{provider.url}'}}]}}
store: {{url: 'sqlite:///{folder / "gateway.db"}'}}
"""
        async with open_gateway(parse_config(text)) as gateway:
            yield provider, gateway.url


async def ask(
    sdk: Sdk, url: str, api: Api, history: list[dict[str, str]], *, text: str, stream: bool = True
) -> str:
    """Add the text and its answer to the history; return the answer."""
    history.append({"role": "user", "content": text})
    answer = await sdk.ask(url, api, history, stream=stream)
    history.append({"role": "assistant", "content": answer})
    return answer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("api", NAMES)
async def test_continues_past_the_window(api: Api, stream: bool, tmp_path: Path, sdk: Sdk) -> None:
    history: list[dict[str, str]] = []
    async with open_configured_gateway(tmp_path) as (provider, url):
        for number in range(24):
            text = f"Entry {number}: {FILLER * 12}"
            assert await ask(sdk, url, api, history, text=text, stream=stream)
        assert statuses_of(provider) == [200] * 24
        assert max(record.prompt_tokens for record in provider.log) < WINDOW
        last = provider.log[-1].request
        assert last is not None
        assert len(last.messages) < len(history)


async def test_observe_mode_sends_requests_unchanged(tmp_path: Path, sdk: Sdk) -> None:
    history: list[dict[str, str]] = []
    async with open_configured_gateway(tmp_path, mode="observe") as (provider, url):
        while provider.log == [] or provider.log[-1].prompt_tokens < WINDOW - 900:
            await ask(sdk, url, "anthropic", history, text=f"Entry: {FILLER * 12}")
        with pytest.raises(FailedError):
            await ask(sdk, url, "anthropic", history, text=FILLER * 60)
        assert provider.log[-1].body["messages"] == history


async def test_reports_a_taken_port_in_a_sentence(tmp_path: Path) -> None:
    async with open_configured_gateway(tmp_path) as (provider, _):
        taken = provider.url.rpartition(":")[2]
        store = f"store: {{url: 'sqlite:///{tmp_path / 'other.db'}'}}"
        with pytest.raises(InputError, match=f"port {taken} of 127.0.0.1 cannot be used"):
            async with open_gateway(parse_config(store), port=int(taken)):
                pass


@pytest.mark.parametrize("is_on", [True, False])
async def test_the_setting_cache_marks_adds_or_omits_them(
    is_on: bool, tmp_path: Path, sdk: Sdk
) -> None:
    async with open_configured_gateway(tmp_path, more=f"cache_marks: {str(is_on).lower()},") as (
        provider,
        url,
    ):
        history: list[dict[str, str]] = []
        await ask(sdk, url, "anthropic", history, text=FILLER * 80)
        await ask(sdk, url, "anthropic", history, text="Go on.")
        usage = [record.canonical_usage for record in provider.log]
        assert [used.cache_write_tokens > 0 for used in usage] == [False, is_on]
