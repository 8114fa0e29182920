"""A path that another service posts to: the body read within limits, every answer and every refusal JSON."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from everthread.core.redaction import redact
from everthread.errors import EverthreadError
from everthread.gateway.api.requests import Answer, Sender, error_answer
from everthread.gateway.auth import Caller
from everthread.gateway.errors import Refused
from everthread.gateway.limits import Limits
from everthread.gateway.middleware import Admission
from everthread.gateway.requests import ClientGone, RequestHead, read_body

_LOG = logging.getLogger("everthread.gateway")

BODY_BYTES = 1_000_000
Handler = Callable[[Mapping[str, str], bytes], Awaitable[Mapping[str, Any]]]
"""Headers with lower-case names and the body in, what is answered out. Raises `Refused`."""


def hook(handler: Handler, *, status: int = 200) -> ASGIApp:
    limits = Limits(body_bytes=BODY_BYTES)
    admission = Admission(limits.concurrent)

    async def answered(scope: Scope, receive: Receive) -> Answer:
        call = RequestHead.of(scope, Caller())
        if call.method != "POST":
            return error_answer(Refused(405, "method_not_allowed", "Only POST is answered here."))
        try:
            with admission.enter():
                return Answer(await handler(call.headers, await read_body(receive, call, limits)), status)
        except Refused as refused:
            return error_answer(refused)
        except EverthreadError as error:
            _LOG.warning("%s failed: %s", call.path, redact(str(error)))
            return error_answer(Refused(503, "unavailable", "This cannot be taken now; send it again.", retry_after=5))

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await Sender(send, limits.write_seconds).answer(await answered(scope, receive))

    return application


def json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise Refused(400, "invalid_body", "The body is no JSON object.")
    return value
