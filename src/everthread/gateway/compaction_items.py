"""Compaction items of the Responses protocol, made by the gateway if the upstream makes none.

A client asks for an item with a `compaction_trigger` at the end of its input, or at `/v1/responses/compact`. It later
sends the item back instead of the messages that the item represents. The gateway's item contains the compacted
messages themselves, with a tag that only this store can make. A gateway of the same store that receives the item
replaces it with these messages.
"""

from __future__ import annotations

import base64
import hmac
import json
import uuid
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from everthread.core.messages import kind_of
from everthread.gateway.request.json_slices import BodyEdit, slice_body, splice
from everthread.thread.matching.history import identify_message
from everthread.thread.wire_messages import encode_value

COMPACTION_PATH = "/v1/responses/compact"
COMPACTION_TRIGGER = "compaction_trigger"
"""A request that ends with this item asks the provider for a compaction."""
_PREFIX = "everthread1."
_MAX_BYTES = 64 * 1024 * 1024
_MISSING_PATH_STATUSES = (404, 405, 501)
"""Statuses of an upstream that lacks the compaction path."""
_INVALID_STATUSES = (400, 422)


def make_item(wire_messages: Sequence[Any], key: bytes) -> dict[str, Any]:
    """Return a compaction item that contains these messages."""
    packed = base64.urlsafe_b64encode(
        zlib.compress(json.dumps(list(wire_messages)).encode(), 6)
    ).decode()
    return {
        "id": f"cmp_everthread_{uuid.uuid4().hex}",
        "type": "compaction",
        "encrypted_content": f"{_PREFIX}{_make_tag(packed, key)}.{packed}",
    }


def read_item(item: Any, key: bytes) -> list[Any] | None:
    """Return the messages in a compaction item, or None if it was not made with this key."""
    content = item.get("encrypted_content") if kind_of(item) == "compaction" else None
    if not isinstance(content, str) or not content.startswith(_PREFIX):
        return None
    tag, _, packed = content.removeprefix(_PREFIX).partition(".")
    if not hmac.compare_digest(tag.encode("utf-8", "replace"), _make_tag(packed, key).encode()):
        return None
    wire_messages: list[Any] = json.loads(
        zlib.decompressobj().decompress(base64.urlsafe_b64decode(packed), _MAX_BYTES)
    )
    return wire_messages


def _make_tag(packed: str, key: bytes) -> str:
    return hmac.new(key, packed.encode("utf-8", "replace"), sha256).hexdigest()


def may_have_item(body: bytes) -> bool:
    """Return whether a body may contain an item made by a gateway."""
    return _PREFIX.encode() in body


@dataclass(frozen=True, slots=True)
class ExpandedBody:
    """A request whose compaction items are replaced with the messages in them."""

    body: bytes
    item_key: str
    """Identifies the last item."""
    end: int
    """Number of messages up to the last one of the last item."""


def expand_items(body: bytes, key: bytes) -> ExpandedBody | None:
    """Replace the gateway's items in a request's body with the messages in them. Return None if there are none.

    A client may send some of these messages before the item too; they are not repeated.
    """
    edits = []
    earlier_fingerprints: Counter[str] = Counter()
    end = 0
    last_item: tuple[str, int] | None = None
    for message in slice_body(body, "openai_responses").messages:
        wire_messages = read_item(message.value, key)
        if wire_messages is None:
            earlier_fingerprints[_compute_fingerprint(message.value)] += 1
            end += 1
            continue
        new_messages = _drop_repeated(wire_messages, earlier_fingerprints)
        text = ",".join(map(encode_value, new_messages))
        edits.append(BodyEdit(message.start, message.end, text))
        end += len(new_messages)
        last_item = read_item_key(message.value), end
    if last_item is None:
        return None
    return ExpandedBody(splice(body, edits), *last_item)


def read_item_key(item: Mapping[str, Any]) -> str:
    """Return the key that identifies an item made by a gateway: its tag."""
    return str(item["encrypted_content"]).removeprefix(_PREFIX).partition(".")[0]


def _drop_repeated(wire_messages: Sequence[Any], earlier_fingerprints: Counter[str]) -> list[Any]:
    """Return the messages of an item that the client has not sent before it, and at least the last one."""
    counts = Counter(earlier_fingerprints)
    new_messages = []
    for value in wire_messages:
        fingerprint = _compute_fingerprint(value)
        if counts[fingerprint]:
            counts[fingerprint] -= 1
        else:
            new_messages.append(value)
    return new_messages or list(wire_messages[-1:])


def _compute_fingerprint(value: Any) -> str:
    return identify_message("openai_responses", value).fingerprint


def asks_for_compaction(body: bytes) -> bool:
    """Return whether a request ends with the item that asks for a compaction."""
    if COMPACTION_TRIGGER.encode() not in body:
        return False
    messages = slice_body(body, "openai_responses").messages
    return bool(messages) and kind_of(messages[-1].value) == COMPACTION_TRIGGER


def is_compaction_unsupported(status: int, body: bytes) -> bool:
    """Return whether an upstream's error means that it does not support compactions."""
    return status in _MISSING_PATH_STATUSES or (
        status in _INVALID_STATUSES and b"compaction" in body
    )
