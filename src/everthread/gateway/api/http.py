"""Declare the endpoints of the threads API, read their requests, and make responses with JSON or a turn's events."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope

from everthread.gateway.access.authentication import Caller
from everthread.gateway.api.schemas import Body, NoBody, NoQuery, Query, make_turn_view
from everthread.gateway.api.turn_log import TurnEvent
from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.body_limits import read_body
from everthread.gateway.request.client_connection import run_while_connected
from everthread.gateway.request.request_head import RequestHead
from everthread.store.turn_records import QueuedTurn


def make_json_response(
    body: BaseModel | Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    if isinstance(body, BaseModel):
        content = body.model_dump_json().encode("utf-8", "replace")
    else:
        content = json.dumps(body).encode()
    return Response(content, status, headers, media_type="application/json")


def make_error_response(refused: RequestRefused) -> Response:
    headers = {"x-everthread-error": refused.code}
    if refused.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(refused.retry_after)))
    body = {"error": {"code": refused.code, "message": refused.message}}
    return make_json_response(body, refused.status, headers)


T = TypeVar("T")
ModelT = TypeVar("ModelT", bound=BaseModel)
_MAX_LISTED_PROBLEMS = 5
"""Maximum problems of one body that an error lists."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request that was authenticated and read."""

    caller: Caller
    may_use_tools: bool
    """Whether the caller may use commands and files."""
    path_values: Mapping[str, str]
    """The values of the path's parameters."""
    query: Any
    body: Any
    headers: Mapping[str, str]
    scope: Scope

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    @property
    def wants_events(self) -> bool:
        return "text/event-stream" in self.headers.get("accept", "")

    async def run_while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of the work. If the client disconnects first, cancel the work and raise `ClientGone`."""
        return await run_while_connected(work, self.scope)


EndpointHandler = Callable[[Any, ApiRequest], Awaitable[BaseModel | Response]]
"""A method that answers a request with a body for status 200 or with a whole response."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One path and method of the API."""

    handler: EndpointHandler
    method: str
    path: str
    answer: type[BaseModel]
    body: type[Body] = NoBody
    query: type[Query] = NoQuery
    status: int = 200
    errors: tuple[int, ...] = ()
    """Error statuses in addition to those that every path may have."""
    streams: bool = False
    """Whether the endpoint can answer with a stream of events."""

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").removesuffix(".")


def endpoint(
    method: str, path: str, answer: type[BaseModel], **options: Any
) -> Callable[[EndpointHandler], EndpointHandler]:
    """Mark a method as the handler of a path. Its docstring becomes the OpenAPI summary."""

    def mark_handler(handler: EndpointHandler) -> EndpointHandler:
        handler.__dict__["endpoint"] = Endpoint(handler, method, path, answer, **options)
        return handler

    return mark_handler


def list_endpoints(routes: type) -> tuple[Endpoint, ...]:
    """Return the marked methods of a class, in their order."""
    return tuple(method.endpoint for method in vars(routes).values() if hasattr(method, "endpoint"))


async def read_request(
    endpoint: Endpoint, head: RequestHead, receive: Receive, limits: GatewayLimits
) -> tuple[Query, Body]:
    """Read the query and the body of a request. Raise `RequestRefused` if they are invalid."""
    query_pairs = parse_qsl(
        head.target.partition(b"?")[2].decode("latin-1"),
        keep_blank_values=True,
        max_num_fields=50,
    )
    if len({name for name, _ in query_pairs}) < len(query_pairs):
        raise RequestRefused(400, "invalid_query", "The query contains a name twice.")
    query = _validate(
        endpoint.query,
        "invalid_query",
        lambda schema: schema.model_validate(dict(query_pairs)),
    )
    if endpoint.method != "POST":
        return query, NoBody()
    media_type = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Required even without a body, because a page of another origin cannot send this type without a preflight.
    if media_type != "application/json":
        raise RequestRefused(
            415,
            "unsupported_media_type",
            "Send JSON, with `content-type: application/json`.",
        )
    if head.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefused(
            415, "unsupported_encoding", "Send the body without a content-encoding."
        )
    body = await read_body(receive, head, limits) or b"{}"
    return query, _validate(
        endpoint.body,
        "invalid_body",
        lambda schema: schema.model_validate_json(body),
    )


def _validate(
    schema: type[ModelT], error_code: str, parse: Callable[[type[ModelT]], ModelT]
) -> ModelT:
    try:
        return parse(schema)
    except ValidationError as error:
        raise RequestRefused(400, error_code, _describe_problems(error)) from None


def _describe_problems(error: ValidationError) -> str:
    """Describe the problems of the input without quoting it."""
    details = error.errors(include_input=False, include_url=False, include_context=False)
    lines = []
    for detail in details[:_MAX_LISTED_PROBLEMS]:
        location = ".".join(str(step)[:50] for step in detail["loc"])
        lines.append(f"{location or 'the body'}: {detail['msg']}")
    more_count = len(details) - len(lines)
    return "; ".join(lines) + (f"; and {more_count} more" if more_count else "")


HEARTBEAT_COMMENT = b": still here\n\n"


def make_event_response(
    turn: QueuedTurn, events: AsyncGenerator[TurnEvent, None], heartbeat_seconds: float
) -> Response:
    """Stream the events of a turn until it is over or the gateway closes."""
    headers = {
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
        "x-everthread-turn": turn.id,
    }
    chunks = _encode_events(events, heartbeat_seconds)
    return StreamingResponse(chunks, headers=headers, media_type="text/event-stream")


async def _encode_events(
    events: AsyncGenerator[TurnEvent, None], heartbeat_seconds: float
) -> AsyncIterator[bytes]:
    """Yield the encoded events, with a comment whenever none has come for `heartbeat_seconds`."""
    next_event = asyncio.ensure_future(anext(events, None))
    try:
        while True:
            finished, _ = await asyncio.wait({next_event}, timeout=heartbeat_seconds)
            if not finished:
                yield HEARTBEAT_COMMENT
                continue
            event = next_event.result()
            if event is None:
                break
            yield _encode_event(event)
            next_event = asyncio.ensure_future(anext(events, None))
    finally:
        next_event.cancel()
        await asyncio.gather(next_event, return_exceptions=True)
        await events.aclose()


def _encode_event(event: TurnEvent) -> bytes:
    data = event.data if event.turn is None else make_turn_view(event.turn).model_dump(mode="json")
    return f"id: {event.number}\nevent: {event.name}\ndata: {json.dumps(data)}\n\n".encode()
