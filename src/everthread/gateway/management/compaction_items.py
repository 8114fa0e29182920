"""Compaction items of the Responses protocol that this gateway makes, where the upstream makes none.

A client asks for one with a `compaction_trigger` at the end of its input, or at `/v1/responses/compact`, and sends it
back in the place of all that it stands for. Ours holds the compacted messages themselves, with a tag that only this
store can make: whichever gateway of the store gets it back puts them in its place.
"""

from __future__ import annotations

import base64
import hmac
import json
import time
import uuid
import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from everthread.core.messages import kind_of
from everthread.gateway.body import encode_value, slice_text, splice_text
from everthread.wire.common import SseEvent, encode_event

PATH = "/v1/responses/compact"
TRIGGER = "compaction_trigger"
"""With this item at its end a request asks the provider for a compaction."""
_PREFIX = "everthread1."
_MOST = 64 * 1024 * 1024
_REFUSALS = (404, 405, 501)
"""An upstream that does not know of compactions has no such path."""
_INVALID = (400, 422)


def make_item(values: Sequence[Any], key: bytes) -> dict[str, Any]:
    """One item that stands for these messages."""
    packed = base64.urlsafe_b64encode(zlib.compress(json.dumps(list(values)).encode(), 6)).decode()
    return {
        "id": f"cmp_everthread_{uuid.uuid4().hex}", "type": "compaction",
        "encrypted_content": f"{_PREFIX}{_tag(packed, key)}.{packed}",
    }  # fmt: skip


def read_item(item: Any, key: bytes) -> list[Any] | None:
    """What an item of ours stands for; None where it is somebody else's."""
    content = item.get("encrypted_content") if kind_of(item) == "compaction" else None
    if not isinstance(content, str) or not content.startswith(_PREFIX):
        return None
    tag, _, packed = content.removeprefix(_PREFIX).partition(".")
    if not hmac.compare_digest(tag.encode("utf-8", "replace"), _tag(packed, key).encode()):
        return None
    values: list[Any] = json.loads(zlib.decompressobj().decompress(base64.urlsafe_b64decode(packed), _MOST))
    return values


def _tag(packed: str, key: bytes) -> str:
    return hmac.new(key, packed.encode("utf-8", "replace"), sha256).hexdigest()


def has_item(body: bytes) -> bool:
    """Whether a body may hold an item of ours."""
    return _PREFIX.encode() in body


def expand_items(text: str, key: bytes) -> str | None:
    """A request's text with the messages that items of ours stand for; None where it has none."""
    changes = []
    for element in slice_text(text, "openai_responses").elements:
        values = read_item(element.value, key)
        if values is not None:
            changes.append((element.start, element.end, ",".join(map(encode_value, values))))
    return splice_text(text, changes) if changes else None


def asks_compaction(body: bytes) -> bool:
    """Whether a request ends with the item that asks for a compaction."""
    if TRIGGER.encode() not in body:
        return False
    elements = slice_text(body.decode("utf-8", "replace"), "openai_responses").elements
    return bool(elements) and kind_of(elements[-1].value) == TRIGGER


def is_refusal(status: int, body: bytes) -> bool:
    """Whether an upstream says that it makes no compactions."""
    return status in _REFUSALS or (status in _INVALID and b"compaction" in body)


# Answers with an item


def response_body(item: dict[str, Any], model: str, tokens: int) -> dict[str, Any]:
    """A response that says nothing but the item. `tokens`: what it stands for has so many."""
    return {
        "id": f"resp_everthread_{uuid.uuid4().hex}", "object": "response", "created_at": int(time.time()),
        "status": "completed", "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
        "model": model, "output": [item], "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": _usage(tokens),
    }  # fmt: skip


def compact_body(item: dict[str, Any], tokens: int) -> dict[str, Any]:
    """The body that answers a request at the compaction path."""
    return {
        "id": f"resp_everthread_{uuid.uuid4().hex}", "object": "response.compaction", "created_at": int(time.time()),
        "output": [item], "usage": _usage(tokens),
    }  # fmt: skip


def response_events(body: dict[str, Any]) -> bytes:
    """The response as a stream of events."""
    in_progress = {**body, "status": "in_progress", "output": [], "usage": None}
    [item] = body["output"]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": in_progress},
        {"type": "response.in_progress", "response": in_progress},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": body},
    ]
    numbered = ({**event, "sequence_number": number} for number, event in enumerate(events))
    return b"".join(encode_event(SseEvent(str(event["type"]), json.dumps(event))) for event in numbered)


def _usage(tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": 0, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": tokens,
    }  # fmt: skip
