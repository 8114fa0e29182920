"""Run an agent of pydantic-ai with a tool: awaited, streamed and without a loop, in turns."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import (
    ImageUrl,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from everthread.integrations.pydantic_ai import (
    Everthread,
    from_core,
    join_history,
    split_history,
    to_core,
)

EVENTS: list[str] = []


class EventRecorder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "everthread", {})
        EVENTS.append(str(event.get("event", "")))


def assert_messages() -> None:
    history: Any = [
        ModelRequest(
            [
                SystemPromptPart("Be brief."),
                UserPromptPart(["See", ImageUrl("http://a/b.png")]),
            ]
        ),
        ModelResponse(
            [
                ThinkingPart("Hm."),
                ToolCallPart("look_up", {"entry": "1"}, "call_1"),
                ToolCallPart("look_up", {"entry": "2"}, "call_2"),
            ]
        ),
        ModelRequest(
            [
                ToolReturnPart("look_up", "settled", "call_1"),
                ToolReturnPart("look_up", {"a": 1}, "call_2"),
            ]
        ),
        ModelResponse([TextPart("Both.")]),
    ]
    lead, own = split_history(history)
    core = [to_core(item) for item in own]
    assert [message["role"] for message in core] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert join_history(lead, own) == history, "verbatim, with what it thought"
    again = [from_core(message) for message in core]
    assert [to_core(item) for item in again] == core
    assert [message.kind for message in join_history(lead, again)] == [
        "request",
        "response",
        "request",
        "response",
    ]


async def main(job: dict[str, Any]) -> dict[str, Any]:
    assert_messages()

    def look_up(entry: str) -> str:
        """Return the ledger's line about an entry."""
        return str(job["page"]).format(entry=entry)

    logger = logging.getLogger("pydantic_ai")
    logger.setLevel(logging.INFO)
    logger.addHandler(EventRecorder())
    everthread = Everthread(store=job["store"], window=job["window"])
    answers: list[str] = []
    error_text = ""
    piece_count = 0
    history: Any = None
    for number, text in enumerate(job["texts"]):
        # Of the loop it is used in.
        provider = OpenAIProvider(base_url=f"{job['url']}/v1", api_key="any")
        agent: Any = Agent(
            OpenAIChatModel(job["model"], provider=provider),
            instructions=job["system"],
            tools=[look_up],
            capabilities=[everthread] if job["managed"] else [],
        )
        try:
            if number % 3 == 0:
                async with agent.run_stream(text, message_history=history) as run:
                    async for _ in run.stream_text(delta=True, debounce_by=None):
                        piece_count += 1
                answers.append(await run.get_output())
            elif number % 3 == 1:
                run = await agent.run(text, message_history=history)
                answers.append(run.output)
            else:
                run = await asyncio.to_thread(agent.run_sync, text, message_history=history)
                answers.append(run.output)
        except Exception as error:  # noqa: BLE001 - whatever the provider's refusal becomes
            error_text = str(error)
            break
        history = run.all_messages()
    kept_count = sum(len(message.parts) for message in history)
    everthread.close()
    return {
        "answers": answers,
        "error_text": error_text,
        "kept_count": kept_count,
        "events": EVENTS,
        "piece_count": piece_count,
    }


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
