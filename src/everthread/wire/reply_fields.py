"""The parts of replies that all protocols share: errors, and the fields of OpenAI's two protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.json_values import as_text
from everthread.core.types import StreamDelta
from everthread.errors import WireError


def split_reply_fields(
    body: Mapping[str, Any],
    *,
    id_name: str = "id",
    model_name: str = "model",
    usage_name: str = "usage",
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a body into `id`, `model` and `usage` of a `ModelReply`, whatever their names, and the other fields."""
    fields: dict[str, Any] = {}
    other_fields = dict(body)
    for field, name, kind in (
        ("id", id_name, str),
        ("model", model_name, str),
        ("usage", usage_name, dict),
    ):
        if body.get(name) and isinstance(body[name], kind):
            fields[field] = other_fields.pop(name)
    return fields, other_fields


def encode_openai_usage(
    usage: Mapping[str, Any], *, prompt_name: str, output_name: str
) -> dict[str, Any]:
    """Return a usage in the form of OpenAI's two protocols, which differ in the names of prompt and output."""
    figures = normalize_usage(usage)
    return {
        prompt_name: figures.prompt_tokens,
        f"{prompt_name}_details": {
            "cached_tokens": figures.cache_read_tokens,
            "cache_write_tokens": figures.cache_write_tokens,
        },
        output_name: figures.output_tokens,
        f"{output_name}_details": {"reasoning_tokens": figures.reasoning_tokens},
        "total_tokens": figures.total_tokens,
    }


def raise_reply_error(error: Any, expected: str) -> NoReturn:
    """Raise `WireError` with the text of an error that was sent instead of a reply."""
    raise WireError(f"the reply is an error, not a {expected}: {error_text(error) or repr(error)}")


def error_text(error: Any) -> str:
    """Return the text of a provider's error, however deeply it is nested."""
    if not isinstance(error, Mapping):
        return as_text(error)
    texts = (error_text(error.get(key)) for key in ("message", "error", "code", "type"))
    return next(filter(None, texts), "")


def make_error_delta(error: Any) -> StreamDelta:
    """Return the delta for an error in a stream."""
    if not isinstance(error, dict):
        error = {"message": error_text(error) or str(error or "")}
    return StreamDelta("error", text=error_text(error), raw=error)
