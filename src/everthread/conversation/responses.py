"""From an answer to what is stored and accounted for, also where it broke off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from everthread.context.accounting import usage_of
from everthread.context.policy import paused_text
from everthread.conversation.events import LimitLearnt, Notice
from everthread.conversation.requests import PreparedRequest, decode_response, open_stubs
from everthread.conversation.state import ConversationState
from everthread.core.messages import Call, Message, calls_of, off_the_wire, text_of
from everthread.core.pricing import CanonicalUsage
from everthread.core.types import Api, Reply
from everthread.core.validation import is_empty, with_call_ids
from everthread.errors import ModelError
from everthread.store.models import NewMessage, new_id

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which comes to its end also when the waiting is cancelled, however often."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # seen: the cancellation is what is told
        raise


# The message that is stored


def storable(message: Message) -> Message:
    """The message itself where nothing is wrong with it; else every call with an id of its own, and some content.

    Some servers give calls no ids, or all of them the same: no result could then be told from another.
    """
    ids = [call.id for call in calls_of(message)]
    if not ids:
        return {**off_the_wire(message), "content": ""} if _says_nothing(message) else message
    if all(ids) and len(set(ids)) == len(ids):
        return message
    return with_call_ids(message, list(_own_ids(ids)))


def _says_nothing(message: Message) -> bool:
    """Neither here nor in what was on the wire, which may hold reasoning: an empty block would be refused."""
    native = message.get("_native", {}).get("value")
    said = native.get("content") if isinstance(native, dict) else native
    return is_empty(message) and is_empty({"role": "assistant", "content": said})


def _own_ids(ids: list[str]) -> Iterator[str]:
    seen: set[str] = set()
    for given in ids:
        yield given if given and given not in seen else f"call_{new_id()}"
        seen.add(given)


# The answer

INTERRUPTED = "[The answer was interrupted here.]"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered, stored and accounted for."""

    message: Message
    stop: str | None
    usage: CanonicalUsage
    cost: Decimal | None
    """Dollars; None where a price is unknown."""
    id: int
    """The stored message."""

    def __repr__(self) -> str:
        text = " ".join(self.text.split())
        return f"<Answer {text[:60] + '…' if len(text) > 60 else text!r}: {self.stop}, {len(self.calls)} calls>"

    @property
    def text(self) -> str:
        return text_of(self.message)

    @property
    def calls(self) -> list[Call]:
        """The tools it wants; their results are given to `add_results`."""
        return calls_of(self.message)


class Recorder:
    """Writes down the answers of one conversation."""

    def __init__(self, live: ConversationState) -> None:
        self._live = live
        self.sent: PreparedRequest | None = None
        """The request that is under way."""
        self._lost: list[Reply] = []
        """Replies that broke off and were asked for again by the model's own wrappers."""

    @property
    def _prompt(self) -> int:
        return self.sent.tokens if self.sent else self._live.tokens

    @property
    def _api(self) -> Api:
        """The protocol of the request under way: a model chosen since may speak another."""
        return self.sent.api if self.sent else self._live.route.api

    @property
    def _asked(self) -> str:
        return self.sent.request.model if self.sent else self._live.route.name

    @property
    def _answered(self) -> str:
        """The model that answers the request under way."""
        return self._live.answering if self._asked == self._live.route.name else self._asked

    async def record(self, response: Any, event: str | None = None) -> Answer:
        """Store and account for an answer, in whichever form it came."""
        live = self._live
        reply = decode_response(response, api=self._api, model=self._asked)
        message = storable(reply.message)
        usage, estimated = usage_of(reply, self._prompt, api=self._api, counter=live.counter)
        answered = self._answered
        own = answered == live.route.name
        if self.sent and not estimated and own:
            live.context.calibration.observe(answered, usage.prompt_tokens, self.sent.estimate)
        live.engine.update_from_response(usage)
        if own and not estimated:
            live.context.observe(usage, live.setup.wall(), ttl=live.setup.options.cache_seconds)
            if usage.prompt_tokens and live.context.pause.report(usage.prompt_tokens, live.setup.wall()):
                text = f"{paused_text(usage.prompt_tokens)} /compress works at any time."
                live.emit(Notice(live.session.id, text))
        new = [
            *(NewMessage(stub) for stub in open_stubs(live.open_calls)),
            NewMessage(message, event=event or new_id()),
        ]
        stored, cost, _ = await asyncio.gather(
            live.append(new), self._account(usage, estimated=estimated, model=answered), live.save()
        )
        await self.account_lost()
        if own and not estimated:
            await self._learn_success(usage)
        self.sent = None
        return Answer(message, reply.stop, usage, cost, stored[-1].id)

    async def account(self, response: Any) -> None:
        """What an answer used, without the answer."""
        reply = decode_response(response, api=self._api, model=self._asked)
        usage, estimated = usage_of(reply, self._prompt, api=self._api, counter=self._live.counter)
        await self._account(usage, estimated=estimated, model=self._answered)

    async def _account(self, usage: CanonicalUsage, *, estimated: bool, model: str | None = None) -> Decimal | None:
        live = self._live
        name = model or live.route.name
        provider = live.route.provider if name == live.route.name else "auto"
        return await live.accounting.record(live.session.id, name, usage, estimated=estimated, provider=provider)

    def lose(self, error: ModelError) -> None:
        """What a failed call had begun to answer. Several wrappers may tell of it; what it used counts once."""
        if isinstance(error.partial, Reply) and not any(error.partial is lost for lost in self._lost):
            self._lost.append(error.partial)

    async def account_lost(self) -> None:
        lost, self._lost = self._lost, []
        for reply in lost:
            usage, estimated = usage_of(reply, self._prompt, api=self._api, counter=self._live.counter)
            await self._account(usage, estimated=estimated)

    async def interrupted(self, said: str) -> None:
        """An answer nobody reads any more: what was said is kept, what it used is estimated."""
        live = self._live
        message: Message = {"role": "assistant", "content": f"{said}\n\n{INTERRUPTED}" if said else INTERRUPTED}
        usage = CanonicalUsage(input_tokens=self._prompt, output_tokens=live.counter.text(said))
        await asyncio.gather(live.append([NewMessage(message)]), self._account(usage, estimated=True))

    async def _learn_success(self, usage: CanonicalUsage) -> None:
        """A learnt limit dies at the first success above it."""
        live = self._live
        if usage.prompt_tokens and await live.limits.succeed(live.limit_key, usage.prompt_tokens):
            live.fit(live.route.window)
            name, why = live.route.name, "a larger prompt was accepted"
            live.emit(LimitLearnt(live.session.id, name, live.route.window, why, stored=True))
