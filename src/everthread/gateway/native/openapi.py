"""The OpenAPI document, made from the table of endpoints and the models they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from everthread._version import __version__
from everthread.gateway.native.asking import Endpoint
from everthread.gateway.native.schemas import NoBody
from everthread.gateway.native.views import ErrorView, TurnView

_REF = "#/components/schemas/{model}"
_WORDS = {
    400: "The request cannot be used.", 401: "No key, or one that is not known.", 403: "The key may not do this.",
    408: "The body came too slowly.", 413: "The body is too large.", 415: "Only JSON is taken, as it is.",
    404: "There is none of this id, or it is another tenant's.", 409: "Not possible as things stand.",
    429: "Too much at once; `retry-after` tells when to come again.", 502: "The model failed.",
    503: "Not now: the turn was interrupted, or the gateway is not able.",
}  # fmt: skip
_KEY = {
    "name": "Idempotency-Key", "in": "header", "required": False, "schema": {"type": "string", "maxLength": 255},
    "description": "The same request sent again under it is done once, and gets the same answer.",
}  # fmt: skip
_LAST = {
    "name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"},
    "description": "Read on after this event.",
}  # fmt: skip


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    bodies: set[type[BaseModel]] = {endpoint.body for endpoint in endpoints if endpoint.method == "POST"}
    answers: set[type[BaseModel]] = {ErrorView, TurnView, *(endpoint.answer for endpoint in endpoints)}
    models = [(model, "validation") for model in sorted(bodies, key=_name)]
    models += [(model, "serialization") for model in sorted(answers, key=_name)]
    _, schemas = models_json_schema(models, ref_template=_REF)  # type: ignore[arg-type]  # the modes are literals
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Everthread", "version": __version__, "description": "Conversations without an end."},
        "paths": paths,
        "components": {
            "schemas": schemas["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _ref(endpoint.answer)}}
    if endpoint.streams:
        content["text/event-stream"] = {"schema": {"type": "string"}, "example": _EVENTS}
    answers: dict[str, Any] = {str(endpoint.status): {"description": "Done.", "content": content}}
    if endpoint.streams and endpoint.method == "POST":
        shown = {"application/json": {"schema": _ref(TurnView)}}
        answers["202"] = {"description": "It is queued or runs; its address is in `location`.", "content": shown}
    general = {400, 401, 403, 429, 503} | ({408, 413, 415} if endpoint.method == "POST" else set())
    for status in sorted({*general, *endpoint.errors}):
        shown = {"application/json": {"schema": _ref(ErrorView)}}
        answers[str(status)] = {"description": _WORDS[status], "content": shown}
    operation: dict[str, Any] = {
        "operationId": _operation_id(endpoint), "summary": endpoint.summary, "parameters": _parameters(endpoint),
        "responses": answers,
    }  # fmt: skip
    if endpoint.method == "POST":
        schema = {"application/json": {"schema": _ref(endpoint.body)}}
        operation["requestBody"] = {"required": endpoint.body is not NoBody, "content": schema}
    return operation


_EVENTS = 'id: 7\nevent: delta\ndata: {"event": "delta", "kind": "text", "text": "Two "}\n\n'


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", endpoint.path)
    ]
    schema = endpoint.query.model_json_schema(ref_template=_REF)
    for name, field in schema.get("properties", {}).items():
        shown = {"name": name, "in": "query", "required": name in schema.get("required", ()), "schema": field}
        found.append(shown | ({"description": field["description"]} if "description" in field else {}))
    if endpoint.path.endswith(("/messages", "/compress", "/undo")):
        found.append(_KEY)
    return [*found, _LAST] if endpoint.path.endswith("/events") else found


def _operation_id(endpoint: Endpoint) -> str:
    words = [word for word in re.split(r"[/{}]+", endpoint.path) if word and word != "api"]
    return "_".join([endpoint.method.lower(), *words])


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _name(model: type[BaseModel]) -> str:
    return model.__name__
