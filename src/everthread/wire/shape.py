"""The first look at a payload: is it of the protocol at all? If not, a sentence says where and why."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from everthread.errors import WireError
from everthread.wire.sse import SseEvent


def an_object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WireError(f"{where} must be an object, not {_kind(value)}")
    return value


def a_list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise WireError(f"{where} must be a list, not {_kind(value)}")
    return value


def a_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{where} must be a string, not {_kind(value)}")
    return value


def event_object(event: SseEvent | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What an event of a stream says; None for the mark that ends it."""
    if not isinstance(event, SseEvent):
        return an_object(event, "the event")
    if event.data.strip() == "[DONE]":
        return None
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        raise WireError(f"an event of the stream is no JSON: {event.data[:80]!r}") from None
    return an_object(value, "the event")


def own(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol's fields; those with a leading underscore are ours and never cross the wire. Itself if all are."""
    if isinstance(fields, dict) and not any(key.startswith("_") for key in fields):
        return fields
    return {key: value for key, value in fields.items() if not key.startswith("_")}


def error_text(error: Any) -> str:
    """The words in a provider's error, whichever way it was wrapped."""
    if isinstance(error, Mapping):
        return next((text for key in ("message", "error", "code", "type") if (text := error_text(error.get(key)))), "")
    return error if isinstance(error, str) else ""


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__
