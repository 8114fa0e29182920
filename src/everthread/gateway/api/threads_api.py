"""The threads API as an application, with its OpenAPI description."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.types import Receive, Scope, Send

from everthread._version import __version__
from everthread.core.secrets.redaction import redact
from everthread.errors import EverthreadError, InputError, StoreError, UnknownIdError
from everthread.gateway.access.authentication import Caller
from everthread.gateway.api import HEARTBEAT_SECONDS
from everthread.gateway.api.agents import PreviewThread
from everthread.gateway.api.http import (
    AnswerSender,
    ApiRequest,
    Endpoint,
    JsonAnswer,
    list_endpoints,
    make_error_answer,
    read_request,
)
from everthread.gateway.api.queue import TurnQueue
from everthread.gateway.api.routes import ThreadRoutes
from everthread.gateway.api.schemas import ErrorView, NoBody, TurnView
from everthread.gateway.contracts import Limits
from everthread.gateway.error_answers import Refused
from everthread.gateway.middleware import Admission
from everthread.gateway.request.request_head import ClientGone, RequestHead

_SCHEMA_REFERENCE = "#/components/schemas/{model}"
_ERROR_TEXTS = {
    400: "The request cannot be used.",
    401: "No key, or one that is not known.",
    403: "The key may not do this.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "Only JSON without a content-encoding is accepted.",
    404: "Nothing has this id, or it belongs to another tenant.",
    409: "Not possible in the current state.",
    429: "Too many requests; `retry-after` says when to try again.",
    502: "The model failed.",
    503: "The turn was interrupted, or the gateway is not ready.",
}
_KEY_HEADER = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "maxLength": 255},
    "description": "A request repeated with the same key is done once and gets the same answer.",
}
_LAST_EVENT_HEADER = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "Continue after this event.",
}


def make_openapi_document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    bodies: set[type[BaseModel]] = {
        endpoint.body for endpoint in endpoints if endpoint.method == "POST"
    }
    answers: set[type[BaseModel]] = {
        ErrorView,
        TurnView,
        *(endpoint.answer for endpoint in endpoints),
    }
    by_name = attrgetter("__name__")
    models = [(model, "validation") for model in sorted(bodies, key=by_name)]
    models += [(model, "serialization") for model in sorted(answers, key=by_name)]
    _, schemas = models_json_schema(models, ref_template=_SCHEMA_REFERENCE)  # type: ignore[arg-type]  # the modes are literals
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = (
            _describe_operation(endpoint)
        )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Everthread",
            "version": __version__,
            "description": "Conversations without an end.",
        },
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _describe_operation(endpoint: Endpoint) -> dict[str, Any]:
    is_post = endpoint.method == "POST"
    success_content = _describe_json_content(endpoint.answer)
    if endpoint.streams:
        success_content["text/event-stream"] = {
            "schema": {"type": "string"},
            "example": _EVENTS_EXAMPLE,
        }
    answers: dict[str, Any] = {
        str(endpoint.status): {"description": "Done.", "content": success_content}
    }
    if endpoint.streams and is_post:
        description = "It is queued or runs; its address is in `location`."
        answers["202"] = {
            "description": description,
            "content": _describe_json_content(TurnView),
        }
    general_statuses = {400, 401, 403, 429, 503} | (
        {408, 413, 415} if is_post else set()
    )
    for status in sorted({*general_statuses, *endpoint.errors}):
        answers[str(status)] = {
            "description": _ERROR_TEXTS[status],
            "content": _describe_json_content(ErrorView),
        }
    operation: dict[str, Any] = {
        "operationId": _make_operation_id(endpoint),
        "summary": endpoint.summary,
        "parameters": _list_parameters(endpoint),
        "responses": answers,
    }
    if is_post:
        operation["requestBody"] = {
            "required": endpoint.body is not NoBody,
            "content": _describe_json_content(endpoint.body),
        }
    return operation


_EVENTS_EXAMPLE = (
    'id: 7\nevent: delta\ndata: {"event": "delta", "kind": "text", "text": "Two "}\n\n'
)


def _list_parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", endpoint.path)
    ]
    schema = endpoint.query.model_json_schema(ref_template=_SCHEMA_REFERENCE)
    for name, field in schema.get("properties", {}).items():
        parameter = {
            "name": name,
            "in": "query",
            "required": name in schema.get("required", ()),
            "schema": field,
        }
        parameters.append(
            parameter
            | ({"description": field["description"]} if "description" in field else {})
        )
    if endpoint.path.endswith(("/messages", "/compress", "/undo")):
        parameters.append(_KEY_HEADER)
    return (
        [*parameters, _LAST_EVENT_HEADER]
        if endpoint.path.endswith("/events")
        else parameters
    )


def _make_operation_id(endpoint: Endpoint) -> str:
    path_parts = [
        word for word in re.split(r"[/{}]+", endpoint.path) if word and word != "api"
    ]
    return "_".join([endpoint.method.lower(), *path_parts])


def _describe_json_content(model: type[BaseModel]) -> dict[str, Any]:
    return {
        "application/json": {
            "schema": {"$ref": _SCHEMA_REFERENCE.format(model=model.__name__)}
        }
    }


_LOG = logging.getLogger("everthread.gateway")
_ID_PATTERN = r"[0-9A-Za-z_-]{1,64}"
OPENAPI_PATH = "/api/openapi.json"


class ThreadsApi:
    """Answer `/api/…` for callers that `GatewayApp` has authenticated.

    `tools`: whether callers without a key may use commands and files.
    """

    def __init__(
        self,
        queue: TurnQueue,
        *,
        preview: PreviewThread,
        limits: Limits | None = None,
        tools: bool = False,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        self.queue = queue
        self._limits = limits or Limits()
        self._tools = tools
        self._admission = Admission(self._limits.concurrent)
        self._handlers = ThreadRoutes(queue, heartbeat_seconds, preview)
        endpoints = list_endpoints(ThreadRoutes)
        self._routes = [
            (_compile_path(endpoint.path), endpoint) for endpoint in endpoints
        ]
        self._openapi_answer = JsonAnswer(make_openapi_document(endpoints))

    async def start(self) -> None:
        await self.queue.start()

    async def close(self, grace_seconds: float = 0.0) -> None:
        """Close the API. Running turns have `grace_seconds` to end."""
        await self.queue.close(grace_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head: RequestHead = scope["state"]["head"]
        sender = AnswerSender(send, self._limits.write_seconds)
        with contextlib.suppress(ClientGone):
            try:
                with self._admission.enter(head.caller.admission_group):
                    answer = await self._answer(head, scope, receive, sender)
            except Refused as refused:
                answer = make_error_answer(refused)
            except ClientGone:
                raise
            except Exception:  # noqa: BLE001 - logged with its traceback; the client gets JSON all the same
                _LOG.exception("%s %s failed", head.method, redact(head.path))
                answer = make_error_answer(
                    Refused(
                        500,
                        "internal",
                        "Something went wrong here; the gateway's log tells what.",
                    )
                )
            if answer is not None and not sender.has_started:
                await sender.answer(answer)

    async def _answer(
        self, head: RequestHead, scope: Scope, receive: Receive, sender: AnswerSender
    ) -> JsonAnswer | None:
        if head.path == OPENAPI_PATH and head.method == "GET":
            return self._openapi_answer
        endpoint, names = self._find_endpoint(head)
        if endpoint.method == "POST":
            head.caller.admit()
        query, body = await read_request(endpoint, head, receive, self._limits)
        request = ApiRequest(
            head.caller,
            self._may_use_tools(head.caller),
            path_values=names,
            query=query,
            body=body,
            headers=head.headers,
            scope=scope,
            sender=sender,
        )
        try:
            return await endpoint.handler(self._handlers, request)
        except UnknownIdError:
            raise Refused(404, "not_found", "There is no such thread.") from None
        except InputError as error:
            raise Refused(400, "invalid_request", redact(str(error))) from error
        except StoreError as error:
            _LOG.warning("%s %s: %s", head.method, endpoint.path, redact(str(error)))
            raise Refused(
                503,
                "store_failed",
                "The store does not answer; try again.",
                retry_after=2,
            ) from error
        except EverthreadError as error:
            _LOG.warning("%s %s: %s", head.method, endpoint.path, redact(str(error)))
            raise Refused(503, "failed", redact(str(error))) from error

    def _find_endpoint(self, head: RequestHead) -> tuple[Endpoint, dict[str, str]]:
        matches = [
            (endpoint, match)
            for pattern, endpoint in self._routes
            if (match := pattern.fullmatch(head.path))
        ]
        for endpoint, match in matches:
            if endpoint.method == head.method:
                return endpoint, match.groupdict()
        if matches or head.path == OPENAPI_PATH:
            raise Refused(
                405, "method_not_allowed", f"{head.method[:20]} is not possible here."
            )
        raise Refused(404, "not_found", "There is no such thread.")

    def _may_use_tools(self, caller: Caller) -> bool:
        return "tools" in caller.scopes or (self._tools and caller.key_id is None)


def _compile_path(path: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", rf"(?P<\1>{_ID_PATTERN})", path))
