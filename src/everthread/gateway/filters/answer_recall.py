"""Answer the model's calls of `recall` in the gateway: the rounds of an answer become one response to the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from everthread.core.canonical_usage import CanonicalUsage
from everthread.core.messages import calls_of
from everthread.core.types import Reply
from everthread.errors import WireError
from everthread.gateway.answer_reader import usage_of
from everthread.gateway.error_answers import error_event
from everthread.gateway.exchange import Answer, Exchange, UpstreamRequest, answer_of
from everthread.gateway.filters import Feature, Filter
from everthread.gateway.managed.managed_exchange import ManagedExchange
from everthread.gateway.recall.recall_watch import RecallWatch, may_call_recall
from everthread.gateway.recall.stream_merge import (
    MERGED,
    RECALL,
    merge_bodies,
)
from everthread.gateway.streaming import Pieces
from everthread.gateway.upstream import UpstreamResponse
from everthread.thread.caller.sent_history import Outcome
from everthread.wire.codecs import CODECS


class RecallRounds(Feature):
    """The rounds in which the model calls the gateway's own tool."""

    def begin(self, exchange: Exchange) -> Filter | None:
        return (
            _RecallFilter(exchange) if isinstance(exchange, ManagedExchange) else None
        )


class _RecallFilter(Filter):
    def __init__(self, exchange: ManagedExchange) -> None:
        self._exchange = exchange
        self._api = exchange.incoming.api
        self._last: CanonicalUsage | None = None
        """Usage of the last of several rounds."""
        self._hidden: list[CanonicalUsage] = []
        """Usage of the rounds before it."""

    def request(self, request: UpstreamRequest) -> UpstreamRequest:
        return (
            replace(request, is_plain=True) if self._exchange.sent.recall else request
        )

    async def answer(self, answer: Answer) -> Answer:
        """Return the answer with all its rounds. A whole one is complete here; a stream asks for them as it goes."""
        if (
            not self._exchange.sent.recall
            or answer.status >= 300
            or not answer.is_plain
        ):
            return answer
        if answer.streams:
            return replace(
                answer,
                pieces=Pieces(self._merge_streams(answer.pieces)),
                is_changed=True,
            )
        first = await answer.pieces.join()
        if not may_call_recall(first):
            return replace(answer, pieces=Pieces.of(first))
        body = await self._merge_whole(first)
        return replace(
            answer,
            status=self._exchange.status,
            pieces=Pieces.of(body),
            is_changed=True,
        )

    def done(self, outcome: Outcome) -> Outcome:
        if self._last is None and not self._hidden:
            return outcome
        if self._hidden:
            self._exchange.writer.note(recall_rounds=len(self._hidden))
        return replace(outcome, usage=self._last, hidden_usage=tuple(self._hidden))

    async def _merge_streams(self, pieces: Pieces) -> AsyncIterator[bytes]:
        """Yield the streams of all rounds as one; an error of a later round is its last event."""
        watch = RecallWatch()
        stream = pieces.all()
        async for piece in stream:
            passed = watch.feed(piece)
            if watch.is_found:
                break
            if passed:
                yield passed
        if not watch.is_found:
            yield watch.rest
            return
        merged = MERGED[self._api](model=self._exchange.model)
        merged.feed(watch.passed)  # the client has these events
        yield merged.feed(watch.rest)
        while True:
            async for piece in stream:
                yield merged.feed(piece)
            reply, last_events = merged.end_round()
            yield last_events
            outcome = await self._exchange.wait(self._next_round(reply, merged.recalls))
            if outcome is None:
                yield merged.finish()
                return
            following = answer_of(outcome)
            if following.status >= 300:
                refusal = await following.read_error() or b""
                yield error_event(self._api, following.status, refusal)
                return
            merged.continue_round()
            stream = following.pieces.all()

    async def _merge_whole(self, raw: bytes) -> bytes:
        """Return the rounds of an answer that does not stream as one; an error of a later round in their place.

        `raw`: the answer of the first round.
        """
        bodies: list[Any] = []
        while True:
            try:
                body: Any = json.loads(raw)
                reply = CODECS[self._api].decode_reply(body, model=self._exchange.model)
            except (WireError, ValueError, RecursionError):
                return raw
            bodies.append(body)
            recalls = sum(call.name == RECALL for call in calls_of(reply.message))
            if not recalls and len(bodies) == 1:
                return raw
            following = await self._next_round(reply, recalls)
            if following is None:
                return json.dumps(
                    merge_bodies(self._api, bodies), ensure_ascii=False
                ).encode("utf-8", "replace")
            raw = await answer_of(following).pieces.join()
            if following.status_code >= 300:
                return raw

    async def _next_round(self, reply: Reply, recalls: int) -> UpstreamResponse | None:
        """Answer the calls of a round and ask again; return None if the response ends with this round."""
        if not recalls and not self._hidden:
            self._last = None
            return None
        exchange = self._exchange
        self._last = usage_of(self._api, reply)
        outgoing = await exchange.turn.resume(reply)
        if outgoing is None:
            return None
        if self._last is not None:
            self._hidden.append(self._last)
        exchange.services.metrics.count("recalls", recalls)
        following = await exchange.send_next(outgoing)
        while following.status_code >= 300:
            exchange.writer.note(recall_refused=following.status_code)
            smaller = await exchange.turn.retry_without_recall(reply)
            if smaller is None:
                break
            following = await exchange.send_next(smaller)
        return following
