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


def require_object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WireError(f"{where} must be an object, not {_kind(value)}")
    return value


def require_list(value: Any, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise WireError(f"{where} must be a list, not {_kind(value)}")
    return value


def require_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise WireError(f"{where} must be a string, not {_kind(value)}")
    return value


def event_object(event: SseEvent | Mapping[str, Any]) -> Mapping[str, Any] | None:
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


def reply_fields(body: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a body into the fields of `Reply` and the rest."""
    kinds = {"id": str, "model": str, "usage": dict}
    fields = {
        key: body[key]
        for key, kind in kinds.items()
        if body.get(key) and isinstance(body[key], kind)
    }
    return fields, {key: value for key, value in body.items() if key not in fields}


def write_reply_fields(
    body: dict[str, Any], reply: Reply, prompt: str, output: str, *, native: bool
) -> dict[str, Any]:
    """Return the body of a reply with these fields; of a native one only those that it had, usage unchanged.

    `prompt` and `output` are OpenAI's names of the two figures of another API's usage.
    """
    body |= {
        key: value
        for key, value in (("id", reply.id), ("model", reply.model))
        if value or not native
    }
    if reply.usage is not None and native:
        body["usage"] = reply.usage
    elif reply.usage is not None:
        figures = normalize_usage(reply.usage)
        cached = {
            "cached_tokens": figures.cache_read_tokens,
            "cache_write_tokens": figures.cache_write_tokens,
        }
        body["usage"] = {
            prompt: figures.prompt_tokens,
            f"{prompt}_details": cached,
            output: figures.output_tokens,
            f"{output}_details": {"reasoning_tokens": figures.reasoning_tokens},
            "total_tokens": figures.total_tokens,
        }
    return body


def error_delta(error: Any) -> StreamDelta:
    """Return the delta for an error in a stream."""
    raw = (
        error
        if isinstance(error, dict)
        else {"message": error_text(error) or str(error or "")}
    )
    return StreamDelta("error", text=error_text(raw), raw=raw)


def error_text(error: Any) -> str:
    """Return the words in a provider's error, whichever way it was wrapped."""
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


def _kind(value: Any) -> str:
    return "missing" if value is None else type(value).__name__


def native_of(message: Mapping[str, Any], api: str) -> Native | None:
    """Return the whole native record, if the message came from this API."""
    record = message.get("_native")
    if isinstance(record, dict) and record.get("api") == api and "value" in record:
        return cast("Native", record)
    return None


def native_value(message: Mapping[str, Any], api: str) -> Any | None:
    """Return the message's original wire value if it came from this API."""
    record = native_of(message, api)
    return None if record is None else record["value"]


def with_native(
    message: Message,
    api: str,
    value: Any,
    *,
    model: str | None = None,
    joined: bool = False,
) -> Message:
    """Return a copy that remembers what it was on the wire, who wrote it, whether it is part of the message before."""
    record: Native = {"api": api, "value": value}
    if model:
        record["model"] = model
    if joined:
        record["joined"] = True
    return {**message, "_native": record}


def public_message(message: Message) -> Message:
    """Return the message without our own fields; the same object if it has none."""
    return cast("Message", without_private_fields(message))


def keep_reasoning(message: Mapping[str, Any], api: str, model: str | None) -> bool:
    """Return whether `model` can use the message's reasoning: same API, and the same model if both are known."""
    record = message.get("_native")
    if not isinstance(record, dict) or record.get("api") != api:
        return False
    author = record.get("model")
    return not author or not model or same_model(author, model)


def same_model(one: str, other: str) -> bool:
    """Return whether two names are one model. Providers answer with dated names, routers add a prefix or variant."""
    return _family(one) == _family(other)


def _family(model: str) -> str:
    name = model.lower().rpartition("/")[2].partition(":")[0].replace(".", "-")
    return _DATED.sub("", name)


_DATED = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


class RolePiece(Protocol):
    """The part of a wire message that one core message gives."""

    @property
    def role(self) -> str: ...

    @property
    def native(self) -> object | None:
        """The wire message it was; None if it came from another API."""
        ...

    @property
    def joined(self) -> bool:
        """Whether it was one wire message together with the piece before it."""
        ...


PieceT = TypeVar("PieceT", bound=RolePiece)


def group_by_role(pieces: Iterable[PieceT]) -> Iterator[list[PieceT]]:
    """Yield neighbours of one role together, unless they were separate on the wire already."""
    run: list[PieceT] = []
    for piece in pieces:
        was_separate = (
            bool(run)
            and run[-1].native is not None
            and piece.native is not None
            and not piece.joined
        )
        if run and (run[-1].role != piece.role or was_separate):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run
