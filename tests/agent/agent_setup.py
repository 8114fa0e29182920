"""Agents for tests: a real store and home in a folder, and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everthread import Agent, open_agent, open_store
from everthread.agent.tool_interface import Permission, ToolContext, ToolReply
from everthread.config import parse_config
from everthread.store.store import Store
from everthread.testing import PrefixWatch, ScriptedModel
from everthread.thread.events import CompactionDone, Event
from tests.chat_messages import call_reply
from tests.conversation.conversation_setup import numbered_text

Work = Callable[[Mapping[str, Any], ToolContext], Awaitable[ToolReply]]


@dataclass
class FakeTool:
    """A tool that calls a function. `kind`: the kind of permission it needs."""

    name: str
    work: Work
    kind: Any = None
    seen: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def schema(self) -> dict[str, Any]:
        parameters = {
            "type": "object",
            "properties": {
                "what": {"type": "string"},
            },
        }
        function = {
            "name": self.name,
            "description": f"Does {self.name}.",
            "parameters": parameters,
        }
        return {"type": "function", "function": function}

    def needs(
        self,
        arguments: Mapping[str, Any],
        context: ToolContext,  # noqa: ARG002
    ) -> Permission | None:
        return Permission(self.kind, str(arguments.get("what", ""))) if self.kind else None

    async def call(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        self.seen.append(arguments)
        return await self.work(arguments, context)


class EndlessWork:
    """The work of a tool that ends only when it is cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.is_ended = False

    async def __call__(
        self,
        arguments: Mapping[str, Any],  # noqa: ARG002
        context: ToolContext,  # noqa: ARG002
    ) -> ToolReply:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_ended = True
        return ToolReply("never")


def text_tool(name: str, text: str = "done", **more: Any) -> FakeTool:
    async def work(arguments: Mapping[str, Any], context: ToolContext) -> ToolReply:
        return ToolReply(text)

    return FakeTool(name, work, **more)


class Agents:
    """A folder with a store, a workspace and agents in it."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.workspace = folder / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.watch = PrefixWatch()
        self.opened: list[Agent] = []

    async def open(self, model: Any, *, config: str = "", **more: Any) -> Agent:
        more.setdefault("summarizer", "journal")
        more.setdefault("yes", True)
        agent = await open_agent(
            parse_config(config),
            model=model,
            workspace=self.workspace,
            store=self.store,
            listener=self.watch,
            **more,
        )
        self.opened.append(agent)
        return agent

    async def run_calls(self, *calls: Any, **options: Any) -> Agent:
        """Open an agent whose model makes these calls in one turn and then answers; run that turn."""
        agent = await self.open(ScriptedModel([call_reply(*calls), "Done."]), **options)
        await agent.send("Go.")
        return agent

    def events_of(self, kind: type[Event]) -> list[Any]:
        return self.watch.of(kind)

    async def send_until_compacted(self, agent: Agent, count: int, times: int = 1) -> int:
        """Send texts of `count` tokens until this many compactions are done; return the number of turns."""
        turn = 0
        while len(self.events_of(CompactionDone)) < times:
            turn += 1
            await agent.send(numbered_text(turn, count, "page"))
        return turn


@asynccontextmanager
async def open_agents(folder: Path) -> AsyncIterator[Agents]:
    """Open a agents. At its end, check that no request broke its session's prefix."""
    store = open_store(folder / "store.db")
    agents = Agents(folder, store)
    try:
        yield agents
    finally:
        for agent in agents.opened:
            await agent.close()
        await store.close()
    assert not agents.watch.broken, list(map(str, agents.watch.broken))


def tool_results(agent: Agent) -> list[str]:
    """Return the tool results in the context, in order."""
    return [
        str(message.get("content"))
        for message in agent.conversation.messages
        if message["role"] == "tool"
    ]
