"""A request to the threads API as it is read, and its answer as it is sent."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.types import Receive, Send

from everthread.gateway.api.schemas import Body, NoBody, NoQuery, Query
from everthread.gateway.auth import Caller
from everthread.gateway.errors import Refused
from everthread.gateway.limits import Limits
from everthread.gateway.requests import ClientGone, RequestHead, read_body


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """One JSON answer."""

    body: BaseModel | Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        if isinstance(self.body, BaseModel):
            return self.body.model_dump_json().encode("utf-8", "replace")
        return json.dumps(self.body).encode()


def error_answer(refused: Refused) -> JsonAnswer:
    headers = {"x-everthread-error": refused.code}
    if refused.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(refused.retry_after)))
    return JsonAnswer({"error": {"code": refused.code, "message": refused.message}}, refused.status, headers)


class Sender:
    """To one client. `ClientGone` when it takes too long to read a piece."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self.started = False
        """An answer has begun; nothing else can be said in its place."""

    async def answer(self, answer: JsonAnswer) -> None:
        data = answer.data()
        headers = {"content-type": "application/json", "content-length": str(len(data)), **answer.headers}
        await self.start(answer.status, headers)
        await self.body(data, more=False)

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self.started = True
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def body(self, data: bytes, *, more: bool) -> None:
        await self._put({"type": "http.response.body", "body": data, "more_body": more})

    async def _put(self, message: dict[str, object]) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise ClientGone from None


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


Handler = Callable[[Ask], Awaitable[JsonAnswer | None]]
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


async def read(endpoint: Endpoint, call: RequestHead, receive: Receive, limits: Limits) -> tuple[Query, Body]:
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
