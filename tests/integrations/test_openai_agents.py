"""The OpenAI Agents integration, with stand-ins for the framework's classes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.integrations.framework_setup import FILLER, options

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


async def test_items_survive_the_conversion_to_messages_and_back(install_fake_package: Any) -> None:
    module = install_fake_package("openai-agents", "0.24.0", AGENTS, "openai_agents")
    call = {
        "type": "function_call",
        "call_id": "call_1",
        "name": "look_up",
        "arguments": "{}",
    }
    result = {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": "settled",
    }
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
    }
    answer = {
        "type": "message",
        "role": "assistant",
        "content": [
            {
                "type": "output_text",
                "text": "Hi.",
            }
        ],
    }
    items = [
        {
            "role": "developer",
            "content": "Be brief.",
        },
        {
            "role": "user",
            "content": "Hello.",
        },
        reasoning,
        call,
        result,
        answer,
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
    assert written[-1] == {
        "role": "assistant",
        "content": "Hi.",
    }, "parts need an id, where Chat Completions are used"


async def test_a_session_stores_items_and_filters_them_for_the_model(
    install_fake_package: Any, tmp_path: Path
) -> None:
    module = install_fake_package("openai-agents", "0.24.0", AGENTS, "openai_agents")
    session = module.EverthreadSession("books", **options(tmp_path))
    items: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": f"Entry {number}: {FILLER * 8}",
        }
        for number in range(30)
    ]
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.get_items(2) == items[-2:]
    settings = SimpleNamespace(max_tokens=None)
    agent = SimpleNamespace(
        model="gpt-4o",
        tools=[session.recall_tool],
        model_settings=settings,
    )
    model_data = SimpleNamespace(input=items, instructions="Be brief.")
    filtered = await session.filter(
        SimpleNamespace(
            model_data=model_data,
            agent=agent,
            context=None,
        )
    )
    assert len(filtered.input) < len(items)
    assert filtered.input[-1] is not None
    assert filtered.input[-1] == items[-1]
    assert filtered.instructions.startswith("Be brief.\n\nNote:")
    assert await session.pop_item() == items[-1]
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.recall_tool.on_invoke_tool(None, '{"query": "Entry"}') == (
        "Nothing was said in this conversation yet."
    )
    session.close()
