"""What an agent is built from: a system prompt, memory, tools, a listener.

The system prompt is written once, when a session begins. Its stable parts come first, so that a cached prefix lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everthread.agent import INSTRUCTIONS_CHARS, INSTRUCTIONS_SHARE
from everthread.agent.base import Approver, Tool, text
from everthread.agent.loop import Agent
from everthread.agent.memory import FILES, SHELVES, MemoryFiles
from everthread.agent.tools import file_tools
from everthread.agent.tools.conversation import MemoryTool, Recall, Todo, has_open, load_todo, todo_text
from everthread.agent.tools.delegate import Delegate
from everthread.conversation.events import Event
from everthread.conversation.options import Hooks, Route
from everthread.core.tokens import TokenCounter
from everthread.errors import InputError
from everthread.providers.resilience import ModelEvent
from everthread.store.store import Store

INSTRUCTIONS = "AGENTS.md"
_HEADINGS = {"memory": "What you remember of earlier sessions", "user": "What you know of the user"}


class SystemPrompt:
    """Writes the system prompt: the same files and the same window give the same bytes."""

    def __init__(
        self,
        workspace: Path | None,
        memory: MemoryFiles | None = None,
        *,
        texts: Sequence[str] = ("role",),
        instructions_chars: int = INSTRUCTIONS_CHARS,
        window: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._workspace, self._memory, self._texts, self._limit = workspace, memory, texts, instructions_chars
        self._window = window
        self._todo = ""

    def __call__(self) -> str:
        parts = [*map(text, self._texts)]
        if self._workspace is not None:
            parts += [f"The workspace is {self._workspace}.", self._read_instructions(self._workspace)]
        parts += self._memory_parts()
        if self._todo:
            parts.append(f"# Your list of tasks as it was when this part began; `todo` shows it now\n\n{self._todo}")
            self._todo = ""
        return "\n\n".join(part for part in parts if part)

    def set_todo(self, items: Sequence[dict[str, str]]) -> None:
        """Set the open tasks that the prompt of the next session lists."""
        self._todo = todo_text(items) if has_open(items) else ""

    def _read_instructions(self, workspace: Path) -> str:
        file = workspace / INSTRUCTIONS
        try:
            if not file.resolve().is_relative_to(workspace.resolve()) or not file.is_file():
                return ""
            with file.open(encoding="utf-8", errors="replace") as opened:
                content = opened.read(self._limit + 1)
        except OSError as error:
            return f"({INSTRUCTIONS} of the project cannot be read: {error.strerror})"
        instructions = self._cut_to_window(content[: self._limit])
        if len(instructions) < len(content):
            instructions = f"{instructions.rstrip()}\n[{INSTRUCTIONS} is longer; read_file shows the rest]"
        instructions = instructions.strip()
        return f"# The project's own instructions ({INSTRUCTIONS})\n\n{instructions}" if instructions else ""

    def _cut_to_window(self, text_to_fit: str) -> str:
        """Cut the instructions to their share of the window."""
        window, counter = self._window(), TokenCounter()
        room = None if window is None else int(window * INSTRUCTIONS_SHARE)
        while text_to_fit and room is not None and (tokens := counter.text(text_to_fit)) > room:
            text_to_fit = text_to_fit[: min(len(text_to_fit) - 1, len(text_to_fit) * room // tokens)]
        return text_to_fit

    def _memory_parts(self) -> list[str]:
        if self._memory is None:
            return []
        parts = []
        for shelf in SHELVES:
            try:
                entries = self._memory.text(shelf)
            except InputError as error:
                entries = f"({error})"
            parts += [f"# {_HEADINGS[shelf]} ({FILES[shelf]})\n\n{entries}"] if entries else []
        return parts


@dataclass(slots=True)
class Equipment(Hooks):
    """Built before the agent; `agent` is set once there is one, and gets the events of its conversation.

    Before a compaction it writes memory to disk and notes the open tasks for the next prompt.
    """

    store: Store
    workspace: Path
    memory: MemoryFiles
    approve: Approver
    instructions_chars: int
    extra_tools: Sequence[Tool] = ()
    """Tools besides the built-in ones."""
    builtin: bool = True
    is_talk_only: bool = False
    """It has no tools of its own, and its prompt names no workspace."""
    agent: Agent | None = None
    window: int | None = None
    """The model's window, until there is an agent to ask."""
    prompt: SystemPrompt = field(init=False)
    tools: list[Tool] = field(init=False)

    def __post_init__(self) -> None:
        texts = ("talk",) if self.is_talk_only else ("role", "tools") if self.builtin else ("role",)
        self.prompt = self._make_prompt(*texts)
        self.tools = [*(self._make_builtin_tools() if self.builtin else ()), *self.extra_tools]

    def use_route(self, route: Route) -> None:
        """Note the model's window, before the first prompt is written."""
        self.window = route.window

    async def before_compaction(self, session: str) -> None:
        await self.memory.settle()
        thread = (await self.store.session(session)).thread
        if (await self.store.session(thread)).kind != "subagent":
            self.prompt.set_todo(await load_todo(self.store, thread))

    async def after_compaction(self, session: str, previous: str) -> None:
        """Nothing to do."""

    def on_event(self, event: Event) -> None:
        """The conversation's listener."""
        if self.agent is not None:
            self.agent.on_event(event)

    def on_model_event(self, event: ModelEvent) -> None:
        """Listen to the wrappers around a model that was chosen later."""
        if self.agent is not None:
            self.agent.conversation.on_model_event(event)

    def _make_builtin_tools(self) -> list[Tool]:
        """The built-in tools, in the order the model sees them."""
        common: list[Tool] = [*file_tools(), Recall(), Todo(), MemoryTool(self.memory)]
        prompt = self._make_prompt("subagent", "tools")
        return [*common, Delegate(common, self.approve, system=prompt, tell=self.on_event)]

    def _make_prompt(self, *texts: str) -> SystemPrompt:
        return SystemPrompt(
            None if self.is_talk_only else self.workspace, self.memory, texts=texts,
            instructions_chars=self.instructions_chars, window=self._window,
        )  # fmt: skip

    def _window(self) -> int | None:
        return self.agent.conversation.window if self.agent is not None else self.window
