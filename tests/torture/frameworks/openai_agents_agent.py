"""Run an agent of OpenAI Agents with a tool: awaited and streamed in turns, over chat completions and responses."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from agents import (
    Agent,
    OpenAIProvider,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.memory import Session, SQLiteSession
from openai import AsyncOpenAI

from everthread.integrations.openai_agents import EverthreadSession, from_core, to_core

set_tracing_disabled(disabled=True)
EVENTS: list[str] = []


class EventRecorder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "everthread", {})
        EVENTS.append(str(event.get("event", "")))


def assert_items() -> None:
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
    items = [{"role": "user", "content": "Hello."}, reasoning, call, result, said]
    messages, groups = to_core(items)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert [item for group in groups for item in group] == items, (
        "verbatim, reasoning with its group"
    )
    again = [item for message in messages for item in from_core(message)]
    assert to_core(again)[0] == messages


async def assert_session(store: str) -> None:
    session = EverthreadSession("checked", store=store)
    assert isinstance(session, Session)
    items: Any = [{"role": "user", "content": f"Item {number}"} for number in range(120)]
    await session.add_items(items[:70])
    await session.add_items(items[70:])
    assert await session.get_items() == items
    assert await session.get_items(3) == items[-3:]
    assert await session.pop_item() == items[-1]
    assert await session.get_items() == items[:-1]
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    session.close()


async def main(job: dict[str, Any]) -> dict[str, Any]:
    assert_items()
    await assert_session(job["store"])

    def look_up(entry: str) -> str:
        """Return the ledger's line about an entry."""
        return str(job["page"]).format(entry=entry)

    logger = logging.getLogger("openai.agents")
    logger.setLevel(logging.INFO)
    logger.addHandler(EventRecorder())
    session = EverthreadSession("books", store=job["store"], window=job["window"])
    plain: Any = SQLiteSession("books")
    tools = (
        [function_tool(look_up), session.recall_tool]
        if job["managed"]
        else [function_tool(look_up)]
    )
    agent: Any = Agent("bookkeeper", instructions=job["system"], tools=tools, model=job["model"])
    answers = []
    error_text = ""
    piece_count = 0
    used: Any = session if job["managed"] else plain
    for number, text in enumerate(job["texts"]):
        # Of the loop it is used in.
        client = AsyncOpenAI(base_url=f"{job['url']}/v1", api_key="any", max_retries=0)
        provider = OpenAIProvider(openai_client=client, use_responses=False)
        plain_config = RunConfig(model_provider=provider)
        config: Any = (
            session.run_config(model_provider=provider) if job["managed"] else plain_config
        )
        try:
            if number % 3 == 0:
                run: Any = Runner.run_streamed(agent, text, session=used, run_config=config)
                async for event in run.stream_events():
                    piece_count += event.type == "raw_response_event"
            elif number % 3 == 1:
                run = await Runner.run(agent, text, session=used, run_config=config)
            else:
                run = await asyncio.to_thread(
                    run_alone, agent, text, session=used, run_config=config
                )
        except Exception as error:  # noqa: BLE001 - whatever the provider's refusal becomes
            error_text = str(error)
            break
        answers.append(str(run.final_output))
    kept_count = len(await used.get_items())
    session.close()
    return {
        "answers": answers,
        "error_text": error_text,
        "kept_count": kept_count,
        "events": EVENTS,
        "piece_count": piece_count,
    }


def run_alone(*given: Any, **named: Any) -> Any:
    """Run without an event loop, as a script does."""
    return asyncio.run(Runner.run(*given, **named))


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
