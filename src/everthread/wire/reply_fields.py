"""The parts of replies that all protocols share: errors, and the fields of OpenAI's two protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.costs.canonical_usage import normalize_usage
from everthread.core.types import Reply, StreamDelta


def split_reply_fields(
    body: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a body into the fields of `Reply` and the rest."""
    field_types = {"id": str, "model": str, "usage": dict}
    fields = {
        key: body[key]
        for key, field_type in field_types.items()
        if body.get(key) and isinstance(body[key], field_type)
    }
    return fields, {key: value for key, value in body.items() if key not in fields}


def add_reply_fields(
    body: dict[str, Any],
    reply: Reply,
    prompt_name: str,
    output_name: str,
    *,
    is_native: bool,
) -> dict[str, Any]:
    """Add id, model and usage to the body of a reply. A native reply gets only those that it had, its usage unchanged.

    `prompt_name` and `output_name` are OpenAI's names of the two figures of another API's usage.
    """
    body |= {
        key: value
        for key, value in (("id", reply.id), ("model", reply.model))
        if value or not is_native
    }
    if reply.usage is not None and is_native:
        body["usage"] = reply.usage
    elif reply.usage is not None:
        figures = normalize_usage(reply.usage)
        prompt_details = {
            "cached_tokens": figures.cache_read_tokens,
            "cache_write_tokens": figures.cache_write_tokens,
        }
        body["usage"] = {
            prompt_name: figures.prompt_tokens,
            f"{prompt_name}_details": prompt_details,
            output_name: figures.output_tokens,
            f"{output_name}_details": {"reasoning_tokens": figures.reasoning_tokens},
            "total_tokens": figures.total_tokens,
        }
    return body


def error_text(error: Any) -> str:
    """Return the text of a provider's error, however deeply it is nested."""
    if isinstance(error, Mapping):
        return next(
            (
                text
                for key in ("message", "error", "code", "type")
                if (text := error_text(error.get(key)))
            ),
            "",
        )
    return error if isinstance(error, str) else ""


def make_error_delta(error: Any) -> StreamDelta:
    """Return the delta for an error in a stream."""
    error_fields = (
        error if isinstance(error, dict) else {"message": error_text(error) or str(error or "")}
    )
    return StreamDelta("error", text=error_text(error_fields), raw=error_fields)
