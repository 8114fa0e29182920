"""A request to the native API: read within the limits, and checked before anything is done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.types import Receive

from everthread.gateway.access import Caller, Refused
from everthread.gateway.incoming import Call, read_body
from everthread.gateway.limits import Limits
from everthread.gateway.native.replies import Answer, Sender
from everthread.gateway.native.schemas import Body, NoBody, NoQuery, Query

T = TypeVar("T", bound=BaseModel)
_SHOWN = 5
"""Problems of one body that are told."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks for."""

    caller: Caller
    tools: bool
    """It may use commands and files."""
    names: Mapping[str, str]
    """Of the path."""
    query: Any
    body: Any
    headers: Mapping[str, str]
    receive: Receive
    sender: Sender

    @property
    def tenant(self) -> str:
        return self.caller.tenant

    @property
    def thread(self) -> str:
        return self.names["thread"]

    @property
    def wants_events(self) -> bool:
        return "text/event-stream" in self.headers.get("accept", "")


Handler = Callable[[Ask], Awaitable[Answer | None]]
"""None: it has answered already, with a stream."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One way to ask."""

    method: str
    path: str
    summary: str
    handler: Handler
    answer: type[BaseModel]
    body: type[Body] = NoBody
    query: type[Query] = NoQuery
    status: int = 200
    errors: tuple[int, ...] = ()
    streams: bool = False
    """It can answer with events."""


async def read(endpoint: Endpoint, call: Call, receive: Receive, limits: Limits) -> tuple[Query, Body]:
    """Query and body of a request. `Refused` where something is wrong with them."""
    pairs = parse_qsl(call.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True, max_num_fields=50)
    if len({name for name, _ in pairs}) < len(pairs):
        raise Refused(400, "invalid_query", "A name stands twice in the query.")
    query = _checked(endpoint.query, "invalid_query", lambda kind: kind.model_validate(dict(pairs)))
    if endpoint.method != "POST":
        return query, NoBody()
    kind = call.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # also without a body: no page of another origin can send this type unasked
        raise Refused(415, "unsupported_media_type", "Send JSON, with `content-type: application/json`.")
    if call.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "unsupported_encoding", "Send the body without a content-encoding.")
    raw = await read_body(receive, call, limits) or b"{}"
    return query, _checked(endpoint.body, "invalid_body", lambda model: model.model_validate_json(raw))


def _checked(kind: type[T], code: str, parse: Callable[[type[T]], T]) -> T:
    try:
        return parse(kind)
    except ValidationError as error:
        raise Refused(400, code, _told(error)) from None


def _told(error: ValidationError) -> str:
    """What is wrong, without what was sent."""
    details = error.errors(include_input=False, include_url=False, include_context=False)
    lines = [
        f"{'.'.join(str(step)[:50] for step in detail['loc']) or 'the body'}: {detail['msg']}"
        for detail in details[:_SHOWN]
    ]
    return "; ".join(lines) + (f"; and {len(details) - _SHOWN} more" if len(details) > _SHOWN else "")
