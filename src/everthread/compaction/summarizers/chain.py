"""Try summarisers in order: the first that can writes the summary; the last one always can.

If prices are known, the cheapest route is tried first: the main model on the prefix its provider has cached, or another
model that reads the whole text. After a transient failure a route is paused, so that a compaction does not wait for it
again and again; a route without a provider, or with unusable answers, is paused longer. Until then the next one serves,
which is reported once for each route. A compaction by hand tries every route.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, runtime_checkable

from everthread.compaction.draft_requests import empty_draft
from everthread.compaction.engine import Events, silent
from everthread.compaction.journal.journal import AUTHOR
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.core.economics import Rates
from everthread.core.prices import prices_for
from everthread.core.secrets.redaction import redact
from everthread.errors import SummaryError

Reading = Literal["input", "read", "write"]
"""The rate of a prompt: uncached, read from the cache, or written to it."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of calls to a model. `provider` serves it, if known."""

    model: str
    provider: str | None = None
    ttl: str = "5m"
    wall: Callable[[], float] = time.time

    def __call__(
        self, prompt: int, written: int, *, reading: Reading = "input"
    ) -> float | None:
        """Return the dollars for a prompt of `prompt` tokens and an answer of `written`; None if a price is unknown."""
        moment = datetime.fromtimestamp(self.wall(), UTC)
        rates = Rates.from_prices(
            prices_for(
                self.model, time=moment, provider=self.provider, prompt_tokens=prompt
            ),
            ttl=self.ttl,
        )
        return (
            None
            if rates is None
            else prompt * float(getattr(rates, reading)) + written * rates.output
        )


@runtime_checkable
class Quoted(Protocol):
    """A summariser that can quote its cost."""

    def quote(self, tokens: int, budget: int) -> float | None:
        """Return the price of a prompt of `tokens` with a summary of `budget`."""
        ...

    def quote_for(self, request: SummaryRequest) -> float | None:
        """Return the price of this request."""
        ...


TRANSIENT_REST_SECONDS = 60.0
"""Seconds to pause a route after a transient failure."""
LONG_REST_SECONDS = 600.0
"""Seconds to pause a route without a provider, or with unusable answers."""

TOOK_TOO_LONG = "it took too long"


class DeferredJournal:
    """The end of a chain in an event loop: the caller writes the journal elsewhere."""

    name = AUTHOR

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:  # noqa: ARG002
        return empty_draft()


class SummarizerChain:
    """Try `routes` in order, then `floor`, which never fails. A failed route is named in the draft's warnings."""

    def __init__(
        self,
        routes: Sequence[Summarizer],
        *,
        floor: Summarizer,
        clock: Callable[[], float],
        events: Events = silent,
        rest_until: dict[str, float] | None = None,
    ) -> None:
        """Set up the chain. `rest_until`: paused routes and the end of each pause, if several chains share them."""
        self._routes = tuple(routes)
        self._floor = floor
        self._clock = clock
        self._events = events
        self._rest_until: dict[str, float] = {} if rest_until is None else rest_until
        self._reported: set[str] = set()
        """Routes whose pause was reported."""
        self._interrupted = ""
        """The route that was writing when its caller gave up."""

    @property
    def name(self) -> str:
        return ", then ".join(
            dict.fromkeys(route.name for route in (*self._routes, self._floor))
        )

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft of the first route that could write one, with the usage of all that were tried."""
        warnings: list[str] = []
        usage: list[Mapping[str, Any]] = []
        tried: set[str] = set()
        self._interrupted = ""
        for route in self._sort_by_price(request):
            if route.name in tried:
                continue
            tried.add(route.name)
            if not self._may_ask(route.name, request, warnings):
                continue
            try:
                draft = await self._ask(route, request)
            except SummaryError as error:
                warnings.append(redact(f"{route.name} wrote no summary: {error}"))
                usage += error.usage
                self._note_failure(route.name, error)
                continue
            self._rest_until.pop(route.name, None)
            return replace(_add_costs(draft, warnings, usage), route=route.name)
        return _add_costs(await self._floor.summarize(request), warnings, usage)

    def rest_interrupted(self) -> str:
        """Pause the route that was writing when its caller gave up. Return a line about it, or an empty string."""
        name = self._interrupted
        self._interrupted = ""
        if not name:
            return ""
        self._note_failure(name, SummaryError(TOOK_TOO_LONG, passing=True))
        return f"{name} wrote no summary: {TOOK_TOO_LONG}"

    async def _ask(self, route: Summarizer, request: SummaryRequest) -> SummaryDraft:
        own_refusals = tuple(
            refusal for refusal in request.refused if refusal.route == route.name
        )
        try:
            return await route.summarize(replace(request, refused=own_refusals))
        except asyncio.CancelledError:
            self._interrupted = route.name
            raise

    def _may_ask(self, name: str, request: SummaryRequest, warnings: list[str]) -> bool:
        """Return whether to try a route: it is not paused, and no second draft of it was refused."""
        if any(
            refusal.is_final for refusal in request.refused if refusal.route == name
        ):
            self._note_failure(
                name, SummaryError("its summaries could not be used", unusable=True)
            )
            warnings.append(
                f"{name} is not asked for the next {LONG_REST_SECONDS / 60:.0f} minutes"
            )
            self._reported.add(name)
            return False
        rest_seconds = (
            0.0 if request.manual else self._rest_until.get(name, 0.0) - self._clock()
        )
        if rest_seconds <= 0:
            self._reported.discard(name)
            return True
        if name not in self._reported:
            self._reported.add(name)
            warnings.append(
                f"{name} was not asked: it rests for {rest_seconds:.0f} more seconds after a failure"
            )
        self._events("summary_skipped", route=name, seconds=rest_seconds)
        return False

    def quote(self, tokens: int, budget: int) -> float | None:
        """Return the dollars of the cheapest route with a price; 0 without a model, None if unknown."""
        quotes = [
            route.quote(tokens, budget) if isinstance(route, Quoted) else None
            for route in self._routes
        ]
        known_quotes = [quote for quote in quotes if quote is not None]
        return min(known_quotes) if known_quotes else None if quotes else 0.0

    def _sort_by_price(self, request: SummaryRequest) -> Sequence[Summarizer]:
        """Return the routes for the request: the cheapest first if all have a quote, else in their order."""
        routes = [route for route in self._routes if _can_write(route, request)]
        quotes = [
            route.quote_for(request) if isinstance(route, Quoted) else None
            for route in routes
        ]
        known_quotes = [quote for quote in quotes if quote is not None]
        if len(known_quotes) < len(routes):
            return routes
        return [
            routes[index]
            for index in sorted(range(len(known_quotes)), key=known_quotes.__getitem__)
        ]

    def _note_failure(self, name: str, error: SummaryError) -> None:
        seconds = TRANSIENT_REST_SECONDS if error.passing else 0.0
        if error.missing or error.unusable:
            seconds = LONG_REST_SECONDS
        if seconds:
            self._rest_until[name] = self._clock() + seconds
            self._reported.add(name)
        self._events(
            "summary_failed",
            route=name,
            reason=redact(str(error)),
            passing=error.passing,
            missing=error.missing,
            rest=seconds,
        )


def _add_costs(
    draft: SummaryDraft, warnings: Sequence[str], usage: Sequence[Mapping[str, Any]]
) -> SummaryDraft:
    return replace(
        draft, warnings=(*warnings, *draft.warnings), usage=(*usage, *draft.usage)
    )


def _can_write(route: Summarizer, request: SummaryRequest) -> bool:
    """Return whether a route suits this request; without a `suits` method it suits every request."""
    suits = getattr(route, "suits", None)
    return suits is None or bool(suits(request))
