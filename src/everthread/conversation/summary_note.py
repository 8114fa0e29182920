"""The note that there are summaries, after the system prompt."""

from __future__ import annotations

from everthread.core.messages import Part
from everthread.core.types import System

_OURS = "_everthread_note"
"""Marks the note's block; removed before a request is sent."""


def with_note(fresh: System, note: str) -> System:
    """Return the prompt with the note after it; an empty prompt stays empty."""
    if not note or not fresh:
        return fresh
    return [*_blocks(fresh), {"type": "text", "text": note, _OURS: True}]


def note_in(system: System) -> str:
    return next(
        (str(block["text"]) for block in _blocks(system) if block.get(_OURS)), ""
    )


def without_note(system: System) -> System:
    """Return the prompt without the note."""
    if not note_in(system):
        return system
    rest = [block for block in _blocks(system) if not block.get(_OURS)]
    plain = len(rest) == 1 and set(rest[0]) == {"type", "text"}
    return str(rest[0]["text"]) if plain else rest


def as_sent(system: System) -> System:
    if not isinstance(system, list):
        return system
    return [
        {key: value for key, value in block.items() if key != _OURS} for block in system
    ]


def _blocks(system: System) -> list[Part]:
    return (
        [{"type": "text", "text": system}]
        if isinstance(system, str)
        else list(system or ())
    )
