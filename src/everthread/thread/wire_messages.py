"""Convert messages between a client's protocol and the core form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from everthread.core.messages import Message
from everthread.core.types import Api
from everthread.wire.codecs import CODECS

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def decode_messages(
    api: Api, values: Sequence[Any], model: str, *, previous_value: Any = None
) -> list[Message]:
    """Return wire messages in core form. `previous_value`: the message before them, for pairing Gemini's results."""
    context = (
        {"previous_content": previous_value}
        if api == "gemini" and previous_value is not None
        else {}
    )
    return CODECS[api].decode_messages(list(values), model=model, **context)


def encode_messages(api: Api, messages: Sequence[Message], model: str) -> list[Any]:
    return CODECS[api].encode_messages(list(messages), model=model)


def encode_value(value: Any) -> str:
    """Return a value as JSON text; non-ASCII characters are escaped only if one is a lone surrogate."""
    text = _JSON.encode(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"))
    return text
