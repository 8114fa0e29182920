"""The LiteLLM integration, with stand-ins for the framework's classes.

`make torture PART=integrations` drives the real packages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.integrations.framework_setup import FILLER, options

REFUSAL = "This model's maximum context length is 3000 tokens. However, your messages resulted in 3400 tokens."

LITELLM = {
    "litellm/__init__.py": "callbacks, model_cost = [], {'gpt-4o': {'max_input_tokens': 6000}}\n"
    "def stream_chunk_builder(chunks): return chunks[-1].response\n",
    "litellm/integrations/__init__.py": "",
    "litellm/integrations/custom_logger.py": "class CustomLogger:\n"
    "    async def async_pre_call_deployment_hook(self): ...\n",
}


class Proxy:
    """A client's calls as LiteLLM's proxy and router hand them to a callback."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.key = SimpleNamespace(api_key="hashed")
        self.history: list[dict[str, Any]] = [
            {
                "role": "system",
                "content": "Be brief.",
            }
        ]
        self.calls = 0

    async def ask(
        self, text: str, *, refused: bool = False, streamed: bool = False
    ) -> list[dict[str, Any]]:
        """The messages sent to the model."""
        self.history.append(
            {
                "role": "user",
                "content": text,
            }
        )
        self.calls += 1
        data = {
            "model": "gpt-4o",
            "messages": list(self.history),
            "litellm_call_id": f"call-{self.calls}",
        }
        data = await self.handler.async_pre_call_hook(self.key, None, data, "acompletion")
        sent = await self.handler.async_pre_call_deployment_hook(
            data, SimpleNamespace(value="acompletion")
        )
        if refused:
            failed = {
                **data,
                "exception": RuntimeError(REFUSAL),
            }
            await self.handler.async_log_failure_event(failed, None, 0, 0)
            sent = await self.handler.async_pre_call_deployment_hook(data, "acompletion")
        answer = {
            "role": "assistant",
            "content": f"Noted {self.calls}.",
        }
        usage = SimpleNamespace(prompt_tokens=1_000, completion_tokens=5)
        message = SimpleNamespace(
            model_dump=lambda **_: {
                **answer,
                "provider_specific_fields": {},
            }
        )
        response = SimpleNamespace(
            choices=[SimpleNamespace(message=message, finish_reason="stop")],
            usage=usage,
        )
        if streamed:
            heard = [
                chunk
                async for chunk in self.handler.async_post_call_streaming_iterator_hook(
                    self.key,
                    stream(SimpleNamespace(response=response, usage=usage)),
                    data,
                )
            ]
            assert len(heard) == 1
        else:
            await self.handler.async_post_call_success_deployment_hook(
                data, response, "acompletion"
            )
        self.history.append(answer)
        messages: list[dict[str, Any]] = sent["messages"]
        return messages


async def stream(*chunks: Any) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk


async def test_keeps_calls_inside_the_window(install_fake_package: Any, tmp_path: Path) -> None:
    module = install_fake_package("litellm", "1.83.0", LITELLM, "litellm")
    handler = module.EverthreadLogger(**options(tmp_path))
    proxy = Proxy(handler)
    sent = await proxy.ask("Hello.")
    assert sent == [
        {
            "role": "system",
            "content": "Be brief.",
        },
        {
            "role": "user",
            "content": "Hello.",
        },
    ]
    for number in range(12):
        sent = await proxy.ask(f"Entry {number}: {FILLER * 8}", streamed=bool(number % 2))
    smaller = await proxy.ask(f"Entry 13: {FILLER * 8}", refused=True)
    assert len(smaller) < len(sent)
    assert smaller[0]["content"][0] == {
        "type": "text",
        "text": "Be brief.",
    }
    assert "compacted into a summary" in smaller[0]["content"][-1]["text"]
    store = await handler.threads.run_in_own_loop(handler.threads.get_store())
    (thread,) = await handler.threads.run_in_own_loop(store.list_threads())
    assert thread.message_count == len(proxy.history) - 1
    assert (
        len(await handler.threads.run_in_own_loop(store.usage.list_usage(thread.first.id)))
        == proxy.calls
    )
    handler.close()


async def test_separates_the_conversations_of_two_keys(
    install_fake_package: Any, tmp_path: Path
) -> None:
    module = install_fake_package("litellm", "1.83.0", LITELLM, "litellm")
    handler = module.EverthreadLogger(**options(tmp_path))
    first = Proxy(handler)
    second = Proxy(handler)
    second.key = SimpleNamespace(api_key="another")
    second.calls = 100
    for proxy in (first, second):
        proxy.history = [
            {
                "role": "user",
                "content": "Hi",
            },
            {
                "role": "assistant",
                "content": "Hello.",
            },
        ]
        await proxy.ask("Go on.")
    await first.ask("And on.")
    store = await handler.threads.run_in_own_loop(handler.threads.get_store())
    assert sorted(
        row.message_count for row in await handler.threads.run_in_own_loop(store.list_threads())
    ) == [4, 6]
    assert (
        await handler.async_pre_call_deployment_hook({"litellm_call_id": "x"}, "aembedding") is None
    )
    handler.close()


def test_rejects_a_version_without_the_hook(install_fake_package: Any) -> None:
    files = {
        **LITELLM,
        "litellm/integrations/custom_logger.py": "class CustomLogger: ...\n",
    }
    with pytest.raises(
        ImportError,
        match=r"litellm 1\.83\.0 has no CustomLogger\.async_pre_call_deployment_hook",
    ):
        install_fake_package("litellm", "1.83.0", files, "litellm")
