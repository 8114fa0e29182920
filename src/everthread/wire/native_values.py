"""The native value of a decoded message: the provider's own JSON, from which it is encoded verbatim."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from everthread.core.messages import Message, Native

T = TypeVar("T", Message, dict[str, Any])


def without_private_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol's fields, without our own (leading underscore); the same object if there are none."""
    if isinstance(fields, dict) and not any(key.startswith("_") for key in fields):
        return fields
    return {key: value for key, value in fields.items() if not key.startswith("_")}


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
    message: T,
    api: str,
    value: Any,
    *,
    model: str | None = None,
    continues_previous: bool = False,
) -> T:
    """Return a copy with a native record: wire value, author, and whether it belongs to the previous wire message.

    A tool can have one too.
    """
    record: Native = {"api": api, "value": value}
    if model:
        record["model"] = model
    if continues_previous:
        record["joined"] = True
    return cast("T", {**message, "_native": record})


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
    return _DATE_SUFFIX_PATTERN.sub("", name)


_DATE_SUFFIX_PATTERN = re.compile(r"[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|latest)$")
