"""Encode errors of OpenAI's Responses protocol: bodies are those of the chat protocol, events are its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everthread.wire.openai_chat import encode_error
from everthread.wire.sse import SseEvent

__all__ = ["encode_error", "encode_error_event"]


def encode_error_event(body: Mapping[str, Any]) -> SseEvent:
    error = body["error"]
    fields = {name: error.get(name) for name in ("code", "message", "param")}
    event = {"type": "error", "sequence_number": 0, **fields, "error": error}
    return SseEvent("error", json.dumps(event))
