"""Run an agent of Google ADK with a tool: awaited, streamed and without a loop, in turns."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.apps import App
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

from everthread.integrations.google_adk import (
    EverthreadPlugin,
    from_core,
    join_contents,
    to_core,
)

EVENTS: list[str] = []


class EventRecorder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        event = getattr(record, "everthread", {})
        EVENTS.append(str(event.get("event", "")))


def assert_contents() -> None:
    def call(name: str, call_id: str | None) -> Any:
        return types.Part(
            function_call=types.FunctionCall(id=call_id, name=name, args={"entry": "1"})
        )

    def result(name: str, call_id: str | None) -> Any:
        return types.Part(
            function_response=types.FunctionResponse(
                id=call_id, name=name, response={"result": "yes"}
            )
        )

    for ids in ((None, None), ("call_1", "call_2")):
        contents = [
            types.Content(role="user", parts=[types.Part(text="See"), types.Part(text="this")]),
            types.Content(role="model", parts=[call("look_up", ids[0]), call("look_up", ids[1])]),
            types.Content(
                role="user",
                parts=[result("look_up", ids[0]), result("look_up", ids[1])],
            ),
            types.Content(role="model", parts=[types.Part(text="Both.")]),
        ]
        messages, own = to_core(contents)
        assert [message["role"] for message in messages] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
        ]
        called = [item["id"] for item in messages[1]["tool_calls"]]
        assert [message["tool_call_id"] for message in messages[2:4]] == called
        assert len(set(called)) == 2
        assert join_contents(own) == contents
        assert join_contents([from_core(message) for message in messages]) == contents


async def main(job: dict[str, Any]) -> dict[str, Any]:
    assert_contents()

    def look_up(entry: str) -> str:
        """Return the ledger's line about an entry."""
        return str(job["page"]).format(entry=entry)

    logger = logging.getLogger("google_adk")
    logger.setLevel(logging.INFO)
    logger.addHandler(EventRecorder())
    model = LiteLlm(
        f"openai/{job['model']}",
        api_base=f"{job['url']}/v1",
        api_key="any",
        num_retries=0,
    )
    agent = LlmAgent(name="bookkeeper", model=model, instruction=job["system"], tools=[look_up])
    everthread = EverthreadPlugin(store=job["store"], window=job["window"])
    plugins: Any = [everthread] if job["managed"] else []
    runner = InMemoryRunner(app=App(name="books", root_agent=agent, plugins=plugins))
    session = await runner.session_service.create_session(
        app_name="books", user_id="anna", session_id="books"
    )
    answers: list[str] = []
    error_text = ""
    piece_count = 0
    for number, text in enumerate(job["texts"]):
        said = types.Content(role="user", parts=[types.Part(text=text)])
        asked: Any = {"user_id": "anna", "session_id": session.id, "new_message": said}
        words = ""
        try:
            if number % 3 == 2:
                events: list[Any] = await asyncio.to_thread(
                    lambda: list(runner.run(**asked))  # noqa: B023
                )
            else:
                mode = StreamingMode.SSE if number % 3 == 0 else StreamingMode.NONE
                events = [
                    event
                    async for event in runner.run_async(
                        **asked, run_config=RunConfig(streaming_mode=mode)
                    )
                ]
            for event in events:
                piece_count += bool(event.partial)
                if event.is_final_response() and event.content and not event.partial:
                    words = "".join(part.text or "" for part in event.content.parts)
                error_text = error_text or event.error_message or ""
        except Exception as error:  # noqa: BLE001 - whatever the provider's refusal becomes
            error_text = str(error)
        if error_text:
            break
        answers.append(words)
    kept_count: Any = await runner.session_service.get_session(
        app_name="books", user_id="anna", session_id=session.id
    )
    await everthread.close()
    return {
        "answers": answers,
        "error_text": error_text,
        "kept_count": len(kept_count.events),
        "events": EVENTS,
        "piece_count": piece_count,
    }


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
