"""Values of a trial: a stored thread replayed with other settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import Message


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """A stored thread, to be replayed with other settings."""

    source: str
    model: str
    window: int
    system: Any
    messages: Sequence[tuple[Message, float]]
    threshold: float
    ratio: float


@dataclass(frozen=True, slots=True)
class TrialRun:
    """The figures of one replay."""

    name: str
    prompts: Sequence[int]
    compactions: Sequence[int]
    """Indexes of the calls after each compaction."""
    cost: float | None
    facts: tuple[int, int, int] | None = None
    """Numbers of facts that are in the context at the end, found by search, and lost."""
    refused: bool = False


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The replays of a thread, to compare."""

    runs: Sequence[TrialRun]
    """The replays with the configured settings, with the settings to try, and without compaction."""
    notes: Sequence[str] = ()


RunTrial = Callable[[TrialRequest], Awaitable[TrialResult]]
