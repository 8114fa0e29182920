"""Try summarisers ("routes") in order until one writes the summary.

If prices are known, the cheapest route is tried first: the main model on the prefix its provider has cached, or another
model that reads the whole text. After a transient failure a route is paused, so that a compaction does not wait for it
again and again; a route without a provider, or with unusable answers, is paused longer. Meanwhile the next route is
used, which is reported once for each paused route. A compaction by hand tries every route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everthread.compaction.draft_requests import empty_draft
from everthread.compaction.engine import ReportProgress, ignore_event
from everthread.compaction.summarizers.summarizer import (
    JOURNAL_AUTHOR,
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
from everthread.compaction.summarizers.summary_prices import PricedRoute
from everthread.core.secrets.redaction import redact
from everthread.errors import SummaryError

TRANSIENT_PAUSE_SECONDS = 60.0
"""Seconds to pause a route after a transient failure."""
LONG_PAUSE_SECONDS = 600.0
"""Seconds to pause a route without a provider, or with unusable answers."""

TOOK_TOO_LONG = "it took too long"


class SummarizerChain:
    """A chain that tries `routes` in order. Its warnings name the failed routes.

    If no route writes a draft, it is empty, and the journal is written in its place.
    """

    def __init__(
        self,
        routes: Sequence[Summarizer],
        *,
        clock: Callable[[], float],
        events: ReportProgress = ignore_event,
        paused_until: dict[str, float] | None = None,
    ) -> None:
        """Set up the chain. `paused_until`: the end of each route's pause, if several chains share them."""
        self._routes = tuple(routes)
        self._clock = clock
        self._events = events
        self._paused_until: dict[str, float] = {} if paused_until is None else paused_until
        self._reported_pauses: set[str] = set()
        """Routes whose pause was reported."""
        self._interrupted_route = ""
        """The route that was writing when its caller gave up."""

    @property
    def name(self) -> str:
        route_names = (route.name for route in self._routes)
        return ", then ".join(dict.fromkeys((*route_names, JOURNAL_AUTHOR)))

    async def summarize(self, request: SummaryRequest) -> SummaryDraft:
        """Return the draft of the first route that does not fail, with the usage of all routes that were tried."""
        warnings: list[str] = []
        usage: list[Mapping[str, Any]] = []
        tried_names: set[str] = set()
        self._interrupted_route = ""
        for route in self._sort_by_price(request):
            if route.name in tried_names:
                continue
            tried_names.add(route.name)
            if not self._may_try(route.name, request, warnings):
                continue
            try:
                draft = await self._ask(route, request)
            except SummaryError as error:
                warnings.append(redact(f"{route.name} wrote no summary: {error}"))
                usage += error.usage
                self._record_failure(route.name, error)
                continue
            self._paused_until.pop(route.name, None)
            return replace(
                draft,
                warnings=(*warnings, *draft.warnings),
                usage=(*usage, *draft.usage),
                route=route.name,
            )
        return empty_draft(warnings, usage)

    def pause_interrupted(self) -> str:
        """Pause the route that was writing when its caller gave up; return a warning, or an empty string."""
        name = self._interrupted_route
        self._interrupted_route = ""
        if not name:
            return ""
        self._record_failure(name, SummaryError(TOOK_TOO_LONG, is_transient=True))
        return f"{name} wrote no summary: {TOOK_TOO_LONG}"

    async def _ask(self, route: Summarizer, request: SummaryRequest) -> SummaryDraft:
        """Request a draft from a route. Remember the route if the caller gives up."""
        own_refusals = tuple(refusal for refusal in request.refused if refusal.route == route.name)
        try:
            return await route.summarize(replace(request, refused=own_refusals))
        except asyncio.CancelledError:
            self._interrupted_route = route.name
            raise
        except SummaryError:
            raise
        except Exception as error:  # a route may be third-party code
            raise SummaryError(f"{type(error).__name__}: {error}") from error

    def _may_try(self, name: str, request: SummaryRequest, warnings: list[str]) -> bool:
        """Return whether a route may be tried: it is not paused, and its attempts are not used up."""
        if any(refusal.is_route_exhausted for refusal in request.refused if refusal.route == name):
            self._record_failure(
                name,
                SummaryError("its summaries could not be used", is_unusable_answer=True),
            )
            warnings.append(
                f"{name} is not asked for the next {LONG_PAUSE_SECONDS / 60:.0f} minutes"
            )
            self._reported_pauses.add(name)
            return False
        pause_seconds = 0.0 if request.manual else self._paused_until.get(name, 0.0) - self._clock()
        if pause_seconds <= 0:
            self._reported_pauses.discard(name)
            return True
        if name not in self._reported_pauses:
            self._reported_pauses.add(name)
            warnings.append(
                f"{name} was not asked: it is paused for {pause_seconds:.0f} more seconds after a failure"
            )
        self._events("summary_skipped", route=name, seconds=pause_seconds)
        return False

    def quote_price(self, tokens: int, budget: int) -> float | None:
        """Return the dollars of the cheapest route with a price, or 0 without a model, None if unknown."""
        prices = [
            route.quote_price(tokens, budget) if isinstance(route, PricedRoute) else None
            for route in self._routes
        ]
        known_prices = [price for price in prices if price is not None]
        if known_prices:
            return min(known_prices)
        if prices:
            return None
        return 0.0

    def _sort_by_price(self, request: SummaryRequest) -> Sequence[Summarizer]:
        """Return the routes for the request, the cheapest first, or unsorted if a price is unknown."""
        routes = [route for route in self._routes if _is_suitable(route, request)]
        prices = [
            route.quote_request_price(request) if isinstance(route, PricedRoute) else None
            for route in routes
        ]
        known_prices = [price for price in prices if price is not None]
        if len(known_prices) < len(routes):
            return routes
        return [
            routes[index]
            for index in sorted(range(len(known_prices)), key=known_prices.__getitem__)
        ]

    def _record_failure(self, name: str, error: SummaryError) -> None:
        """Report a failure, and pause the route unless the failure concerns only this request."""
        pause_seconds = TRANSIENT_PAUSE_SECONDS if error.is_transient else 0.0
        if error.has_no_provider or error.is_unusable_answer:
            pause_seconds = LONG_PAUSE_SECONDS
        if pause_seconds:
            self._paused_until[name] = self._clock() + pause_seconds
            self._reported_pauses.add(name)
        self._events(
            "summary_failed",
            route=name,
            reason=redact(str(error)),
            passing=error.is_transient,
            missing=error.has_no_provider,
            rest=pause_seconds,
        )


def _is_suitable(route: Summarizer, request: SummaryRequest) -> bool:
    """Return whether a route suits this request. A route without a `suits` method suits every request."""
    suits = getattr(route, "suits", None)
    return suits is None or bool(suits(request))
