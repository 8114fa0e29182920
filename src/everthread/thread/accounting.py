"""Record usage and cost of every call: answers and summaries, also if they were interrupted or cancelled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage, normalize_usage
from everthread.core.costs.prices import compute_call_cost
from everthread.core.messages import calls_of, text_of
from everthread.core.tokens import TokenCounter
from everthread.core.types import Api, ModelReply, ModelRequest
from everthread.store.store import Store
from everthread.store.usage_records import NewUsage, UsageTask
from everthread.thread.events import Listener, UsageRecorded
from everthread.thread.policy.call_prices import PROVIDERS_WITHOUT_PRICES

ChargeUsage = Callable[[CanonicalUsage, str], None]
"""Charges the usage of a call to a model to the account that pays for it."""


class Accounting:
    """Records the usage of calls and reports it to a listener."""

    def __init__(
        self,
        store: Store,
        wall_clock: Callable[[], float],
        listener: Listener,
        *,
        skips_disk_wait: bool = False,
    ) -> None:
        """Set up the accounting. `skips_disk_wait`: do not wait until usage has reached the disk."""
        self._store = store
        self._wall_clock = wall_clock
        self._listener = listener
        self._skips_disk_wait = skips_disk_wait
        self._cancelled_calls: dict[str, list[tuple[ModelRequest, ChargeUsage | None]]] = {}

    def price_call(
        self,
        session: str,
        model: str,
        usage: CanonicalUsage,
        *,
        task: UsageTask = "main",
        is_estimated: bool = False,
        provider: str = "auto",
    ) -> NewUsage:
        """Return the record of a call with its price in dollars; the price is None if it is unknown."""
        has_no_provider = provider in PROVIDERS_WITHOUT_PRICES and provider != "local"
        priced_provider = None if has_no_provider else provider
        price = compute_call_cost(
            usage,
            model,
            time=datetime.fromtimestamp(self._wall_clock(), UTC),
            provider=priced_provider,
        )
        return NewUsage(session, model, usage, task=task, cost=price, estimated=is_estimated)

    async def record(
        self, session: str, model: str, usage: CanonicalUsage, **details: Any
    ) -> Decimal | None:
        """Record the usage of a call and return its price. `details`: further arguments of `price_call`."""
        record = self.price_call(session, model, usage, **details)
        await self._store.usage.record_usage(record, return_before_sync=self._skips_disk_wait)
        self.report(record)
        return record.cost

    async def record_summary(
        self,
        session: str,
        calls: Iterable[Mapping[str, Any]],
        charge: ChargeUsage | None = None,
    ) -> Decimal | None:
        """Record the usage of a summary, cancelled calls included; return its price, or None if it is unknown."""
        await self.record_cancelled(session)
        total: Decimal | None = Decimal(0)
        for call in calls:
            model = str(call.get("model") or "")
            usage = normalize_usage(call)
            if charge is not None:
                charge(usage, model)
            price = await self.record(session, model, usage, task="auxiliary")
            total = None if total is None or price is None else total + price
        return total

    def report(self, record: NewUsage) -> None:
        """Emit the usage of a call as an event."""
        self._listener(
            UsageRecorded(
                record.session,
                record.model,
                task=record.task,
                usage=record.usage,
                cost=record.cost,
                is_estimated=record.estimated,
            )
        )

    def note_cancelled(
        self, session_id: str, request: ModelRequest, charge: ChargeUsage | None = None
    ) -> None:
        """Remember a summariser's request that was cancelled before its answer, to record it later."""
        self._cancelled_calls.setdefault(session_id, []).append((request, charge))

    def has_unrecorded_cancelled(self, session_id: str) -> bool:
        """Return whether a cancelled call is not recorded yet."""
        return session_id in self._cancelled_calls

    async def record_cancelled(self, session: str | None = None) -> None:
        """Record the cancelled calls for summaries: the provider has read their prompts."""
        for session_id in [session] if session is not None else list(self._cancelled_calls):
            for request, charge in self._cancelled_calls.pop(session_id, []):
                counter = TokenCounter(request.model)
                prompt = counter.request(
                    request.messages, system=request.system, tools=request.tools
                )
                usage = CanonicalUsage(input_tokens=prompt)
                if charge is not None:
                    charge(usage, request.model)
                await self.record(
                    session_id, request.model, usage, task="auxiliary", is_estimated=True
                )


def read_usage(
    reply: ModelReply, prompt_tokens: int, *, api: Api, counter: TokenCounter
) -> tuple[CanonicalUsage, bool]:
    """Return the usage of a reply, and whether a part of it is estimated because the provider did not report it."""
    reported = normalize_usage(reply.usage, api=api) if reply.usage else CanonicalUsage()
    return complete_usage(reported, reply, prompt_tokens, counter)


def complete_usage(
    reported: CanonicalUsage,
    reply: ModelReply | None,
    prompt_tokens: int,
    counter: TokenCounter,
) -> tuple[CanonicalUsage, bool]:
    """Complete the reported figures with estimates from the prompt and the reply."""
    reply_text = "" if reply is None else join_reply_text(reply)
    if reported.prompt_tokens and (reported.output_tokens or not reply_text):
        return reported, False
    output = counter.text(reply_text)
    if reported.prompt_tokens:
        return reported + CanonicalUsage(output_tokens=output), True
    raw = None if reply is None else reply.usage
    return CanonicalUsage(
        input_tokens=prompt_tokens,
        output_tokens=max(reported.output_tokens, output),
        raw=raw,
    ), True


def join_reply_text(reply: ModelReply) -> str:
    """Return the text of an answer, calls included."""
    calls = (f"{call.name} {call.arguments}" for call in calls_of(reply.message))
    return "\n".join([text_of(reply.message), *calls]).strip()
