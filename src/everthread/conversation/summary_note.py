"""The note after the system prompt that the context contains summaries."""

from __future__ import annotations

from everthread.core.messages import Part
from everthread.core.types import System

_NOTE_MARK = "_everthread_note"
"""Marks the note's block; removed before a request is sent."""


def with_note(prompt: System, note: str) -> System:
    """Return the prompt with the note after it; an empty prompt stays empty."""
    if not note or not prompt:
        return prompt
    return [*_as_blocks(prompt), {"type": "text", "text": note, _NOTE_MARK: True}]


def find_note(system: System) -> str:
    return next(
        (str(block["text"]) for block in _as_blocks(system) if block.get(_NOTE_MARK)),
        "",
    )


def without_note(system: System) -> System:
    """Return the prompt without the note."""
    if not find_note(system):
        return system
    other_blocks = [block for block in _as_blocks(system) if not block.get(_NOTE_MARK)]
    is_plain_text = len(other_blocks) == 1 and set(other_blocks[0]) == {"type", "text"}
    return str(other_blocks[0]["text"]) if is_plain_text else other_blocks


def without_note_marks(system: System) -> System:
    if not isinstance(system, list):
        return system
    return [{key: value for key, value in block.items() if key != _NOTE_MARK} for block in system]


def _as_blocks(system: System) -> list[Part]:
    return [{"type": "text", "text": system}] if isinstance(system, str) else list(system or ())
