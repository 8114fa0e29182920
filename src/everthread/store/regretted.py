"""What is kept of things that a compaction took out and that were fetched again: the values and their protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class RegretRecord:
    """`session` is the continuation the compaction made; `call_id` the call that fetched it again."""

    session: str
    kind: str
    """`read`, `run` or `recall`."""
    what: str
    call_id: str
    created: float


class RegrettingStore(Protocol):
    async def note_regret(self, session_id: str, kind: str, what: str, *, call_id: str = "") -> bool:
        """Write it down; False where it is known already."""
        ...

    async def regrets(self, thread: str) -> list[RegretRecord]:
        """All of a thread, in order; those of compactions that were undone are not among them."""
        ...
