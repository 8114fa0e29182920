"""What is recalled before a call: the values and the part of the protocol that has it."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RecallQuery:
    """A message as it was written, and where to look for what it asks. Unlike a search, no word must be found.

    What only looked up earlier things is passed over: it would be found instead of them.
    """

    text: str
    tenant: str
    thread: str | None = None
    """None: in all of the tenant's threads."""
    seen: AbstractSet[int] = frozenset()
    """Messages that need no recalling: they are in view."""
    spoken: bool = False
    """Only words of people and of the model: no calls, no results, which a tool can give anew."""
    limit: int = 10
    least: float = 0.0
    """Nothing is found unless one place holds so much of what was asked (0 to 1)."""
    chars: int = 600
    """The most of one place."""
    now: float | None = None
    """The moment `yesterday` is told from; None: now."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A place that may answer. `message` is None for a stored output, `output` for a message."""

    message: int | None
    output: str | None
    thread: str
    role: str
    tool: str
    turn: int
    """Which of its thread's turns it is of, from 1; 0 before the first."""
    created: float
    text: str
    """As it was said, without secrets; `…` where it goes on."""
    score: float
    closeness: float
    """How much of what was asked it holds itself, 0 to 1."""


class RecallingStore(Protocol):
    async def recall(self, query: RecallQuery) -> list[Passage]:
        """What may answer a message, the best first."""
        ...
