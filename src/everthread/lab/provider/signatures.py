"""Sign reasoning, calls and compactions as providers do, so that altered ones can be refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from everthread.core.messages import (
    kind_of,
    text_of,
)
from everthread.core.types import ModelRequest

_SIGNATURE_PREFIX = "bGFi"
"""Prefix of the signatures that this provider issues; others are not checked."""


def is_forged(part: Mapping[str, Any]) -> bool:
    """Return whether a thinking block has a signature that this provider issued for another text."""
    signature = part.get("signature")
    if (
        kind_of(part) != "thinking"
        or not isinstance(signature, str)
        or not signature.startswith(_SIGNATURE_PREFIX)
    ):
        return False
    return signature != sign_text(str(part.get("thinking")))


def sign_text(thinking: str) -> str:
    """Return the signature of a text of reasoning."""
    return (
        _SIGNATURE_PREFIX + blake2b(thinking.encode("utf-8", "replace"), digest_size=24).hexdigest()
    )


def sign_call(call: Mapping[str, Any]) -> str:
    """Return the signature of a call of Gemini."""
    return sign_text(json.dumps([call.get("name"), call.get("args")], sort_keys=True))


def is_forged_call(part: Mapping[str, Any]) -> bool:
    """Return whether a call has a signature that this provider issued for another call."""
    signature = part.get("thoughtSignature")
    if (
        "functionCall" not in part
        or not isinstance(signature, str)
        or not signature.startswith(_SIGNATURE_PREFIX)
    ):
        return False
    return signature != sign_call(part["functionCall"])


COMPACTION_TRIGGER = "compaction_trigger"
"""The last item of a request of the Responses protocol that asks for a compaction."""
_COMPACTION_PREFIX = "bGFiY21w"


def make_compaction(request: ModelRequest, number: int) -> dict[str, Any]:
    """Return an opaque item that represents a conversation."""
    last_words = next(
        (text_of(message) for message in reversed(request.messages) if message["role"] == "user"),
        "",
    )
    payload = base64.urlsafe_b64encode(
        f"{len(request.messages)} messages, last: {last_words[:200]}".encode()
    ).decode()
    return {
        "id": f"cmp_lab{number}",
        "type": "compaction",
        "encrypted_content": f"{_COMPACTION_PREFIX}.{payload}.{sign_text(payload)}",
    }


def is_own_compaction(item: Mapping[str, Any]) -> bool:
    """Return whether this provider issued the item and it is unchanged."""
    prefix, _, signed_payload = str(item.get("encrypted_content")).partition(".")
    payload, _, signature = signed_payload.partition(".")
    return prefix == _COMPACTION_PREFIX and signature == sign_text(payload)


def asks_for_compaction(body: Mapping[str, Any]) -> bool:
    items = body.get("input")
    return isinstance(items, list) and bool(items) and kind_of(items[-1]) == COMPACTION_TRIGGER
