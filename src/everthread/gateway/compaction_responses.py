"""Answers with a compaction item, in the Responses protocol."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from everthread.wire.sse import SseEvent, encode_event


def make_response_body(item: dict[str, Any], model: str, tokens: int) -> dict[str, Any]:
    """Return a response with only the item. `tokens`: the tokens of the messages in the item."""
    return {
        "id": f"resp_everthread_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": _make_usage(tokens),
    }


def make_compact_body(item: dict[str, Any], tokens: int) -> dict[str, Any]:
    """Return the body that answers a request at the compaction path."""
    return {
        "id": f"resp_everthread_{uuid.uuid4().hex}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [item],
        "usage": _make_usage(tokens),
    }


def make_response_events(body: dict[str, Any]) -> bytes:
    """Return the response as a stream of events."""
    in_progress = {**body, "status": "in_progress", "output": [], "usage": None}
    [item] = body["output"]
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": in_progress},
        {"type": "response.in_progress", "response": in_progress},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": body},
    ]
    numbered_events = ({**event, "sequence_number": number} for number, event in enumerate(events))
    return b"".join(
        encode_event(SseEvent(str(event["type"]), json.dumps(event))) for event in numbered_events
    )


def _make_usage(tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": tokens,
    }
