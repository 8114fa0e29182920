"""Who writes the summary: the first that can, and under all of them one that always can.

A route that failed for a passing reason rests, so that a compaction does not wait for it again and again; one without
a provider rests longer. Meanwhile the next one serves. By hand, every route is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from everthread.core.summary import Summarizer, SummaryDraft, SummaryRequest
from everthread.errors import SummaryError

REST_PASSING = 60.0
REST_MISSING = 600.0
"""Seconds a route rests after a failure that may pass, and after one that tells that no provider is there."""


class Events(Protocol):
    """Where the chain tells what it does."""

    def __call__(self, kind: str, **details: Any) -> None: ...


def _silent(kind: str, **details: Any) -> None:
    """For whoever does not listen."""


class SummarizerChain:
    """Tries `routes` in order, then `floor`, which never fails. A failed route is told in the draft's warnings."""

    def __init__(
        self,
        routes: Sequence[Summarizer],
        *,
        floor: Summarizer,
        clock: Callable[[], float],
        events: Events = _silent,
    ) -> None:
        self._routes = tuple(routes)
        self._floor = floor
        self._clock = clock
        self._events = events
        self._rest_until: dict[str, float] = {}

    @property
    def name(self) -> str:
        return ", then ".join(dict.fromkeys(route.name for route in (*self._routes, self._floor)))

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """The draft of the first route that could write one, with the usage of all that were asked."""
        warnings: list[str] = []
        usage: list[Mapping[str, Any]] = []
        tried: set[str] = set()
        for route in self._routes:
            rest = 0.0 if request.manual else self._rest_until.get(route.name, 0.0) - self._clock()
            if route.name in tried:
                continue
            tried.add(route.name)
            if rest > 0:
                warnings.append(f"{route.name} was not asked: it rests for {rest:.0f} more seconds after a failure")
                self._events("summary_skipped", route=route.name, seconds=rest)
                continue
            try:
                draft = await route.summarize(request)
            except SummaryError as error:
                warnings.append(f"{route.name} wrote no summary: {error}")
                usage += error.usage
                self._failed(route.name, error)
                continue
            self._rest_until.pop(route.name, None)
            return _with(draft, warnings, usage)
        return _with(await self._floor.summarize(request), warnings, usage)

    def _failed(self, name: str, error: SummaryError) -> None:
        seconds = REST_MISSING if error.missing else REST_PASSING if error.passing else 0.0
        if seconds:
            self._rest_until[name] = self._clock() + seconds
        self._events(
            "summary_failed",
            route=name,
            reason=str(error),
            passing=error.passing,
            missing=error.missing,
            rest=seconds,
        )

    def dump_state(self) -> dict[str, Any]:
        """Which routes rest, and until when, as JSON."""
        now = self._clock()
        return {"rest_until": {name: until for name, until in self._rest_until.items() if until > now}}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `dump_state` gave. No rest is longer than one can be, whatever clock it was told by."""
        resting = state.get("rest_until")
        latest = self._clock() + REST_MISSING
        self._rest_until = {
            str(name): min(float(until), latest)
            for name, until in (resting.items() if isinstance(resting, Mapping) else ())
            if isinstance(until, int | float) and not isinstance(until, bool)
        }


def _with(draft: SummaryDraft, warnings: Sequence[str], usage: Sequence[Mapping[str, Any]]) -> SummaryDraft:
    return replace(draft, warnings=(*warnings, *draft.warnings), usage=(*usage, *draft.usage))
