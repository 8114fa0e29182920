"""A stream in small pieces, as a model writes it: events that hold many words become several."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from everthread.wire.sse import SseEvent

_LENGTH = 24
_MOST = 40


def in_pieces(events: Iterable[SseEvent]) -> Iterator[SseEvent]:
    """The events, long words cut, numbered anew where the protocol numbers them."""
    number = 0
    for event in events:
        if event.data == "[DONE]":
            yield event
            continue
        data = json.loads(event.data)
        for piece in _cut(data):
            if "sequence_number" in data:
                piece = {**piece, "sequence_number": number}  # noqa: PLW2901  the piece with its number
                number += 1
            yield replace(event, data=json.dumps(piece))


def _cut(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    path = _words(data)
    words = data
    for step in path:
        words = words[step]
    if not path or not isinstance(words, str) or len(words) <= _LENGTH:
        yield data
        return
    length = max(_LENGTH, len(words) // _MOST)
    for start in range(0, len(words), length):
        yield _put(data, path, words[start : start + length])


def _words(data: dict[str, Any]) -> tuple[Any, ...]:
    """Where the event has words that may come in pieces; nothing where it has none."""
    match data:
        case {"choices": [{"delta": {"content": str()}}]}:
            return ("choices", 0, "delta", "content")
        case {"choices": [{"delta": {"reasoning_content": str()}}]}:
            return ("choices", 0, "delta", "reasoning_content")
        case {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": str(), **rest}}]}}]} if not rest:
            return ("choices", 0, "delta", "tool_calls", 0, "function", "arguments")
        case {"type": "content_block_delta", "delta": {"text": str()}}:
            return ("delta", "text")
        case {"type": "content_block_delta", "delta": {"thinking": str()}}:
            return ("delta", "thinking")
        case {"type": "content_block_delta", "delta": {"partial_json": str()}}:
            return ("delta", "partial_json")
        case {"type": str(kind), "delta": str()} if kind.endswith(".delta"):
            return ("delta",)
    return ()


def _put(value: Any, path: tuple[Any, ...], words: str) -> Any:
    """A copy with other words at the path."""
    if not path:
        return words
    if isinstance(value, list):
        return [_put(item, path[1:], words) if at == path[0] else item for at, item in enumerate(value)]
    return {**value, path[0]: _put(value[path[0]], path[1:], words)}
