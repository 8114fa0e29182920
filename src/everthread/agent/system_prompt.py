"""Write the system prompt of an agent.

It is written once, when a session begins. Its stable parts come first, so that a cached prefix lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from everthread.agent import INSTRUCTIONS_CHARS, INSTRUCTIONS_SHARE
from everthread.agent.memory import FILES, MEMORY_KINDS, MemoryFiles
from everthread.agent.tool_interface import text
from everthread.agent.tools.conversation_tools import (
    has_open,
    todo_text,
)
from everthread.core.tokens import TokenCounter
from everthread.errors import InputError

INSTRUCTIONS = "AGENTS.md"
_HEADINGS = {
    "memory": "What you remember of earlier sessions",
    "user": "What you know of the user",
}


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
        self._workspace = workspace
        self._memory = memory
        self._texts = texts
        self._limit = instructions_chars
        self._window = window
        self._todo = ""

    def __call__(self) -> str:
        parts = [*map(text, self._texts)]
        if self._workspace is not None:
            parts += [
                f"The workspace is {self._workspace}.",
                self._read_instructions(self._workspace),
            ]
        parts += self._memory_parts()
        if self._todo:
            parts.append(
                f"# Your list of tasks as it was when this part began; `todo` shows it now\n\n{self._todo}"
            )
            self._todo = ""
        return "\n\n".join(part for part in parts if part)

    def set_todo(self, items: Sequence[dict[str, str]]) -> None:
        """Set the open tasks that the prompt of the next session lists."""
        self._todo = todo_text(items) if has_open(items) else ""

    def _read_instructions(self, workspace: Path) -> str:
        file = workspace / INSTRUCTIONS
        try:
            if (
                not file.resolve().is_relative_to(workspace.resolve())
                or not file.is_file()
            ):
                return ""
            with file.open(encoding="utf-8", errors="replace") as opened:
                content = opened.read(self._limit + 1)
        except OSError as error:
            return f"({INSTRUCTIONS} of the project cannot be read: {error.strerror})"
        instructions = self._cut_to_window(content[: self._limit])
        if len(instructions) < len(content):
            instructions = f"{instructions.rstrip()}\n[{INSTRUCTIONS} is longer; read_file shows the rest]"
        instructions = instructions.strip()
        return (
            f"# The project's own instructions ({INSTRUCTIONS})\n\n{instructions}"
            if instructions
            else ""
        )

    def _cut_to_window(self, text_to_fit: str) -> str:
        """Cut the instructions to their share of the window."""
        window = self._window()
        counter = TokenCounter()
        room = None if window is None else int(window * INSTRUCTIONS_SHARE)
        while (
            text_to_fit
            and room is not None
            and (tokens := counter.text(text_to_fit)) > room
        ):
            text_to_fit = text_to_fit[
                : min(len(text_to_fit) - 1, len(text_to_fit) * room // tokens)
            ]
        return text_to_fit

    def _memory_parts(self) -> list[str]:
        if self._memory is None:
            return []
        parts = []
        for shelf in MEMORY_KINDS:
            try:
                entries = self._memory.text(shelf)
            except InputError as error:
                entries = f"({error})"
            parts += (
                [f"# {_HEADINGS[shelf]} ({FILES[shelf]})\n\n{entries}"]
                if entries
                else []
            )
        return parts
