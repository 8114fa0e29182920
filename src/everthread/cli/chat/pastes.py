"""Fold long pastes into a short placeholder while the user edits."""

from __future__ import annotations

from prompt_toolkit.history import FileHistory

from everthread.core.text import count_noun

MAX_PASTE_LINES = 4
MAX_PASTE_CHARS = 400
"""A longer paste is folded."""


class Pastes:
    """The pasted texts of a chat, by their placeholders."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def fold(self, text: str) -> str:
        """Return the text, or a placeholder if it is long."""
        lines = len(text.splitlines())
        if lines <= MAX_PASTE_LINES and len(text) <= MAX_PASTE_CHARS:
            return text
        size_text = count_noun(lines, "line") if lines > 1 else f"{len(text):,} characters"
        placeholder = f"[paste {len(self._texts) + 1}: {size_text}]"
        self._texts[placeholder] = text
        return placeholder

    def expand_placeholders(self, text: str) -> str:
        """Return the text with every placeholder replaced by the pasted text."""
        for placeholder, pasted in self._texts.items():
            text = text.replace(placeholder, pasted)
        return text


class PasteExpandingHistory(FileHistory):
    """An input history that stores the pasted texts, since placeholders are valid within one chat only."""

    def __init__(self, file: str, pastes: Pastes) -> None:
        super().__init__(file)
        self._pastes = pastes

    def store_string(self, string: str) -> None:
        super().store_string(self._pastes.expand_placeholders(string))
