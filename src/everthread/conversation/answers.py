"""A model's answer: decoded, stored and accounted for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from everthread.conversation.given_messages import open_stubs
from everthread.conversation.requests import PreparedRequest
from everthread.conversation.state import ConversationState
from everthread.core.caching.cache_diagnosis import with_diagnosis
from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.messages import (
    Call,
    Message,
    calls_of,
    text_of,
    without_native_value,
)
from everthread.core.types import Api, Reply
from everthread.core.validation import is_empty, with_call_ids
from everthread.errors import ModelError
from everthread.store.records import NewMessage, new_id
from everthread.thread.accounting import usage_of
from everthread.thread.events import LimitLearnt
from everthread.wire.codecs import CODECS

INTERRUPTED = "[The answer was interrupted here.]"


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer, stored and accounted for."""

    message: Message
    stop: str | None
    usage: CanonicalUsage
    cost: Decimal | None
    """Dollars; None if a price is unknown."""
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


def decode_response(response: Any, *, api: Api, model: str) -> Reply:
    """Decode a provider's answer: a `Reply`, JSON, an SDK's object, or a list of stream chunks."""
    if isinstance(response, Reply):
        return response
    if isinstance(response, list | tuple):
        decoder = CODECS[api].stream_decoder(model=model)
        for chunk in response:
            decoder.feed(_as_json(chunk))
        return decoder.reply()
    return CODECS[api].decode_reply(_as_json(response), model=model)


def _as_json(value: Any) -> Any:
    """Return an SDK's object as JSON values."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if callable(dump) else value


def storable(message: Message) -> Message:
    """Return the message; if needed, with a unique id for each call and with some content.

    Some servers give calls no ids, or the same id to all of them, so results could not be matched to calls.
    """
    ids = [call.id for call in calls_of(message)]
    if not ids:
        return (
            {**without_native_value(message), "content": ""}
            if _is_silent(message)
            else message
        )
    if all(ids) and len(set(ids)) == len(ids):
        return message
    return with_call_ids(message, list(_unique_ids(ids)))


def _is_silent(message: Message) -> bool:
    """Return whether a message is empty, both here and in its wire form, which may hold reasoning.

    Providers refuse an empty block.
    """
    native = message.get("_native", {}).get("value")
    content = native.get("content") if isinstance(native, dict) else native
    return is_empty(message) and is_empty({"role": "assistant", "content": content})


def _unique_ids(ids: list[str]) -> Iterator[str]:
    used: set[str] = set()
    for call_id in ids:
        yield call_id if call_id and call_id not in used else f"call_{new_id()}"
        used.add(call_id)


class Recorder:
    """Stores and accounts for the answers of one conversation."""

    def __init__(
        self,
        live: ConversationState,
        learn: Callable[[CanonicalUsage, Mapping[str, Any]], None],
    ) -> None:
        """Set up recording.

        `learn` receives the usage reported for the conversation's own model, and the request's parameters.
        """
        self._live = live
        self._learn = learn
        self.sent: PreparedRequest | None = None
        """The request that is under way."""
        self._lost: list[Reply] = []
        """Interrupted replies that the model's own wrappers requested again."""

    @property
    def _under_way(self) -> tuple[Api, str, int]:
        """Protocol, model and prompt tokens of the request under way: a model chosen since may be another."""
        sent = self.sent
        route = self._live.route
        return (
            (sent.api, sent.request.model, sent.tokens)
            if sent
            else (route.api, route.name, self._live.tokens)
        )

    @property
    def _answering_model(self) -> str:
        """The model that answers the request under way."""
        _, requested, _ = self._under_way
        return (
            self._live.answering_model
            if requested == self._live.route.name
            else requested
        )

    def _decode(self, response: Any) -> Reply:
        api, model, _ = self._under_way
        return decode_response(response, api=api, model=model)

    def _usage_of(self, reply: Reply) -> tuple[CanonicalUsage, bool]:
        api, _, prompt = self._under_way
        usage, estimated = usage_of(reply, prompt, api=api, counter=self._live.counter)
        return with_diagnosis(usage, reply.raw), estimated

    async def record(self, response: Any) -> Answer:
        """Store and account for an answer in any form."""
        live = self._live
        reply = self._decode(response)
        message = storable(reply.message)
        usage, estimated = self._usage_of(reply)
        answered = self._answering_model
        own = answered == live.route.name
        live.last_answer_id = reply.id if own else ""
        if self.sent and not estimated and own:
            live.state.calibration.observe(
                answered, usage.prompt_tokens, self.sent.estimate
            )
        live.engine.update_from_response(usage)
        if own and not estimated:
            self._learn(usage, self.sent.request.params if self.sent else {})
        new = [
            *(NewMessage(stub) for stub in open_stubs(live.open_calls)),
            NewMessage(message, event=new_id()),
        ]
        stored, cost, _ = await asyncio.gather(
            live.append(new),
            self._account(usage, answered, estimated=estimated),
            live.save(),
        )
        await self.account_lost()
        if own and not estimated:
            await self._learn_success(usage)
        self.sent = None
        return Answer(message, reply.stop, usage, cost, stored[-1].id)

    async def _account(
        self, usage: CanonicalUsage, model: str, *, estimated: bool
    ) -> Decimal | None:
        live = self._live
        provider = live.route.provider if model == live.route.name else "auto"
        return await live.accounting.record(
            live.session.id, model, usage, estimated=estimated, provider=provider
        )

    def note_partial_reply(self, error: ModelError) -> None:
        """Remember the partial reply of a failed call. Several wrappers may report it; its usage counts once."""
        if isinstance(error.partial, Reply) and not any(
            error.partial is lost for lost in self._lost
        ):
            self._lost.append(error.partial)

    async def account_lost(self) -> None:
        lost = self._lost
        self._lost = []
        for reply in lost:
            usage, estimated = self._usage_of(reply)
            await self._account(usage, self._live.route.name, estimated=estimated)

    async def record_interrupted(self, text: str) -> None:
        """Store the text of a cancelled answer; its usage is estimated."""
        live = self._live
        message: Message = {
            "role": "assistant",
            "content": f"{text}\n\n{INTERRUPTED}" if text else INTERRUPTED,
        }
        usage = CanonicalUsage(
            input_tokens=self._under_way[2], output_tokens=live.counter.text(text)
        )
        accounted = self._account(usage, live.route.name, estimated=True)
        await asyncio.gather(live.append([NewMessage(message)]), accounted)

    async def _learn_success(self, usage: CanonicalUsage) -> None:
        """Drop a learnt limit after the first success above it."""
        live = self._live
        if usage.prompt_tokens and await live.limits.succeed(
            live.limit_key, usage.prompt_tokens
        ):
            live.fit(live.route.window)
            name = live.route.name
            why = "a larger prompt was accepted"
            live.emit(
                LimitLearnt(live.session.id, name, live.route.window, why, stored=True)
            )
