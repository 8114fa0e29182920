"""Every call is accounted for: main or auxiliary, finished or broken off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from everthread.conversation.economy import UNNAMED
from everthread.conversation.events import UsageRecorded
from everthread.conversation.state import ConversationState
from everthread.core.cost import cost_of
from everthread.core.exchange import Api, Reply
from everthread.core.messages import calls_of, text_of
from everthread.core.usage import CanonicalUsage, normalize_usage
from everthread.store.models import NewUsage, UsageTask


async def account(
    live: ConversationState,
    usage: CanonicalUsage,
    *,
    model: str | None = None,
    task: UsageTask = "main",
    estimated: bool = False,
    session: str | None = None,
) -> Decimal | None:
    """Write down what a call used; its price in dollars, None where that is unknown."""
    name = model or live.route.name
    provider = live.route.provider if name == live.route.name and live.route.provider not in UNNAMED else None
    price = cost_of(usage, name, at=datetime.fromtimestamp(live.setup.wall(), UTC), provider=provider)
    record = NewUsage(session or live.session.id, name, usage, task=task, cost=price, estimated=estimated)
    await live.setup.store.record_usage(record)
    live.emit(UsageRecorded(record.session, name, task, usage, price, estimated))
    return price


async def account_auxiliary(
    live: ConversationState, calls: Iterable[Mapping[str, Any]], session: str
) -> Decimal | None:
    """What the writing of a summary used; the price of all calls, None where one is unknown."""
    total: Decimal | None = Decimal(0)
    for call in calls:
        usage = normalize_usage(call)
        price = await account(live, usage, model=str(call.get("model") or ""), task="auxiliary", session=session)
        total = None if total is None or price is None else total + price
    return total


async def account_lost(live: ConversationState) -> None:
    """What was asked for a summary and given up: its prompt was read by the provider all the same."""
    lost = live.lost[:]
    live.lost.clear()
    for request in lost:
        prompt = live.counter.request(request.messages, system=request.system, tools=request.tools)
        usage = CanonicalUsage(input_tokens=prompt)
        await account(live, usage, model=request.model, task="auxiliary", estimated=True)


def usage_of(live: ConversationState, reply: Reply, prompt: int, *, api: Api) -> tuple[CanonicalUsage, bool]:
    """What a reply used, and whether that had to be estimated: the provider said nothing, or not all."""
    reported = normalize_usage(reply.usage, api=api) if reply.usage else CanonicalUsage()
    if reported.prompt_tokens and (reported.output_tokens or not _said(reply)):
        return reported, False
    words = live.counter.text(_said(reply))
    if reported.prompt_tokens:
        return reported + CanonicalUsage(output_tokens=words), True
    return CanonicalUsage(input_tokens=prompt, output_tokens=max(reported.output_tokens, words), raw=reply.usage), True


def _said(reply: Reply) -> str:
    calls = (f"{call.name} {call.arguments}" for call in calls_of(reply.message))
    return "\n".join([text_of(reply.message), *calls]).strip()
