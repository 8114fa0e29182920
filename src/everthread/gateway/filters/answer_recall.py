"""Answer the model's calls of `recall` in the gateway, and merge all rounds into one response to the client.

Each protocol merges streams and whole bodies separately: turning a whole body into events and back would drop its
fields that events do not have, such as those that only one provider sends.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import calls_of
from everthread.core.types import Api, ModelReply
from everthread.errors import WireError
from everthread.gateway.answer_reader import read_usage
from everthread.gateway.answers import Answer, AnswerBody, make_answer
from everthread.gateway.error_answers import make_error_event
from everthread.gateway.exchange import UpstreamRequest
from everthread.gateway.features import Feature, Filter
from everthread.gateway.managed_exchange import ManagedExchange
from everthread.gateway.recall.merge_anthropic import (
    MergedAnthropicStream,
    merge_anthropic_bodies,
)
from everthread.gateway.recall.merge_chat import MergedChatStream, merge_chat_bodies
from everthread.gateway.recall.merge_gemini import (
    MergedGeminiStream,
    merge_gemini_bodies,
)
from everthread.gateway.recall.merge_responses import (
    MergedResponsesStream,
    merge_responses_bodies,
)
from everthread.gateway.recall.merged_stream import RECALL, MergedStream
from everthread.gateway.upstream import UpstreamResponse
from everthread.thread.caller.caller_request import Outcome
from everthread.wire.codecs import CODECS

MERGED_STREAMS: Mapping[Api, type[MergedStream]] = {
    "anthropic": MergedAnthropicStream,
    "openai_chat": MergedChatStream,
    "openai_responses": MergedResponsesStream,
    "gemini": MergedGeminiStream,
}
MERGE_BODIES: Mapping[Api, Callable[[Sequence[Any]], Any]] = {
    "anthropic": merge_anthropic_bodies,
    "openai_chat": merge_chat_bodies,
    "openai_responses": merge_responses_bodies,
    "gemini": merge_gemini_bodies,
}
"""Merge the whole bodies of several rounds into one, without the calls that the gateway answered."""
_NAME_PATTERN = re.compile(rb'"name"\s*:\s*"(?:recall?|reca|rec|re|r|)"')
"""The name of our tool or its beginning, because some servers stream a name in pieces."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
MAX_WATCHED_BYTES = 4 * 1024 * 1024
"""Maximum bytes that are kept for a later merge; longer answers are merged from here on."""


class RecallFeature(Feature):
    """Answer the rounds in which the model calls the gateway's own tool."""

    def make_managed_filter(self, managed_exchange: ManagedExchange) -> Filter:
        return _RecallFilter(managed_exchange)


class _RecallFilter(Filter):
    def __init__(self, managed_exchange: ManagedExchange) -> None:
        self._managed_exchange = managed_exchange
        self._exchange = managed_exchange.exchange
        self._api = managed_exchange.incoming.api
        self._last_usage: CanonicalUsage | None = None
        """Usage of the last round, if there are several."""
        self._recall_usage: list[CanonicalUsage] = []
        """Usage of the earlier rounds."""

    def change_request(self, request: UpstreamRequest) -> UpstreamRequest:
        return (
            replace(request, is_plain=True)
            if self._managed_exchange.outgoing.offers_recall
            else request
        )

    async def change_answer(self, answer: Answer) -> Answer:
        """Return the answer with all its rounds. A stream requests further rounds while it is sent."""
        offers_recall = self._managed_exchange.outgoing.offers_recall
        if not offers_recall or answer.status >= 300 or not answer.is_plain:
            return answer
        if answer.is_stream:
            return replace(
                answer,
                body=AnswerBody(self._merge_streams(answer.body)),
                is_changed=True,
            )
        first = await answer.body.read()
        if not may_call_recall(first):
            return replace(answer, body=AnswerBody.from_bytes(first))
        body = await self._merge_whole(first)
        return replace(
            answer,
            status=self._exchange.status,
            body=AnswerBody.from_bytes(body),
            is_changed=True,
        )

    def finish(self, outcome: Outcome) -> Outcome:
        if self._last_usage is None and not self._recall_usage:
            return outcome
        if self._recall_usage:
            self._exchange.writer.note(recall_rounds=len(self._recall_usage))
        return replace(outcome, usage=self._last_usage, recall_usage=tuple(self._recall_usage))

    async def _merge_streams(self, body: AnswerBody) -> AsyncIterator[bytes]:
        """Yield the streams of all rounds as one; an error of a later round is its last event."""
        recall_watch = RecallWatch()
        stream = body.pieces()
        async for piece in stream:
            passed_bytes = recall_watch.feed(piece)
            if recall_watch.must_merge:
                break
            if passed_bytes:
                yield passed_bytes
        if not recall_watch.must_merge:
            yield recall_watch.held_bytes
            return
        merged = MERGED_STREAMS[self._api](model=self._exchange.request.model)
        merged.feed(recall_watch.passed_bytes)  # the client has these events
        yield merged.feed(recall_watch.held_bytes)
        while True:
            async for piece in stream:
                yield merged.feed(piece)
            reply, last_events = merged.end_round()
            yield last_events
            outcome = await self._exchange.wait(
                self._request_next_round(reply, merged.recall_count)
            )
            if outcome is None:
                yield merged.finish()
                return
            next_response = make_answer(outcome)
            if next_response.status >= 300:
                refusal = await next_response.read_error() or b""
                yield make_error_event(self._api, next_response.status, refusal)
                return
            merged.continue_round()
            stream = next_response.body.pieces()

    async def _merge_whole(self, raw: bytes) -> bytes:
        """Return the rounds of an answer that is not a stream as one body; if a later round fails, return its error.

        `raw`: the answer of the first round.
        """
        bodies: list[Any] = []
        while True:
            try:
                body: Any = json.loads(raw)
                reply = CODECS[self._api].decode_reply(body, model=self._exchange.request.model)
            except (WireError, ValueError, RecursionError):
                return raw
            bodies.append(body)
            recall_count = sum(call.name == RECALL for call in calls_of(reply.message))
            if not recall_count and len(bodies) == 1:
                return raw
            next_response = await self._request_next_round(reply, recall_count)
            if next_response is None:
                merged = MERGE_BODIES[self._api](bodies)
                text = json.dumps(merged, ensure_ascii=False)
                return text.encode("utf-8", "replace")
            raw = await make_answer(next_response).body.read()
            if next_response.status_code >= 300:
                return raw

    async def _request_next_round(
        self, reply: ModelReply, recall_count: int
    ) -> UpstreamResponse | None:
        """Answer the calls of a round and send the next request; return None if this round was the last."""
        if not recall_count and not self._recall_usage:
            self._last_usage = None
            return None
        exchange = self._exchange
        self._last_usage = read_usage(self._api, reply)
        outgoing = await self._managed_exchange.resume_after_recall(reply)
        if outgoing is None:
            return None
        if self._last_usage is not None:
            self._recall_usage.append(self._last_usage)
        exchange.services.metrics.count("recalls", recall_count)
        next_response = await self._managed_exchange.send_next(outgoing)
        while next_response.status_code >= 300:
            exchange.writer.note(recall_refused=next_response.status_code)
            smaller_request = await self._managed_exchange.retry_without_recall(reply)
            if smaller_request is None:
                break
            next_response = await self._managed_exchange.send_next(smaller_request)
        return next_response


def may_call_recall(data: bytes) -> bool:
    """Return whether these bytes of an answer may contain the beginning of a call of our tool."""
    return b'"name"' in data and _NAME_PATTERN.search(data) is not None


class RecallWatch:
    """Look for a call of our tool in the complete events of a stream.

    Most answers have no such call. Searching their bytes costs less than a merged stream, which decodes every event.
    """

    def __init__(self) -> None:
        self.must_merge = False
        """Whether the rounds have to be merged from `held_bytes` on."""
        self.held_bytes = b""
        """Bytes that were not passed on."""
        self._passed_pieces: list[bytes] = []
        self._passed_size = 0

    @property
    def passed_bytes(self) -> bytes:
        """All bytes that were passed on."""
        return b"".join(self._passed_pieces)

    def feed(self, piece: bytes) -> bytes:
        """Add a piece and return the complete events, which can be passed on.

        From the first event that may call the tool on, or after `MAX_WATCHED_BYTES`, hold everything back.
        """
        data = self.held_bytes + piece
        end = _end_of_events(data)
        events = data[:end]
        self._passed_size += len(events)
        if may_call_recall(events) or self._passed_size > MAX_WATCHED_BYTES:
            self.must_merge = True
            self.held_bytes = data
            return b""
        self.held_bytes = data[end:]
        self._passed_pieces.append(events)
        return events


def _end_of_events(data: bytes) -> int:
    """Return the end of the last complete event; 0 if none is complete."""
    positions = [(data.rfind(mark), len(mark)) for mark in _EVENT_ENDS]
    return max(
        (position + length for position, length in positions if position >= 0),
        default=0,
    )
