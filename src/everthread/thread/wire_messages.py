"""Convert messages between a client's protocol and the core form."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, overload

import msgspec

from everthread.core.messages import Message
from everthread.core.types import Api
from everthread.errors import WireError
from everthread.wire.codecs import CODECS

JSON_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of msgspec for a text that it cannot decode."""
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def decode_messages(
    api: Api, wire_messages: Sequence[Any], model: str, *, previous_message: Any = None
) -> list[Message]:
    """Return wire messages in core form. `previous_message`: the one before, to pair Gemini's results with calls."""
    context = {}
    if api == "gemini" and previous_message is not None:
        context["previous_content"] = previous_message
    return CODECS[api].decode_messages(list(wire_messages), model=model, **context)


def encode_messages(api: Api, messages: Sequence[Message], model: str) -> list[Any]:
    return CODECS[api].encode_messages(list(messages), model=model)


def decode_value(raw: bytes | str) -> Any:
    """Decode a value. Fall back to Python's `json` for lone surrogates, which some clients send and msgspec refuses."""
    try:
        return msgspec.json.decode(raw)
    except JSON_ERRORS:
        pass
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise WireError(f"the request is not JSON: {error}") from None


def dump_model(value: Any) -> Any:
    """Return an SDK's object as JSON values; any other value unchanged."""
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_unset=True) if callable(dump) else value


class JsonMessages(Sequence[Any]):
    """Messages in the form of the protocol. They are sent to another process as texts and decoded on first use."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts
        self._values: list[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the texts, because pickling values takes ten times as long."""
        return JsonMessages, (self._texts,)

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._decoded())

    def _decoded(self) -> list[Any]:
        if self._values is None:
            self._values = [decode_value(text) for text in self._texts]
        return self._values


def encode_value(value: Any) -> str:
    """Return a value as JSON text; non-ASCII characters are escaped only if one is a lone surrogate."""
    text = _JSON.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text
