"""Whether rewriting a client's history pays now: the figures of a request put to `core.economics`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from everthread.conversation.economy import Quoting
from everthread.core.caching import CACHE_SECONDS, cache_route
from everthread.core.cost import prices_for
from everthread.core.economics import Case, Decision, Rates, weigh
from everthread.core.summary import Summarizer
from everthread.gateway.turn import Turn

if TYPE_CHECKING:
    from everthread.gateway.manager import ManagerSetup


def ttl_of(setup: ManagerSetup) -> float:
    """Seconds a provider keeps what is cached."""
    return CACHE_SECONDS[setup.options.cache_ttl]


def decide(setup: ManagerSetup, turn: Turn, tokens: int, limit: int, writer: Summarizer) -> Decision | None:
    """The decision for a prompt of this size; None where economics are off or prices unknown. `limit`: where nothing
    can wait."""
    options, now = setup.options, setup.wall()
    if not options.economics:
        return None
    marked = cache_route(turn.model, "auto", turn.incoming.upstream) is not None
    prices = prices_for(turn.model, at=datetime.fromtimestamp(now, UTC), prompt_tokens=tokens)
    rates = Rates.of(prices, ttl=options.cache_ttl, marked=marked)
    if rates is None:
        return None
    budget, rhythm = turn.budget(options), turn.memory.rhythm
    fixed = round(turn.fixed * turn.memory.calibration.factor(turn.model))
    size = budget.summary(max(0, tokens - fixed - budget.tail))
    cold = ""
    if rhythm.last is not None and rhythm.is_cold(now, ttl=ttl_of(setup)):
        cold = f"{now - rhythm.last:,.0f} s passed since the last call, and it is kept for {ttl_of(setup):,.0f} s"
    return weigh(
        Case(
            tokens=tokens,
            after=min(tokens, fixed + budget.tail + size),
            kept=fixed,
            threshold=budget.threshold,
            limit=max(budget.threshold, min(budget.hygiene, limit)),
            summary=(writer.quote(tokens, size) if isinstance(writer, Quoting) else 0.0) or 0.0,
            rates=rates,
            rhythm=rhythm,
            cold=cold,
        )
    )


def is_free(writer: Summarizer) -> bool:
    """Whether nobody has to be asked, and paid, for a summary."""
    return not isinstance(writer, Quoting) or writer.quote(1_000, 100) == 0
