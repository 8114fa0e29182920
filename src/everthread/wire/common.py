"""Helpers that every codec needs: checks of a payload, the native value of a decoded message, errors and usage."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from everthread.core.canonical_usage import normalize_usage
from everthread.core.messages import Message, Native
from everthread.core.types import Reply, StreamDelta
from everthread.errors import WireError
from everthread.wire.sse import SseEvent


def require_object(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WireError(f"{path} must be an object, not {_describe_type(value)}")
    return value


def require_list(value: Any, path: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise WireError(f"{path} must be a list, not {_describe_type(value)}")
    return value


def list_or_empty(value: Any, path: str) -> Sequence[Any]:
    """Return a list; an absent one is empty. Raise `WireError` for anything else."""
    return () if value is None else require_list(value, path)


def require_objects(value: Any, path: str) -> list[Mapping[str, Any]]:
    """Return a list of objects. Raise `WireError` naming the item that is not an object."""
    return [
        require_object(item, f"{path}[{index}]")
        for index, item in enumerate(require_list(value, path))
    ]


def require_text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{path} must be a string, not {_describe_type(value)}")
    return value


def parse_event(event: SseEvent | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON object of a stream event; None for the mark that ends the stream."""
    if not isinstance(event, SseEvent):
        return require_object(event, "the event")
    if event.data.strip() == "[DONE]":
        return None
    try:
        value = json.loads(event.data)
    except (ValueError, RecursionError):
        raise WireError(
            f"an event of the stream is not JSON: {event.data[:80]!r}"
        ) from None
    return require_object(value, "the event")


def without_private_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol's fields, without our own (leading underscore); the same object if there are none."""
    if isinstance(fields, dict) and not any(key.startswith("_") for key in fields):
        return fields
    return {key: value for key, value in fields.items() if not key.startswith("_")}


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


def write_reply_fields(
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


def make_error_delta(error: Any) -> StreamDelta:
    """Return the delta for an error in a stream."""
    error_fields = (
        error
        if isinstance(error, dict)
        else {"message": error_text(error) or str(error or "")}
    )
    return StreamDelta("error", text=error_text(error_fields), raw=error_fields)


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


def _describe_type(value: Any) -> str:
    return "missing" if value is None else type(value).__name__


def native_record(message: Mapping[str, Any], api: str) -> Native | None:
    """Return the whole native record, if the message came from this API."""
    record = message.get("_native")
    if isinstance(record, dict) and record.get("api") == api and "value" in record:
        return cast("Native", record)
    return None


def native_value(message: Mapping[str, Any], api: str) -> Any | None:
    """Return the message's original wire value if it came from this API."""
    record = native_record(message, api)
    return None if record is None else record["value"]


def with_native(
    message: Message,
    api: str,
    value: Any,
    *,
    model: str | None = None,
    continues_previous: bool = False,
) -> Message:
    """Return a copy with a native record: wire value, author, and whether it belongs to the previous wire message."""
    record: Native = {"api": api, "value": value}
    if model:
        record["model"] = model
    if continues_previous:
        record["joined"] = True
    return {**message, "_native": record}


def public_message(message: Message) -> Message:
    """Return the message without our own fields; the same object if it has none."""
    return cast("Message", without_private_fields(message))


def can_use_reasoning(message: Mapping[str, Any], api: str, model: str | None) -> bool:
    """Return whether `model` can use the message's reasoning: same API, and the same model if both are known."""
    record = message.get("_native")
    if not isinstance(record, dict) or record.get("api") != api:
        return False
    author = record.get("model")
    return not author or not model or is_same_model(author, model)


def is_same_model(name: str, other_name: str) -> bool:
    """Return whether two names mean the same model. Providers add a date, routers a prefix or a variant."""
    return _find_model_family(name) == _find_model_family(other_name)


def _find_model_family(model: str) -> str:
    name = model.lower().rpartition("/")[2].partition(":")[0].replace(".", "-")
    return _DATE_SUFFIX.sub("", name)


_DATE_SUFFIX = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class EncodedMessage(Protocol):
    """The part of a wire message that was made from one core message."""

    @property
    def role(self) -> str: ...

    @property
    def native(self) -> object | None:
        """The original wire message; None if it came from another API."""
        ...

    @property
    def continues_previous(self) -> bool:
        """Whether it was part of the same wire message as the one before it."""
        ...


EncodedMessageT = TypeVar("EncodedMessageT", bound=EncodedMessage)


def group_by_role(
    encoded_messages: Iterable[EncodedMessageT],
) -> Iterator[list[EncodedMessageT]]:
    """Yield neighbouring messages of one role together, unless they were separate messages on the wire."""
    neighbours: list[EncodedMessageT] = []
    for encoded_message in encoded_messages:
        was_separate = (
            bool(neighbours)
            and neighbours[-1].native is not None
            and encoded_message.native is not None
            and not encoded_message.continues_previous
        )
        if neighbours and (neighbours[-1].role != encoded_message.role or was_separate):
            yield neighbours
            neighbours = []
        neighbours.append(encoded_message)
    if neighbours:
        yield neighbours
