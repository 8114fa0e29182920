"""What every codec needs: a first look at a payload, and the native value a decoded message keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from everthread.core.messages import Message, Native
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


def native_of(message: Mapping[str, Any], api: str) -> Native | None:
    """The whole native record, if the message came from this API."""
    record = message.get("_native")
    if isinstance(record, dict) and record.get("api") == api and "value" in record:
        return cast("Native", record)
    return None


def native_value(message: Mapping[str, Any], api: str) -> Any | None:
    """What the message was on the wire, if it came from this API."""
    record = native_of(message, api)
    return None if record is None else record["value"]


def with_native(message: Message, api: str, value: Any, *, model: str | None = None, joined: bool = False) -> Message:
    """A copy that remembers what it was on the wire, who wrote it, whether it is part of the message before."""
    record: Native = {"api": api, "value": value}
    if model:
        record["model"] = model
    if joined:
        record["joined"] = True
    return {**message, "_native": record}


def plain(message: Message) -> Message:
    """The message without what is our own (keys with a leading underscore); itself when there is none."""
    if not any(key.startswith("_") for key in message):
        return message
    return cast("Message", {key: value for key, value in message.items() if not key.startswith("_")})


def keep_reasoning(message: Mapping[str, Any], api: str, model: str | None) -> bool:
    """Whether the message's reasoning means anything to `model`: same API, and the same model where both are known."""
    record = message.get("_native")
    if not isinstance(record, dict) or record.get("api") != api:
        return False
    author = record.get("model")
    return not author or not model or same_model(author, model)


def same_model(one: str, other: str) -> bool:
    """Whether two names are one model: an alias is answered under its dated name, routers add a prefix or variant."""
    return _family(one) == _family(other)


def _family(model: str) -> str:
    name = model.lower().rpartition("/")[2].partition(":")[0].replace(".", "-")
    return _DATED.sub("", name)


_DATED = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
