"""What an agent is given for its work: memory, a system prompt, tools, who listens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everthread.agent.base import Approver, Tool
from everthread.agent.loop import Agent
from everthread.agent.memory import Memory
from everthread.agent.prompt import AgentHooks, SystemPrompt
from everthread.agent.tools import file_tools
from everthread.agent.tools.delegate import Delegate
from everthread.agent.tools.memory import MemoryTool
from everthread.agent.tools.recall import Recall
from everthread.agent.tools.todo import Todo
from everthread.conversation.events import Event
from everthread.conversation.options import Route
from everthread.providers.base import ModelEvent
from everthread.store.store import Store


@dataclass(slots=True)
class Equipment:
    """Made before the agent; `agent` is set once there is one, and hears what its conversation tells."""

    workspace: Path
    memory: Memory
    approve: Approver
    instructions_chars: int
    given: Sequence[Tool] = ()
    """Tools besides the built-in ones."""
    builtin: bool = True
    talks: bool = False
    """It only talks: its prompt names no workspace."""
    agent: Agent | None = None
    window: int | None = None
    """Of the model that was found, until there is an agent to ask."""
    prompt: SystemPrompt = field(init=False)
    tools: list[Tool] = field(init=False)

    def __post_init__(self) -> None:
        texts = ("talk",) if self.talks else ("role", "tools") if self.builtin else ("role",)
        self.prompt = self._prompt(*texts)
        self.tools = [*(self._built_in() if self.builtin else ()), *self.given]

    def found(self, route: Route) -> None:
        """Which model is talked to; told before the first prompt is written."""
        self.window = route.window

    def hooks(self, store: Store) -> AgentHooks:
        return AgentHooks(self.memory, self.prompt, store)

    def hear(self, event: Event) -> None:
        """The conversation's listener."""
        if self.agent is not None:
            self.agent.hear(event)

    def hear_model(self, event: ModelEvent) -> None:
        """For the wrappers around a model that was chosen later."""
        if self.agent is not None:
            self.agent.conversation.on_model_event(event)

    def _built_in(self) -> list[Tool]:
        """In the order the model is shown them."""
        common: list[Tool] = [*file_tools(), Recall(), Todo(), MemoryTool(self.memory)]
        return [*common, Delegate(common, self.approve, system=self._prompt("subagent", "tools"), tell=self.hear)]

    def _prompt(self, *texts: str) -> SystemPrompt:
        return SystemPrompt(
            None if self.talks else self.workspace, self.memory, texts=texts,
            instructions_chars=self.instructions_chars, window=self._window,
        )  # fmt: skip

    def _window(self) -> int | None:
        return self.agent.conversation.window if self.agent is not None else self.window
