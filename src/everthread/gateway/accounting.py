"""Every call is accounted for: the client's own, and those that wrote a summary for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from everthread.compaction.engine import Events
from everthread.conversation.events import CompactionProgress, Notice, UsageRecorded, progress_text
from everthread.core.cost import cost_of
from everthread.core.exchange import Request
from everthread.core.messages import calls_of, text_of
from everthread.core.tokens import TokenCounter
from everthread.core.usage import CanonicalUsage, normalize_usage
from everthread.gateway.base import Account, Outcome
from everthread.gateway.threads import ThreadMatch
from everthread.gateway.turn import Turn
from everthread.store.models import NewUsage, UsageTask

if TYPE_CHECKING:
    from everthread.gateway.manager import ManagerSetup


class Accounts:
    def __init__(self, setup: ManagerSetup) -> None:
        self._setup = setup
        self._lost: dict[str, list[tuple[Request, Account | None]]] = {}

    async def main(self, turn: Turn, place: ThreadMatch, outcome: Outcome) -> None:
        """The client's call; estimated where the provider said nothing."""
        usage, estimated = outcome.usage, outcome.estimated
        if usage is None:
            reply = outcome.reply.message if outcome.reply else None
            said = ""
            if reply is not None:
                said = "\n".join([text_of(reply), *(f"{call.name} {call.arguments}" for call in calls_of(reply))])
            output = TokenCounter(turn.model).text(said)
            usage, estimated = CanonicalUsage(input_tokens=turn.estimate, output_tokens=output), True
        await self._record(place.thread, turn.model, usage, "main", estimated=estimated)

    async def auxiliary(
        self, thread: str, calls: Sequence[Mapping[str, Any]], account: Account | None = None
    ) -> Decimal | None:
        """What the writing of a summary used, with what was asked and given up; its price, None where one is unknown.

        Who it was written for pays.
        """
        total: Decimal | None = Decimal(0)
        for call in calls:
            model, usage = str(call.get("model") or ""), normalize_usage(call)
            if account is not None:
                account.spend(usage, model)
            price = await self._record(thread, model, usage, "auxiliary")
            total = None if total is None or price is None else total + price
        for request, payer in self._lost.pop(thread, []):
            prompt = TokenCounter(request.model).request(request.messages, system=request.system, tools=request.tools)
            usage = CanonicalUsage(input_tokens=prompt)
            if payer is not None:
                payer.spend(usage, request.model)
            await self._record(thread, request.model, usage, "auxiliary", estimated=True)
        return total

    def lost(self, thread: str, account: Account | None) -> Callable[[Request], None]:
        """Told of a request that was given up while it was under way."""
        return lambda request: self._lost.setdefault(thread, []).append((request, account))

    async def settle(self) -> None:
        """Account for all that was given up."""
        for thread in list(self._lost):
            await self.auxiliary(thread, ())

    def telling(self, thread: str) -> Events:
        """What an engine or a summariser tells, as events of the thread."""

        def tell(kind: str, **details: Any) -> None:
            if kind == "notice":
                self._setup.listener(Notice(thread, str(details.get("text", ""))))
            else:
                self._setup.listener(CompactionProgress(thread, progress_text(kind, details)))

        return tell

    async def _record(
        self, thread: str, model: str, usage: CanonicalUsage, task: UsageTask, *, estimated: bool = False
    ) -> Decimal | None:
        price = cost_of(usage, model, at=datetime.fromtimestamp(self._setup.wall(), UTC))
        await self._setup.store.record_usage(NewUsage(thread, model, usage, task, price, estimated))
        self._setup.listener(UsageRecorded(thread, model, task, usage, price, estimated))
        return price
