"""A thread's graph of summaries: leaves over messages, condensed nodes over nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    """One summary in a thread's graph: a leaf over messages, or a condensed one over nodes."""

    id: str
    thread: str
    level: int
    body: str
    tokens: int
    covered_tokens: int
    author: str
    first_message: int
    last_message: int
    first_turn: int
    last_turn: int
    since: float
    until: float
    sources: tuple[str, ...]
    """Ids of what it covers: message ids as text for a leaf, node ids above."""
    degraded: bool = False
