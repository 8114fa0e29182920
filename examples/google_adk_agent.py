"""A Google ADK agent that outlives its model's window. Needs OPENAI_API_KEY, or OPENAI_BASE_URL of another server."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner

from everthread.integrations.google_adk import EverthreadPlugin


def look_up(entry: str) -> str:
    """What the book says about an entry."""
    return f"Entry {entry} is settled; its receipt was compared twice. " * 40


# Or model="gemini-2.5-pro".
agent = LlmAgent(name="bookkeeper", model=LiteLlm("openai/gpt-4o"), tools=[look_up])
runner = InMemoryRunner(app=App(name="books", root_agent=agent, plugins=[EverthreadPlugin()]))


async def main() -> None:
    for number in range(3):
        await runner.run_debug(f"Look up entry {number}.", session_id="books")


asyncio.run(main())
