"""Run an agent of pydantic-ai with a tool; each run continues the messages of the previous one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


def look_up(entry: str) -> str:
    """Return the ledger's line about an entry."""
    return f"Entry {entry} is settled; the receipt is in folder {len(entry) + 40}. " * 6


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    if job["api"] == "anthropic":
        model: Any = AnthropicModel(
            job["model"], provider=AnthropicProvider(base_url=job["url"], api_key="any")
        )
    else:
        kind = OpenAIResponsesModel if job["api"] == "openai_responses" else OpenAIChatModel
        model = kind(
            job["model"],
            provider=OpenAIProvider(base_url=f"{job['url']}/v1", api_key="any"),
        )
    # Without a cap it asks for as much as the real model can say, which is more than the whole window.
    agent: Any = Agent(
        model,
        instructions=job["system"],
        tools=[look_up],
        model_settings={"max_tokens": 500},
    )
    history: Any = None
    answers = []
    for text in job["texts"]:
        ran = agent.run_sync(text, message_history=history)
        history = ran.all_messages()
        answers.append(ran.output)
    print(json.dumps(answers))


main()
