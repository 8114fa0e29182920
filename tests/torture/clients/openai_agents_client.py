"""Run an agent of OpenAI Agents with a tool; each run continues the items of the previous one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


def look_up(entry: str) -> str:
    """Return the ledger's line about an entry."""
    return f"Entry {entry} is settled; the receipt is in folder {len(entry) + 40}. " * 6


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=f"{job['url']}/v1", api_key="any", max_retries=0)
    kind = OpenAIResponsesModel if job["api"] == "openai_responses" else OpenAIChatCompletionsModel
    agent: Any = Agent(
        name="Bookkeeper",
        instructions=job["system"],
        model=kind(job["model"], client),
        tools=[function_tool(look_up)],
        model_settings=ModelSettings(store=False, max_tokens=500),
    )
    history: list[Any] = []
    answers = []
    for text in job["texts"]:
        ran = Runner.run_sync(agent, [*history, {"role": "user", "content": text}])
        history = ran.to_input_list()
        answers.append(ran.final_output)
    print(json.dumps(answers))


main()
