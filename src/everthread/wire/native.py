"""What a decoded message was on the wire, kept beside its core form in `_native`.

Encoding to the API a message came from returns that value verbatim. Whoever changes what the message says drops
it (`messages.with_content`), and the message is then encoded from its core form.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from everthread.core.messages import Message, Native


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
