"""Compact a conversation in any of the protocols, and return it with a receipt (`POST /v1/compact`).

No provider is called. Plug-ins of other agents use this instead of their own compaction.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.types import Api
from everthread.errors import EverthreadError, StoreError
from everthread.gateway.admission import Admission
from everthread.gateway.contracts import GatewayLimits, IncomingRequest
from everthread.gateway.error_answers import (
    RequestRefused,
    make_error_body,
    make_error_headers,
)
from everthread.gateway.managed.requested_compactions import RequestedCompactions
from everthread.gateway.request.body_limits import read_body
from everthread.gateway.request.body_reading import RequestBody, read_request
from everthread.gateway.request.client_connection import ClientGone
from everthread.gateway.request.json_slices import LIST_FIELD
from everthread.gateway.request.request_head import RequestHead

PATH = "/v1/compact"
_MIN_WINDOW = 1_000


class CompactApp:
    """Answers `POST /v1/compact`."""

    def __init__(
        self, compactions: RequestedCompactions, limits: GatewayLimits, upstream: str
    ) -> None:
        self._compactions = compactions
        self._limits = limits
        self._upstream = upstream
        """The upstream to ask for a model's window if the request does not state one."""
        self._admission = Admission(limits.concurrent)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head: RequestHead = scope["state"]["head"]
        try:
            await _check_access(head)
            with self._admission.enter(head.caller.admission_group):
                body = await self._compact(head, await read_body(receive, head, self._limits))
            content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
            response = Response(content, media_type="application/json")
        except ClientGone:
            return
        except RequestRefused as refused:
            error = make_error_body(head.client_api, refused)
            response = Response(error, refused.status)
            response.raw_headers = make_error_headers(refused, error)
        await response(scope, receive, send)

    async def _compact(self, head: RequestHead, body: bytes) -> dict[str, Any]:
        request_body = await read_request(
            body, head.headers.get("content-encoding", ""), self._limits.body_bytes
        )
        if request_body.excess_reason:
            raise RequestRefused(
                413,
                "request_too_large",
                f"The request is not looked into: {request_body.excess_reason}.",
            )
        if request_body.model is None:
            message = (
                "The body is not an object with `model` and `messages`, `input` or `contents`."
            )
            raise RequestRefused(400, "invalid_request", message)
        window_field = request_body.outer.find("window")
        window = None if window_field is None else window_field.value
        if window is not None and (
            not isinstance(window, int) or isinstance(window, bool) or window < _MIN_WINDOW
        ):
            raise RequestRefused(
                400,
                "invalid_request",
                f"`window` is a number of tokens from {_MIN_WINDOW:,} on.",
            )
        api = _find_api(request_body, head)
        incoming = IncomingRequest(head, request_body, api, self._upstream)
        try:
            response_fields = await self._compactions.compact(incoming, window)
        except StoreError as error:
            raise RequestRefused(503, "store_unavailable", str(error), retry_after=1) from error
        except EverthreadError as error:
            raise RequestRefused(400, "not_compacted", str(error)) from error
        messages = response_fields.pop("messages")
        return {LIST_FIELD[api]: messages, **response_fields}


async def _check_access(head: RequestHead) -> None:
    """Raise `RequestRefused` for a wrong method, and for a client that may not use the operator's own key."""
    if head.method != "POST":
        raise RequestRefused(405, "method_not_allowed", "Only POST is answered here.")
    await head.caller.authorize(CanonicalUsage(), "")


def _find_api(request_body: RequestBody, head: RequestHead) -> Api:
    if request_body.outer.has("input"):
        return "openai_responses"
    if request_body.outer.has("contents"):
        return "gemini"
    is_anthropic = request_body.outer.has("system") or "anthropic-version" in head.headers
    return "anthropic" if is_anthropic else "openai_chat"
