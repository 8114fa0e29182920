"""Whole replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.pricing.usage import normalize_usage
from everthread.core.types import Reply
from everthread.errors import WireError
from everthread.wire.anthropic.blocks import API
from everthread.wire.anthropic.reading import decode_message
from everthread.wire.anthropic.writing import assistant_blocks
from everthread.wire.shape import a_list, an_object, error_text, own

_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    "pause_turn": "pause",
    "compaction": "pause",
}
_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refusal": "refusal",
    "content_filter": "refusal",
    "pause": "pause_turn",
    "other": "end_turn",
}


def decode_reply(body: Mapping[str, Any], *, model: str | None = None) -> Reply:
    """A reply in core form. `model` is the name under which it was asked for, where that is known."""
    body = own(an_object(body, "the reply"))
    if body.get("type") == "error":
        raise WireError(f"the reply is an error, not a message: {error_text(body) or repr(body)}")
    content = a_list(body.get("content"), "content")
    author = model or body.get("model")
    [message] = decode_message({"role": "assistant", "content": list(content)}, "the reply", model=author)
    usage = body.get("usage")
    rest = {key: value for key, value in body.items() if key not in ("id", "role", "model", "content", "usage")}
    return Reply(
        message=message,
        stop=stop_of(body.get("stop_reason")),
        usage=dict(usage) if isinstance(usage, Mapping) else None,
        model=str(body.get("model") or ""),
        id=str(body.get("id") or ""),
        raw={**rest, "_api": API},
    )


def encode_reply(reply: Reply) -> dict[str, Any]:
    """A message as Anthropic would have answered. What was decoded from one comes back verbatim."""
    native = reply.raw.get("_api") == API
    rest: dict[str, Any] = dict(own(reply.raw)) if native else {"stop_sequence": None}
    if not native or stop_of(rest.get("stop_reason")) != reply.stop:
        rest["stop_reason"] = _REASONS.get(reply.stop or "")
    body = {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": assistant_blocks(reply.message),
        "usage": reply.usage if native and reply.usage is not None else _usage(reply.usage),
    }
    return body | rest


def stop_of(reason: Any) -> str | None:
    """Our name of Anthropic's reason."""
    return None if reason is None else _STOPS.get(str(reason), "other")


def _usage(usage: Mapping[str, Any] | None) -> dict[str, int]:
    """Another API's figures in Anthropic's terms, where `input_tokens` leaves the cache out."""
    figures = normalize_usage(usage)
    return {
        "input_tokens": figures.input_tokens,
        "cache_creation_input_tokens": figures.cache_write_tokens,
        "cache_read_input_tokens": figures.cache_read_tokens,
        "output_tokens": figures.output_tokens,
    }
