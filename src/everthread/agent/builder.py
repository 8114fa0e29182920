"""Build the system prompt and the tools of an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everthread.agent.memory import MemoryFiles
from everthread.agent.system_prompt import SystemPrompt
from everthread.agent.tool_interface import Approver, Tool
from everthread.agent.tools import make_file_tools
from everthread.agent.tools.delegate import Delegate
from everthread.agent.tools.memory_tool import MemoryTool
from everthread.agent.tools.recall import Recall
from everthread.agent.tools.todo import Todo, load_todo
from everthread.store.store import Store
from everthread.thread.events import Listener, ignore_event


@dataclass(slots=True)
class AgentBuilder:
    """Builds the prompt and the tools of an agent.

    Before a compaction it writes memory to disk and notes the open tasks for the next prompt.
    """

    store: Store
    workspace: Path
    memory: MemoryFiles
    approve: Approver
    max_instructions_chars: int
    extra_tools: Sequence[Tool] = ()
    """Tools besides the built-in ones."""
    has_builtin_tools: bool = True
    is_chat_only: bool = False
    """Whether the agent has no built-in tools, and its prompt names no workspace."""
    listener: Listener = ignore_event
    """Gets the events of subagents."""
    get_window: Callable[[], int | None] = lambda: None
    """Returns the model's window, to which the prompt is cut."""
    prompt: SystemPrompt = field(init=False)
    tools: list[Tool] = field(init=False)

    def __post_init__(self) -> None:
        if self.is_chat_only:
            self.prompt = self._make_prompt("talk")
        elif self.has_builtin_tools:
            self.prompt = self._make_prompt("role", "tools")
        else:
            self.prompt = self._make_prompt("role")
        builtin_tools = self._make_builtin_tools() if self.has_builtin_tools else []
        self.tools = [*builtin_tools, *self.extra_tools]

    async def before_compaction(self, session: str) -> None:
        """Save memory and show the open tasks, before a compaction of this session is committed."""
        await self.memory.wait_for_changes()
        thread = (await self.store.load_session(session)).thread
        if (await self.store.load_session(thread)).kind != "subagent":
            self.prompt.set_todo(await load_todo(self.store, thread))

    def _make_builtin_tools(self) -> list[Tool]:
        """Return the built-in tools, in the order the model sees them."""
        common_tools = [*make_file_tools(), Recall(), Todo(), MemoryTool(self.memory)]
        prompt = self._make_prompt("subagent", "tools")
        delegate = Delegate(common_tools, self.approve, system=prompt, listener=self.listener)
        return [*common_tools, delegate]

    def _make_prompt(self, *texts: str) -> SystemPrompt:
        return SystemPrompt(
            None if self.is_chat_only else self.workspace,
            self.memory,
            texts=texts,
            max_instructions_chars=self.max_instructions_chars,
            get_window=self.get_window,
        )
