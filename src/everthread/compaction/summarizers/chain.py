"""The summarisers in order: the first that can writes the summary; the last one always can.

Where prices are known the cheapest route is asked first: the main model on the prefix its provider has cached, or
another model that reads everything anew. A route that failed for a passing reason rests, so that a compaction does not
wait for it again and again; one without a provider rests longer. Meanwhile the next one serves. By hand, every route
is tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, runtime_checkable

from everthread.compaction.engine import Events, silent
from everthread.compaction.summary import Summarizer, SummaryDraft, SummaryRequest
from everthread.core.pricing import Rates, prices_for
from everthread.core.redaction import redact
from everthread.errors import SummaryError

Reading = Literal["input", "read", "write"]
"""How a prompt is charged: plainly, from the cache, or into it."""


@dataclass(frozen=True, slots=True)
class Price:
    """What calls to a model cost. `provider` is who serves it, where that is known."""

    model: str
    provider: str | None = None
    ttl: str = "5m"
    wall: Callable[[], float] = time.time

    def __call__(self, prompt: int, written: int, *, reading: Reading = "input") -> float | None:
        """Dollars for a prompt of `prompt` tokens and an answer of `written`; None where a price is unknown."""
        at = datetime.fromtimestamp(self.wall(), UTC)
        rates = Rates.of(prices_for(self.model, at=at, provider=self.provider, prompt_tokens=prompt), ttl=self.ttl)
        return None if rates is None else prompt * float(getattr(rates, reading)) + written * rates.output


@runtime_checkable
class Quoted(Protocol):
    """A summariser that can quote its cost."""

    def quote(self, tokens: int, budget: int) -> float | None:
        """Of a prompt of `tokens`, for a summary of `budget`."""
        ...

    def quote_for(self, request: SummaryRequest) -> float | None:
        """Of this very request."""
        ...


REST_PASSING = 60.0
REST_MISSING = 600.0
"""Seconds a route rests after a failure that may pass, and after one that tells that no provider is there."""


class SummarizerChain:
    """Tries `routes` in order, then `floor`, which never fails. A failed route is named in the draft's warnings."""

    def __init__(
        self,
        routes: Sequence[Summarizer],
        *,
        floor: Summarizer,
        clock: Callable[[], float],
        events: Events = silent,
        rest_until: dict[str, float] | None = None,
    ) -> None:
        """`rest_until`: which routes rest and until when, where several chains share that."""
        self._routes = tuple(routes)
        self._floor = floor
        self._clock = clock
        self._events = events
        self._rest_until: dict[str, float] = {} if rest_until is None else rest_until

    @property
    def name(self) -> str:
        return ", then ".join(dict.fromkeys(route.name for route in (*self._routes, self._floor)))

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """The draft of the first route that could write one, with the usage of all that were asked."""
        warnings: list[str] = []
        usage: list[Mapping[str, Any]] = []
        tried: set[str] = set()
        for route in self._sort_by_price(request):
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
                warnings.append(redact(f"{route.name} wrote no summary: {error}"))
                usage += error.usage
                self._note_failure(route.name, error)
                continue
            self._rest_until.pop(route.name, None)
            return _add_costs(draft, warnings, usage)
        return _add_costs(await self._floor.summarize(request), warnings, usage)

    def quote(self, tokens: int, budget: int) -> float | None:
        """Dollars for a summary by the cheapest route that can tell; 0 where no model is asked, None: unknown."""
        quotes = [route.quote(tokens, budget) if isinstance(route, Quoted) else None for route in self._routes]
        stated = [quote for quote in quotes if quote is not None]
        return min(stated) if stated else None if quotes else 0.0

    def _sort_by_price(self, request: SummaryRequest) -> Sequence[Summarizer]:
        """The routes that suit the request: the cheapest first where all have a quote, else in their order."""
        routes = [route for route in self._routes if _suits(route, request)]
        quotes = [route.quote_for(request) if isinstance(route, Quoted) else None for route in routes]
        priced = [quote for quote in quotes if quote is not None]
        if len(priced) < len(routes):
            return routes
        return [routes[at] for at in sorted(range(len(priced)), key=priced.__getitem__)]

    def _note_failure(self, name: str, error: SummaryError) -> None:
        seconds = REST_MISSING if error.missing else REST_PASSING if error.passing else 0.0
        if seconds:
            self._rest_until[name] = self._clock() + seconds
        self._events(
            "summary_failed",
            route=name,
            reason=redact(str(error)),
            passing=error.passing,
            missing=error.missing,
            rest=seconds,
        )


def _add_costs(draft: SummaryDraft, warnings: Sequence[str], usage: Sequence[Mapping[str, Any]]) -> SummaryDraft:
    return replace(draft, warnings=(*warnings, *draft.warnings), usage=(*usage, *draft.usage))


def _suits(route: Summarizer, request: SummaryRequest) -> bool:
    """Whether a route is for this request; one that does not say is for every request."""
    suits = getattr(route, "suits", None)
    return suits is None or bool(suits(request))
