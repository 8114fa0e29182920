"""What two of the integrations do with what a framework hands them, under stand-ins for the frameworks' classes.

The real packages are driven by `make torture PART=integrations`; here is what needs nothing of theirs but dicts.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from everthread.config import parse_config

FILLER = "the ledger of the northern branch was settled and every entry was compared with its receipt. "
REFUSAL = "This model's maximum context length is 3000 tokens. However, your messages resulted in 3400 tokens."

LITELLM = {
    "litellm/__init__.py": "callbacks, model_cost = [], {'gpt-4o': {'max_input_tokens': 6000}}\n"
    "def stream_chunk_builder(chunks): return chunks[-1].whole\n",
    "litellm/integrations/__init__.py": "",
    "litellm/integrations/custom_logger.py": "class CustomLogger:\n"
    "    async def async_pre_call_deployment_hook(self): ...\n",
}
AGENTS = {
    "agents/__init__.py": "from types import SimpleNamespace\n"
    "class Model: ...\nclass ModelProvider: ...\nclass MultiProvider(ModelProvider): ...\n"
    "class FunctionTool(SimpleNamespace): ...\nclass RunConfig(SimpleNamespace): ...\n"
    "def custom_span(name, data): raise AssertionError\ndef get_current_trace(): return None\n",
    "agents/models/__init__.py": "def get_default_model(): return 'gpt-4o'\n",
    "agents/run.py": "from types import SimpleNamespace\n"
    "class CallModelData(SimpleNamespace):\n    __class_getitem__ = classmethod(lambda cls, _: cls)\n"
    "class ModelInputData(SimpleNamespace): ...\n",
}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a package of a name and version importable, and gives the integration that uses it."""

    def make(
        package: str, version: str, files: dict[str, str], module: str
    ) -> ModuleType:
        facts = tmp_path / f"{package.replace('-', '_')}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", "utf-8"
        )
        for name, code in files.items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(code, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        return importlib.import_module(f"everthread.integrations.{module}")

    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("litellm", "agents") or name.startswith(
            "everthread.integrations."
        ):
            del sys.modules[name]


def options(folder: Path) -> Any:
    return {
        "store": folder / "books.db",
        "config": parse_config("compression: {background: false}"),
        "window": 6_000,
    }


# LiteLLM


class Proxy:
    """A client's calls as LiteLLM's proxy and router hand them to a callback."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.key = SimpleNamespace(api_key="hashed")
        self.history: list[dict[str, Any]] = [
            {"role": "system", "content": "Be brief."}
        ]
        self.calls = 0

    async def ask(
        self, text: str, *, refused: bool = False, streamed: bool = False
    ) -> list[dict[str, Any]]:
        """The messages sent to the model."""
        self.history.append({"role": "user", "content": text})
        self.calls += 1
        data = {
            "model": "gpt-4o",
            "messages": list(self.history),
            "litellm_call_id": f"call-{self.calls}",
        }
        data = await self.handler.async_pre_call_hook(
            self.key, None, data, "acompletion"
        )
        sent = await self.handler.async_pre_call_deployment_hook(
            data, SimpleNamespace(value="acompletion")
        )
        if refused:
            failed = {**data, "exception": RuntimeError(REFUSAL)}
            await self.handler.async_log_failure_event(failed, None, 0, 0)
            sent = await self.handler.async_pre_call_deployment_hook(
                data, "acompletion"
            )
        answer = {"role": "assistant", "content": f"Noted {self.calls}."}
        usage = SimpleNamespace(prompt_tokens=1_000, completion_tokens=5)
        message = SimpleNamespace(
            model_dump=lambda **_: {**answer, "provider_specific_fields": {}}
        )
        whole = SimpleNamespace(
            choices=[SimpleNamespace(message=message, finish_reason="stop")],
            usage=usage,
        )
        if streamed:
            heard = [
                chunk
                async for chunk in self.handler.async_post_call_streaming_iterator_hook(
                    self.key, stream(SimpleNamespace(whole=whole, usage=usage)), data
                )
            ]
            assert len(heard) == 1
        else:
            await self.handler.async_post_call_success_deployment_hook(
                data, whole, "acompletion"
            )
        self.history.append(answer)
        found: list[dict[str, Any]] = sent["messages"]
        return found


async def stream(*chunks: Any) -> AsyncIterator[Any]:
    for chunk in chunks:
        yield chunk


async def test_litellm_clients_stay_inside_the_window(
    stand_in: Any, tmp_path: Path
) -> None:
    module = stand_in("litellm", "1.83.0", LITELLM, "litellm")
    handler = module.EverthreadLogger(**options(tmp_path))
    proxy = Proxy(handler)
    sent = await proxy.ask("Hello.")
    assert sent == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
    ]
    for number in range(12):
        sent = await proxy.ask(
            f"Entry {number}: {FILLER * 8}", streamed=bool(number % 2)
        )
    smaller = await proxy.ask(f"Entry 13: {FILLER * 8}", refused=True)
    assert len(smaller) < len(sent)
    assert smaller[0]["content"][0] == {"type": "text", "text": "Be brief."}
    assert "compacted into a summary" in smaller[0]["content"][-1]["text"]
    store = await handler.threads.run_in_own_loop(handler.threads.get_store())
    (thread,) = await handler.threads.run_in_own_loop(store.list_threads())
    assert thread.messages == len(proxy.history) - 1
    assert (
        len(await handler.threads.run_in_own_loop(store.usage(thread.first.id)))
        == proxy.calls
    )
    handler.close()


async def test_litellm_conversations_of_two_keys_are_two(
    stand_in: Any, tmp_path: Path
) -> None:
    module = stand_in("litellm", "1.83.0", LITELLM, "litellm")
    handler = module.EverthreadLogger(**options(tmp_path))
    one = Proxy(handler)
    other = Proxy(handler)
    other.key = SimpleNamespace(api_key="another")
    other.calls = 100
    for proxy in (one, other):
        proxy.history = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
        ]
        await proxy.ask("Go on.")
    await one.ask("And on.")
    store = await handler.threads.run_in_own_loop(handler.threads.get_store())
    assert sorted(
        row.messages
        for row in await handler.threads.run_in_own_loop(store.list_threads())
    ) == [4, 6]
    assert (
        await handler.async_pre_call_deployment_hook(
            {"litellm_call_id": "x"}, "aembedding"
        )
        is None
    )
    handler.close()


def test_a_litellm_without_the_hook_is_an_import_error(stand_in: Any) -> None:
    files = {
        **LITELLM,
        "litellm/integrations/custom_logger.py": "class CustomLogger: ...\n",
    }
    with pytest.raises(
        ImportError,
        match=r"litellm 1\.83\.0 has no CustomLogger\.async_pre_call_deployment_hook",
    ):
        stand_in("litellm", "1.83.0", files, "litellm")


# OpenAI Agents


async def test_items_of_openai_agents_come_back_as_they_were(stand_in: Any) -> None:
    module = stand_in("openai-agents", "0.24.0", AGENTS, "openai_agents")
    call = {
        "type": "function_call",
        "call_id": "call_1",
        "name": "look_up",
        "arguments": "{}",
    }
    result = {"type": "function_call_output", "call_id": "call_1", "output": "settled"}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    said = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Hi."}],
    }
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        reasoning,
        call,
        result,
        said,
    ]
    messages, groups = module.to_core(items)
    assert [message["role"] for message in messages] == [
        "user",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [item for group in groups for item in group] == items
    written = [item for message in messages for item in module.from_core(message)]
    assert module.to_core(written)[0] == messages
    assert written[-1] == {"role": "assistant", "content": "Hi."}, (
        "parts need an id, where Chat Completions are used"
    )


async def test_a_session_of_openai_agents_keeps_items_and_gives_the_view(
    stand_in: Any, tmp_path: Path
) -> None:
    module = stand_in("openai-agents", "0.24.0", AGENTS, "openai_agents")
    session = module.EverthreadSession("books", **options(tmp_path))
    items: list[dict[str, Any]] = [
        {"role": "user", "content": f"Entry {number}: {FILLER * 8}"}
        for number in range(30)
    ]
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.get_items(2) == items[-2:]
    settings = SimpleNamespace(max_tokens=None)
    agent = SimpleNamespace(
        model="gpt-4o", tools=[session.recall_tool], model_settings=settings
    )
    given = SimpleNamespace(input=items, instructions="Be brief.")
    view = await session.filter(
        SimpleNamespace(model_data=given, agent=agent, context=None)
    )
    assert len(view.input) < len(items)
    assert view.input[-1] is not None
    assert view.input[-1] == items[-1]
    assert view.instructions.startswith("Be brief.\n\nNote:")
    assert await session.pop_item() == items[-1]
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.recall_tool.on_invoke_tool(None, '{"query": "Entry"}') == (
        "Nothing was said in this conversation yet."
    )
    session.close()
