"""The threads API as an ASGI application."""

from __future__ import annotations

import contextlib
import logging
import re

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from everthread.core.secrets.redaction import redact
from everthread.errors import EverthreadError, InputError, StoreError, UnknownIdError
from everthread.gateway.access.authentication import Caller
from everthread.gateway.admission import Admission
from everthread.gateway.api.http import (
    ApiRequest,
    Endpoint,
    list_endpoints,
    make_error_response,
    make_json_response,
    read_request,
)
from everthread.gateway.api.openapi import make_openapi_document
from everthread.gateway.api.queue import TurnQueue
from everthread.gateway.api.routes import PreviewThread, ThreadRoutes
from everthread.gateway.api.turn_failures import INTERNAL_ERROR_TEXT
from everthread.gateway.contracts import GatewayLimits
from everthread.gateway.error_answers import RequestRefused
from everthread.gateway.request.client_connection import ClientGone, limit_send_time
from everthread.gateway.request.request_head import RequestHead

_LOG = logging.getLogger("everthread.gateway")
_ID_PATTERN = r"[0-9A-Za-z_-]{1,64}"
OPENAPI_PATH = "/api/openapi.json"


class ThreadsApi:
    """Answers `/api/…` for callers that `GatewayApp` has authenticated.

    With `keyless_may_use_tools`, callers without a key may use commands and files.
    """

    def __init__(
        self,
        queue: TurnQueue,
        *,
        preview: PreviewThread,
        limits: GatewayLimits | None = None,
        keyless_may_use_tools: bool,
        heartbeat_seconds: float,
    ) -> None:
        self.queue = queue
        self._limits = limits or GatewayLimits()
        self._keyless_may_use_tools = keyless_may_use_tools
        self._admission = Admission(self._limits.concurrent)
        self._handlers = ThreadRoutes(queue, heartbeat_seconds, preview)
        endpoints = list_endpoints(ThreadRoutes)
        self._routes = [
            (re.sub(r"\{(\w+)\}", rf"(?P<\1>{_ID_PATTERN})", endpoint.path), endpoint)
            for endpoint in endpoints
        ]
        """Each endpoint with a regular expression for its path."""
        self._openapi_response = make_json_response(make_openapi_document(endpoints))

    async def start(self) -> None:
        await self.queue.start()

    async def close(self, grace_seconds: float = 0.0) -> None:
        """Close the API after giving running turns `grace_seconds` to end."""
        await self.queue.close(grace_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head: RequestHead = scope["state"]["head"]
        send = limit_send_time(send, self._limits.write_seconds)
        with contextlib.suppress(ClientGone):
            try:
                with self._admission.enter(head.caller.admission_group):
                    response = await self._answer(head, scope, receive)
                    await response(scope, receive, send)
            except RequestRefused as refused:
                await make_error_response(refused)(scope, receive, send)
            except ClientGone:
                raise
            except Exception:  # noqa: BLE001 - logged with its traceback; the client gets JSON all the same
                _LOG.exception("%s %s failed", head.method, redact(head.path))
                failure = RequestRefused(500, "internal", INTERNAL_ERROR_TEXT)
                await make_error_response(failure)(scope, receive, send)

    async def _answer(self, head: RequestHead, scope: Scope, receive: Receive) -> Response:
        if head.path == OPENAPI_PATH and head.method == "GET":
            return self._openapi_response
        endpoint, path_values = self._find_endpoint(head)
        if endpoint.method == "POST":
            head.caller.admit()
        query, body = await read_request(endpoint, head, receive, self._limits)
        request = ApiRequest(
            head.caller,
            self._may_use_tools(head.caller),
            path_values=path_values,
            query=query,
            body=body,
            headers=head.headers,
            scope=scope,
        )
        try:
            answer = await endpoint.handler(self._handlers, request)
            return answer if isinstance(answer, Response) else make_json_response(answer)
        except UnknownIdError:
            raise RequestRefused(404, "not_found", "There is no such thread.") from None
        except InputError as error:
            raise RequestRefused(400, "invalid_request", redact(str(error))) from error
        except StoreError as error:
            _LOG.warning("%s %s: %s", head.method, endpoint.path, redact(str(error)))
            raise RequestRefused(
                503,
                "store_failed",
                "The store does not answer; try again.",
                retry_after=2,
            ) from error
        except EverthreadError as error:
            _LOG.warning("%s %s: %s", head.method, endpoint.path, redact(str(error)))
            raise RequestRefused(503, "failed", redact(str(error))) from error

    def _find_endpoint(self, head: RequestHead) -> tuple[Endpoint, dict[str, str]]:
        matches = [
            (endpoint, match)
            for pattern, endpoint in self._routes
            if (match := re.fullmatch(pattern, head.path))
        ]
        for endpoint, match in matches:
            if endpoint.method == head.method:
                return endpoint, match.groupdict()
        if matches or head.path == OPENAPI_PATH:
            raise RequestRefused(
                405, "method_not_allowed", f"{head.method[:20]} is not possible here."
            )
        raise RequestRefused(404, "not_found", "There is no such thread.")

    def _may_use_tools(self, caller: Caller) -> bool:
        return "tools" in caller.scopes or (self._keyless_may_use_tools and caller.key_id is None)
