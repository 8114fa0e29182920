"""What an agent is given for its work: a system prompt, memory, tools, who listens.

The system prompt is written when a session begins, and only then. What changes least stands first, so that a cached
prefix lasts.
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
from everthread.conversation.options import Route
from everthread.core.tokens import TokenCounter
from everthread.errors import InputError
from everthread.providers.base import ModelEvent
from everthread.store.store import Store

INSTRUCTIONS = "AGENTS.md"
_HEADINGS = {"memory": "What you remember of earlier sessions", "user": "What you know of the user"}


class SystemPrompt:
    """Who writes it: the same files and the same window give the same bytes. Without a workspace it names none."""

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
        self._plan = ""

    def __call__(self) -> str:
        parts = [*map(text, self._texts)]
        if self._workspace is not None:
            parts += [f"The workspace is {self._workspace}.", self._instructions(self._workspace)]
        parts += self._remembered()
        if self._plan:
            parts.append(f"# Your list of tasks as it was when this part began; `todo` shows it now\n\n{self._plan}")
            self._plan = ""
        return "\n\n".join(part for part in parts if part)

    def plan(self, items: Sequence[dict[str, str]]) -> None:
        """For the session that begins next: what is still to be done in its thread."""
        self._plan = todo_text(items) if has_open(items) else ""

    def _instructions(self, workspace: Path) -> str:
        file = workspace / INSTRUCTIONS
        try:
            if not file.resolve().is_relative_to(workspace.resolve()) or not file.is_file():
                return ""
            with file.open(encoding="utf-8", errors="replace") as opened:
                whole = opened.read(self._limit + 1)
        except OSError as error:
            return f"({INSTRUCTIONS} of the project cannot be read: {error.strerror})"
        said = self._fitting(whole[: self._limit])
        if len(said) < len(whole):
            said = f"{said.rstrip()}\n[{INSTRUCTIONS} is longer; read_file shows the rest]"
        return f"# The project's own instructions ({INSTRUCTIONS})\n\n{said.strip()}" if said.strip() else ""

    def _fitting(self, said: str) -> str:
        """As much of it as its share of the window holds."""
        window, counter = self._window(), TokenCounter()
        room = None if window is None else int(window * INSTRUCTIONS_SHARE)
        while said and room is not None and (tokens := counter.text(said)) > room:
            said = said[: min(len(said) - 1, len(said) * room // tokens)]
        return said

    def _remembered(self) -> list[str]:
        if self._memory is None:
            return []
        parts = []
        for shelf in SHELVES:
            try:
                said = self._memory.text(shelf)
            except InputError as error:
                said = f"({error})"
            parts += [f"# {_HEADINGS[shelf]} ({FILES[shelf]})\n\n{said}"] if said else []
        return parts


@dataclass(slots=True)
class Equipment:
    """Made before the agent; `agent` is set once there is one, and hears what its conversation tells.

    Before a compaction memory is on disk, and the next prompt knows what was still to be done.
    """

    store: Store
    workspace: Path
    memory: MemoryFiles
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

    async def before_compaction(self, session: str) -> None:
        await self.memory.settle()
        thread = (await self.store.session(session)).thread
        if (await self.store.session(thread)).kind != "subagent":
            self.prompt.plan(await load_todo(self.store, thread))

    async def after_compaction(self, session: str, previous: str) -> None:
        """Nothing is left to do."""

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
