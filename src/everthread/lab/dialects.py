"""Error bodies: what does not fit, in each provider's words, and everything else in each protocol's form.

`texts/dialects.json` holds the bodies by dialect and kind. A kind that a dialect lacks is no error there: such a
server takes the request and writes until its window is full.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, Literal

from everthread.core.exchange import Api

Overflow = Literal["prompt_too_long", "output_too_large", "cap_too_large"]
"""The prompt alone, the prompt with the output asked for, or that output by itself is more than the model takes."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error as it goes to the client."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Its words, for the log."""
        error = self.body.get("error", self.body)
        return str(error.get("message")) if isinstance(error, Mapping) else str(error)


@functools.cache
def _texts() -> dict[str, dict[str, dict[str, Any]]]:
    source = resources.files("everthread.lab.texts").joinpath("dialects.json")
    texts: dict[str, dict[str, dict[str, Any]]] = json.loads(source.read_text("utf-8"))
    return texts


DIALECTS: tuple[str, ...] = tuple(_texts())
_OWN: dict[Api, str] = {
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
    "anthropic": "anthropic",
}


def dialect_for(api: Api) -> str:
    """The dialect of the provider that made the protocol."""
    return _OWN[api]


def overflow(dialect: str, kind: Overflow, figures: Mapping[str, Any]) -> Refusal | None:
    """The error of this kind with these figures in it; None where the dialect has none."""
    text = _texts()[dialect].get(kind)
    return None if text is None else Refusal(text["status"], _filled(text["body"], figures))


def refusal(api: Api, status: int, message: str, *, kind: str = "", code: str | None = None) -> Refusal:
    """Any other error in the protocol's own form; `kind` where it is not the usual one of the status."""
    if api == "anthropic":
        error = {"type": kind or _ANTHROPIC_KINDS.get(status, "api_error"), "message": message}
        return Refusal(status, {"type": "error", "error": error, "request_id": "req_lab"})
    code = code or ("rate_limit_exceeded" if status == 429 else None)
    kind = kind or _OPENAI_KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return Refusal(status, {"error": {"message": message, "type": kind, "param": None, "code": code}})


def _filled(value: Any, figures: Mapping[str, Any]) -> Any:
    """The template with its figures; a field that is nothing but one figure is a number."""
    if isinstance(value, dict):
        return {key: _filled(item, figures) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    name = value[1:-1]
    return figures[name] if value == f"{{{name}}}" and name in figures else value.format_map(figures)


_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
_OPENAI_KINDS = {429: "requests", 503: "server_error", 529: "overloaded_error"}
