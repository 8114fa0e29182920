"""What a probe found, as values and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everthread.lab.probe.held import Compacted


@dataclass(frozen=True, slots=True)
class Asked:
    """One question: how much of its evidence is in the context, and where recall has the rest."""

    question: str
    kind: str
    pieces: int
    """How many pieces of evidence it has."""
    in_context: int
    ranks: tuple[int, ...]
    """For each piece that is not: which of recall's results has it, from 1; 0 for none."""
    tokens: tuple[int, ...]
    """What the results cost, added up: those of the first, of the first two, …"""

    def known(self, first: int = 0) -> float:
        """The share of the evidence that is in the context or in so many results."""
        return (self.in_context + sum(0 < rank <= first for rank in self.ranks)) / self.pieces

    def cost(self, first: int) -> int:
        """Tokens of so many results."""
        return self.tokens[min(first, len(self.tokens)) - 1] if self.tokens and first else 0


@dataclass(frozen=True, slots=True)
class Probed:
    """All questions put to one conversation, at its end."""

    source: str
    engine: str
    window: int
    threshold: int
    firsts: tuple[int, ...]
    """How many of recall's results are looked at."""
    messages: int
    whole: int
    """Tokens of everything that was said."""
    context: int
    """Tokens of what is in view."""
    compactions: Sequence[Compacted]
    asked: Sequence[Asked]
    notes: Sequence[str] = ()
    seconds: float = 0.0

    @property
    def kinds(self) -> list[str]:
        return list(dict.fromkeys(sorted(asked.kind for asked in self.asked)))

    def of(self, kind: str | None) -> list[Asked]:
        return [asked for asked in self.asked if kind is None or asked.kind == kind]

    def in_context(self, kind: str | None = None) -> float:
        """The mean share of a question's evidence that is in the context."""
        return self.within(0, kind)

    def within(self, first: int, kind: str | None = None) -> float:
        """The same, or in so many of recall's results."""
        return statistics.fmean(asked.known(first) for asked in self.of(kind))

    def cost(self, first: int, kind: str | None = None) -> float:
        """Tokens of so many results, in the mean over the questions."""
        return statistics.fmean(asked.cost(first) for asked in self.of(kind))

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "source": self.source,
            "engine": self.engine,
            "window": self.window,
            "threshold": self.threshold,
            "messages": self.messages,
            "tokens": self.whole,
            "context_tokens": self.context,
            "compactions": [
                {"tokens_before": made.tokens_before, "tokens_after": made.tokens_after} for made in self.compactions
            ],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "all": self._figures(None),
            "categories": {kind: self._figures(kind) for kind in self.kinds},
            "questions": [
                {
                    "question": asked.question,
                    "category": asked.kind,
                    "evidence": asked.pieces,
                    "in_context": asked.in_context,
                    "ranks": list(asked.ranks),
                    "recall_tokens": {str(first): asked.cost(first) for first in self.firsts},
                }
                for asked in self.asked
            ],
        }

    def _figures(self, kind: str | None) -> dict[str, Any]:
        return {
            "questions": len(self.of(kind)),
            "in_context": round(self.in_context(kind), 4),
            "within": {str(first): round(self.within(first, kind), 4) for first in self.firsts},
            "lost": round(1 - self.within(max(self.firsts), kind), 4),
            "recall_tokens": {str(first): round(self.cost(first, kind), 1) for first in self.firsts},
        }


def together(probed: Sequence[Probed]) -> Probed:
    """Several conversations held alike as one: their questions count alike."""
    first = probed[0]
    return Probed(
        f"{len(probed)} conversations", first.engine, first.window, first.threshold, first.firsts,
        sum(one.messages for one in probed), sum(one.whole for one in probed), sum(one.context for one in probed),
        [made for one in probed for made in one.compactions], [asked for one in probed for asked in one.asked],
        seconds=sum(one.seconds for one in probed),
    )  # fmt: skip
