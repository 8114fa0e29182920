"""Every call is accounted for: the main one, and those that wrote a summary; finished, broken off or given up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol

from everthread.context.policy import UNNAMED
from everthread.core.messages import calls_of, text_of
from everthread.core.pricing import CanonicalUsage, cost_of, normalize_usage
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, Reply, Request
from everthread.store.models import NewUsage, UsageTask
from everthread.store.store import Store


class Payer(Protocol):
    """Whose limits a call counts against."""

    def spend(self, usage: CanonicalUsage, model: str) -> None: ...


class Accounting:
    """Records what calls used. `report` gets every record; `early`: nobody waits for the disk."""

    def __init__(
        self, store: Store, wall: Callable[[], float], report: Callable[[NewUsage], None], *, early: bool = False
    ) -> None:
        self._store = store
        self._wall = wall
        self.report = report
        self._early = early
        self._lost: dict[str, list[tuple[Request, Payer | None]]] = {}

    def price_call(  # noqa: PLR0913 - what is known of a call
        self,
        session: str,
        model: str,
        usage: CanonicalUsage,
        *,
        task: UsageTask = "main",
        estimated: bool = False,
        provider: str = "auto",
    ) -> NewUsage:
        """The record of a call, with its price in dollars, None where that is unknown."""
        named = None if provider in UNNAMED else provider
        price = cost_of(usage, model, at=datetime.fromtimestamp(self._wall(), UTC), provider=named)
        return NewUsage(session, model, usage, task=task, cost=price, estimated=estimated)

    async def record(self, session: str, model: str, usage: CanonicalUsage, **known: Any) -> Decimal | None:
        """Write down what a call used; its price. `known`: what `price_call` may be told."""
        record = self.price_call(session, model, usage, **known)
        await self._store.record_usage(record, early=self._early)
        self.report(record)
        return record.cost

    async def record_summary(
        self, session: str, calls: Iterable[Mapping[str, Any]], payer: Payer | None = None
    ) -> Decimal | None:
        """What the writing of a summary used, with what was given up; the price of its calls, None where unknown."""
        await self.record_lost(session)
        total: Decimal | None = Decimal(0)
        for call in calls:
            model, usage = str(call.get("model") or ""), normalize_usage(call)
            if payer is not None:
                payer.spend(usage, model)
            price = await self.record(session, model, usage, task="auxiliary")
            total = None if total is None or price is None else total + price
        return total

    def lose(self, session: str, request: Request, payer: Payer | None = None) -> None:
        """Note a summariser's request that was cancelled under way."""
        self._lost.setdefault(session, []).append((request, payer))

    def has_lost(self, session: str) -> bool:
        """Whether something was given up that is not written down yet."""
        return session in self._lost

    async def record_lost(self, session: str | None = None) -> None:
        """What was asked for a summary and given up: its prompt was read by the provider all the same."""
        for key in [session] if session is not None else list(self._lost):
            for request, payer in self._lost.pop(key, []):
                counter = TokenCounter(request.model)
                prompt = counter.request(request.messages, system=request.system, tools=request.tools)
                usage = CanonicalUsage(input_tokens=prompt)
                if payer is not None:
                    payer.spend(usage, request.model)
                await self.record(key, request.model, usage, task="auxiliary", estimated=True)


def usage_of(reply: Reply, prompt: int, *, api: Api, counter: TokenCounter) -> tuple[CanonicalUsage, bool]:
    """What a reply used, and whether that had to be estimated: the provider said nothing, or not all."""
    reported = normalize_usage(reply.usage, api=api) if reply.usage else CanonicalUsage()
    return complete_usage(reported, reply, prompt, counter)


def complete_usage(
    reported: CanonicalUsage, reply: Reply | None, prompt: int, counter: TokenCounter
) -> tuple[CanonicalUsage, bool]:
    """The reported figures, with what is missing estimated from what was sent and said."""
    words = "" if reply is None else spoken_text(reply)
    if reported.prompt_tokens and (reported.output_tokens or not words):
        return reported, False
    output = counter.text(words)
    if reported.prompt_tokens:
        return reported + CanonicalUsage(output_tokens=output), True
    raw = None if reply is None else reply.usage
    return CanonicalUsage(input_tokens=prompt, output_tokens=max(reported.output_tokens, output), raw=raw), True


def spoken_text(reply: Reply) -> str:
    """What an answer says, calls included."""
    calls = (f"{call.name} {call.arguments}" for call in calls_of(reply.message))
    return "\n".join([text_of(reply.message), *calls]).strip()
