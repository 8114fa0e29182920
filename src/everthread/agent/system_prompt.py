"""Compose the system prompt of an agent.

It is composed once, when a session begins. Its stable parts come first, so that a cached prefix lasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from everthread.agent import MAX_INSTRUCTIONS_CHARS, MAX_INSTRUCTIONS_SHARE
from everthread.agent.memory import FILE_NAMES, MEMORY_KINDS, MemoryFiles
from everthread.agent.prompt_texts import load_prompt_text
from everthread.agent.tools.todo import format_todo, has_open_items
from everthread.core.tokens import TokenCounter
from everthread.errors import InputError

INSTRUCTIONS_FILE = "AGENTS.md"
_HEADINGS = {
    "memory": "What you remember of earlier sessions",
    "user": "What you know of the user",
}


class SystemPrompt:
    """The system prompt of an agent; the same files and window give the same bytes."""

    def __init__(
        self,
        workspace: Path | None,
        memory: MemoryFiles | None = None,
        *,
        texts: Sequence[str] = ("role",),
        max_instructions_chars: int = MAX_INSTRUCTIONS_CHARS,
        get_window: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._workspace = workspace
        self._memory = memory
        self._texts = texts
        self._max_instructions_chars = max_instructions_chars
        self._get_window = get_window
        self._todo = ""

    def __call__(self) -> str:
        parts = [*map(load_prompt_text, self._texts)]
        if self._workspace is not None:
            parts += [
                f"The workspace is {self._workspace}.",
                self._read_instructions(self._workspace),
            ]
        parts += self._make_memory_parts()
        if self._todo:
            parts.append(
                f"# Your list of tasks as it was when this part began; `todo` shows it now\n\n{self._todo}"
            )
            self._todo = ""
        return "\n\n".join(part for part in parts if part)

    def set_todo(self, items: Sequence[dict[str, str]]) -> None:
        """Set the open tasks that the prompt of the next session lists."""
        self._todo = format_todo(items) if has_open_items(items) else ""

    def _read_instructions(self, workspace: Path) -> str:
        file = workspace / INSTRUCTIONS_FILE
        try:
            if not file.resolve().is_relative_to(workspace.resolve()) or not file.is_file():
                return ""
            with file.open(encoding="utf-8", errors="replace") as stream:
                content = stream.read(self._max_instructions_chars + 1)
        except OSError as error:
            return f"({INSTRUCTIONS_FILE} of the project cannot be read: {error.strerror})"
        instructions = self._cut_to_window(content[: self._max_instructions_chars])
        if len(instructions) < len(content):
            instructions = f"{instructions.rstrip()}\n[{INSTRUCTIONS_FILE} is longer; read_file shows the rest]"
        instructions = instructions.strip()
        if not instructions:
            return ""
        return f"# The project's own instructions ({INSTRUCTIONS_FILE})\n\n{instructions}"

    def _cut_to_window(self, instructions: str) -> str:
        """Cut the instructions to their share of the window."""
        window = self._get_window()
        if window is None:
            return instructions
        max_tokens = int(window * MAX_INSTRUCTIONS_SHARE)
        counter = TokenCounter()
        while instructions and (tokens := counter.text(instructions)) > max_tokens:
            max_chars = len(instructions) * max_tokens // tokens
            instructions = instructions[: min(len(instructions) - 1, max_chars)]
        return instructions

    def _make_memory_parts(self) -> list[str]:
        if self._memory is None:
            return []
        parts = []
        for kind in MEMORY_KINDS:
            try:
                entries = self._memory.read_text(kind)
            except InputError as error:
                entries = f"({error})"
            if entries:
                parts.append(f"# {_HEADINGS[kind]} ({FILE_NAMES[kind]})\n\n{entries}")
        return parts
