"""Answer requests for a compaction in the Responses protocol, if the upstream makes none.

A client asks with a `compaction_trigger` at the end of its input, or at `/v1/responses/compact`.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.gateway.answers import Answer, AnswerBody
from everthread.gateway.compaction_items import (
    COMPACTION_PATH,
    asks_for_compaction,
    is_compaction_unsupported,
)
from everthread.gateway.contracts import NOTICE_HEADER, IncomingRequest
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.exchange import Exchange
from everthread.gateway.features import Feature, Filter
from everthread.gateway.header_selection import ResponseHeaders
from everthread.wire.sse import SseEvent, encode_event

_LOG = logging.getLogger("everthread.gateway")
NOTICE = "compacted by the gateway: the upstream makes no compactions"
MakeItem = Callable[[IncomingRequest], Coroutine[Any, Any, tuple[dict[str, Any], int]]]
"""Make a compaction item for a request; return it with its number of tokens."""


class CompactionItemFeature(Feature):
    """Makes compaction items in the gateway if the upstream makes none."""

    paths = frozenset({COMPACTION_PATH})

    def __init__(self, make_item: MakeItem) -> None:
        self._make_item = make_item

    def make_filter(self, exchange: Exchange) -> Filter | None:
        incoming = exchange.incoming
        if incoming is None or incoming.mode != "managed" or incoming.api != "openai_responses":
            return None
        return _CompactionItemFilter(exchange, incoming, self._make_item)


class _CompactionItemFilter(Filter):
    def __init__(self, exchange: Exchange, incoming: IncomingRequest, make_item: MakeItem) -> None:
        self._exchange = exchange
        self._incoming = incoming
        self._make_item = make_item

    async def change_answer(self, answer: Answer) -> Answer:
        """If the upstream refuses to compact, return an answer with an item made by the gateway."""
        has_own_path = self._incoming.head.path == COMPACTION_PATH
        if answer.status < 400 or not (
            has_own_path or asks_for_compaction(self._incoming.body.plain)
        ):
            return answer
        refusal = await answer.read_error() or b""
        own_item = None
        if is_compaction_unsupported(answer.status, refusal):
            own_item = await self._exchange.wait(self._make_allowed_item())
        if own_item is None:
            return answer
        item, tokens = own_item
        if has_own_path:
            return _make_own_answer(
                "application/json", json.dumps(make_compact_body(item, tokens)).encode()
            )
        body = make_response_body(item, self._exchange.request.model or "", tokens)
        if self._incoming.body.outer.wants_stream:
            return _make_own_answer("text/event-stream", make_response_events(body))
        return _make_own_answer("application/json", json.dumps(body).encode())

    async def _make_allowed_item(self) -> tuple[dict[str, Any], int] | None:
        """Make an item; return None if that fails, or if the client may not spend the operator's key."""
        incoming = self._incoming
        try:
            await incoming.head.caller.authorize(
                CanonicalUsage(), self._exchange.request.model or ""
            )
        except RequestRefused as refused:
            _LOG.info("no compaction is made for a client: %s", refused.message)
            return None
        return await self._exchange.services.fail_open.attempt(
            "compaction", incoming, self._make_item(incoming)
        )


def _make_own_answer(content_type: str, body: bytes) -> Answer:
    headers = ResponseHeaders([(b"content-type", content_type.encode())])
    return Answer(200, headers, AnswerBody.from_bytes(body), own_headers={NOTICE_HEADER: NOTICE})


def make_response_body(item: dict[str, Any], model: str, tokens: int) -> dict[str, Any]:
    """Return a response with only the item. `tokens`: the tokens of the messages in the item."""
    return {
        "id": f"resp_everthread_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _make_usage(tokens),
    }


def make_compact_body(item: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return the body that answers a request at the compaction path."""
    return {
        "id": f"resp_everthread_{uuid.uuid4().hex}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [item],
        "usage": _make_usage(tokens),
    }


def make_response_events(body: dict[str, Any]) -> bytes:
    """Return the response as a stream of events."""
    in_progress = {**body, "status": "in_progress", "output": [], "usage": None}
    [item] = body["output"]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": in_progress},
        {"type": "response.in_progress", "response": in_progress},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": body},
    ]
    numbered_events = ({**event, "sequence_number": number} for number, event in enumerate(events))
    return b"".join(
        encode_event(SseEvent(str(event["type"]), json.dumps(event))) for event in numbered_events
    )


def _make_usage(tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
    }
