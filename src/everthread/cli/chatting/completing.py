"""What Tab offers: slash commands, and the paths of the workspace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

MOST = 200
"""Paths offered at once; a directory may hold any number."""
_WORD = re.compile(r"[^\s'\"`(<]*$")


class ChatCompleter(Completer):
    """Names of commands at the start of a line that begins with a slash; paths where a word looks like one."""

    def __init__(self, commands: Sequence[tuple[str, str]], workspace: Path) -> None:
        self._commands = commands
        self._workspace = workspace

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and not re.search(r"\s", text):
            for name, words in self._commands:
                if name.startswith(text):
                    yield Completion(name, start_position=-len(text), display_meta=words)
            if any(name.startswith(text) for name, _ in self._commands):
                return
        found = _WORD.search(text)
        word = found[0] if found else ""
        if complete_event.completion_requested or "/" in word:
            yield from self._paths(word)

    def _paths(self, word: str) -> Iterator[Completion]:
        folder, slash, start = word.rpartition("/")
        place = Path(f"{folder}{slash}").expanduser()
        try:
            entries = sorted((self._workspace / place).iterdir())
        except (OSError, ValueError, RuntimeError):
            return  # no directory of that name: nothing to offer
        shown = [entry for entry in entries if entry.name.startswith(start) and (start or entry.name[0] != ".")]
        for entry in shown[:MOST]:
            name = f"{entry.name}/" if entry.is_dir() else entry.name
            if name.isprintable():
                yield Completion(name, start_position=-len(start))
