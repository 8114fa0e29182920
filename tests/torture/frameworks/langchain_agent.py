"""Run an agent of LangChain with a tool: invoked, awaited and streamed, in turns."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from everthread.integrations.langchain import (
    EverthreadMiddleware,
    from_core,
    summarize,
    to_core,
)

OPENED = {"configurable": {"thread_id": "books"}}


def assert_messages() -> None:
    call: Any = {
        "id": "call_1",
        "name": "look_up",
        "args": {"entry": "1"},
        "type": "tool_call",
    }
    for message in (
        HumanMessage("Hello."),
        HumanMessage(
            [
                {"type": "text", "text": "See"},
                {"type": "image_url", "image_url": {"url": "http://a/b.png"}},
            ]
        ),
        AIMessage("Hi."),
        AIMessage("", tool_calls=[call]),
        ToolMessage("settled", tool_call_id="call_1", name="look_up", status="error"),
    ):
        again = from_core(to_core(message))
        assert (type(again), again.content, getattr(again, "tool_calls", None)) == (
            type(message),
            message.content,
            getattr(message, "tool_calls", None),
        )
        assert to_core(again) == to_core(message)


def assert_summarize(model: Any) -> None:
    said = [
        HumanMessage("Never book twice."),
        AIMessage("Understood."),
        HumanMessage("Book entry 4."),
    ]
    assert "Never book twice." in summarize(said)
    SummarizationMiddleware(model, trigger=("messages", 10), summarizer=summarize)


def stream_events(agent: Any, said: Any) -> list[str]:
    """Stream a turn without `await`; return the events it reported."""
    parts = agent.stream(said, OPENED, stream_mode="custom")
    return [part["everthread"]["event"] for part in parts]


async def main(job: dict[str, Any]) -> dict[str, Any]:
    assert_messages()

    def look_up(entry: str) -> str:
        """Return the ledger's line about an entry."""
        return str(job["page"]).format(entry=entry)

    model = ChatOpenAI(
        model=job["model"],
        base_url=f"{job['url']}/v1",
        api_key=lambda: "any",
        max_retries=0,
        stream_usage=True,
    )
    assert_summarize(model)
    everthread = EverthreadMiddleware(store=job["store"], window=job["window"])
    agent: Any = create_agent(
        model,
        [look_up],
        system_prompt=job["system"],
        checkpointer=InMemorySaver(),
        middleware=[everthread] if job["managed"] else [],
    )
    answers = []
    error_text = ""
    events = []
    piece_count = 0
    for number, text in enumerate(job["texts"]):
        said: Any = {"messages": [HumanMessage(text)]}
        try:
            if number % 6 == 0:
                await asyncio.to_thread(agent.invoke, said, OPENED)
            elif number % 6 == 1:
                await agent.ainvoke(said, OPENED)
            elif number % 2 == 0:
                events += await asyncio.to_thread(stream_events, agent, said)
            else:
                async for kind, piece in agent.astream(
                    said, OPENED, stream_mode=["messages", "custom"]
                ):
                    piece_count += kind == "messages"
                    events += [piece["everthread"]["event"]] if kind == "custom" else []
        except Exception as error:  # noqa: BLE001 - whatever the provider's refusal becomes
            error_text = str(error)
            break
        answers.append((await agent.aget_state(OPENED)).values["messages"][-1].text)
    kept_count = len((await agent.aget_state(OPENED)).values["messages"])
    everthread.close()
    return {
        "answers": answers,
        "error_text": error_text,
        "kept_count": kept_count,
        "events": events,
        "piece_count": piece_count,
    }


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
