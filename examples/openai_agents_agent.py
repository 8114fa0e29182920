"""An OpenAI agent that outlives its model's window. Needs OPENAI_API_KEY, or OPENAI_BASE_URL of another server."""

from agents import Agent, Runner, function_tool

from everthread.integrations.openai_agents import EverthreadSession


def look_up(entry: str) -> str:
    """What the book says about an entry."""
    return f"Entry {entry} is settled; its receipt was compared twice. " * 40


session = EverthreadSession("books")
agent = Agent("bookkeeper", tools=[function_tool(look_up), session.recall_tool], model="gpt-4o")
for number in range(3):
    asked = f"Look up entry {number}."
    answer = Runner.run_sync(agent, asked, session=session, run_config=session.run_config())
    print(answer.final_output)
