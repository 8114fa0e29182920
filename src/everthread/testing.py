"""Test doubles for people who build on Everthread: ordinary implementations of its protocols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from everthread.core.summary import Sections, SummaryDraft, SummaryRequest
from everthread.errors import SummaryError


@dataclass
class ScriptedSummarizer:
    """Answers with sections given beforehand, or made from the request; remembers what it was asked."""

    sections: Mapping[str, str] | Callable[[SummaryRequest], Sections] = field(default_factory=dict)
    name: str = "scripted"
    fails: str = ""
    """An error to raise instead."""
    requests: list[SummaryRequest] = field(default_factory=list)

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        self.requests.append(request)
        if self.fails:
            raise SummaryError(self.fails, passing=True)
        made = self.sections(request) if callable(self.sections) else dict(self.sections)
        return SummaryDraft(made, self.name)


class SteppedClock:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
