"""The OpenAPI description of the threads API."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from everthread._version import __version__
from everthread.gateway.api.http import Endpoint
from everthread.gateway.api.schemas import ErrorView, NoBody, TurnView

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
_EVENTS_EXAMPLE = (
    'id: 7\nevent: delta\ndata: {"event": "delta", "kind": "text", "text": "Two "}\n\n'
)


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
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _describe_operation(endpoint)
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
    general_statuses = {400, 401, 403, 429, 503} | ({408, 413, 415} if is_post else set())
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
            parameter | ({"description": field["description"]} if "description" in field else {})
        )
    if endpoint.path.endswith(("/messages", "/compress", "/undo")):
        parameters.append(_KEY_HEADER)
    return [*parameters, _LAST_EVENT_HEADER] if endpoint.path.endswith("/events") else parameters


def _make_operation_id(endpoint: Endpoint) -> str:
    path_parts = [word for word in re.split(r"[/{}]+", endpoint.path) if word and word != "api"]
    return "_".join([endpoint.method.lower(), *path_parts])


def _describe_json_content(model: type[BaseModel]) -> dict[str, Any]:
    return {
        "application/json": {"schema": {"$ref": _SCHEMA_REFERENCE.format(model=model.__name__)}}
    }
