"""A pydantic-ai agent that outlives its model's window. Needs OPENAI_API_KEY, or OPENAI_BASE_URL of another server."""

from pydantic_ai import Agent, ModelMessage
from pydantic_ai.models.openai import OpenAIChatModel

from everthread.integrations.pydantic_ai import Everthread


def look_up(entry: str) -> str:
    """What the book says about an entry."""
    return f"Entry {entry} is settled; its receipt was compared twice. " * 40


agent = Agent(OpenAIChatModel("gpt-4o"), tools=[look_up], capabilities=[Everthread()])
history: list[ModelMessage] = []
for number in range(3):
    answer = agent.run_sync(f"Look up entry {number}.", message_history=history)
    history = answer.all_messages()
    print(answer.output)
