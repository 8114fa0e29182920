"""The system prompt of an agent: who it is, where it works, the project's instructions, its memory.

Written when a session begins, and only then. What changes least stands first, so that a cached prefix lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from everthread.agent.limits import INSTRUCTIONS_CHARS, INSTRUCTIONS_SHARE
from everthread.agent.memory import FILES, SHELVES, Memory
from everthread.agent.texts import text
from everthread.agent.tools import todo
from everthread.core.tokens import TokenCounter
from everthread.errors import InputError
from everthread.store.store import Store

INSTRUCTIONS = "AGENTS.md"
_HEADINGS = {"memory": "What you remember of earlier sessions", "user": "What you know of the user"}


def _unknown() -> int | None:
    """A window nobody knows limits nothing."""
    return None


class SystemPrompt:
    """Who writes it: the same files and the same window give the same bytes. Without a workspace it names none."""

    def __init__(
        self,
        workspace: Path | None,
        memory: Memory | None = None,
        *,
        texts: Sequence[str] = ("role",),
        instructions_chars: int = INSTRUCTIONS_CHARS,
        window: Callable[[], int | None] = _unknown,
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
        self._plan = todo.shown(items) if todo.is_open(items) else ""

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


class AgentHooks:
    """Around a compaction: memory is on disk before it, and the next prompt knows what was still to be done."""

    def __init__(self, memory: Memory, prompt: SystemPrompt, store: Store) -> None:
        self._memory, self._prompt, self._store = memory, prompt, store

    async def before_compaction(self, session: str) -> None:
        await self._memory.before_compaction(session)
        thread = (await self._store.session(session)).thread
        if (await self._store.session(thread)).kind != "subagent":
            self._prompt.plan(await todo.load(self._store, thread))

    async def after_compaction(self, session: str, previous: str) -> None:
        await self._memory.after_compaction(session, previous)
