"""A LangChain agent that outlives its model's window. Needs OPENAI_API_KEY, or OPENAI_BASE_URL of another server."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from everthread.integrations.langchain import EverthreadMiddleware


def look_up(entry: str) -> str:
    """What the book says about an entry."""
    return f"Entry {entry} is settled; its receipt was compared twice. " * 40


agent = create_agent(
    ChatOpenAI(model="gpt-4o"),
    [look_up],
    middleware=[EverthreadMiddleware()],
    checkpointer=InMemorySaver(),
)
for number in range(3):
    said = {"messages": [{"role": "user", "content": f"Look up entry {number}."}]}
    state = agent.invoke(said, {"configurable": {"thread_id": "books"}})
    print(state["messages"][-1].text)
