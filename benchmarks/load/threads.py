"""Make the request bodies of an agent's growing threads.

The text comes from `benchmarks/corpus.py`: English, code and Chinese, sent as UTF-8. Each request has two messages more
than the one before: the upstream's answer and the message after it. As coding agents do, the client marks its system
prompt and its two newest messages for the provider's cache, so that the marks move.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.corpus import Corpus

MODEL = "claude-sonnet-5"
ANSWER_TEXT = "Done: the settings were read – ‘größer’ and 设置 are kept as they are."
MARK = {"type": "ephemeral"}
TOOL_COUNT = 12
NEW_CHARS = 1_500
"""Characters of the message after an answer."""
MIN_CALL_BYTES = 300
Body = dict[str, Any]


def make_growing_thread(  # noqa: PLR0913 - the options of a load
    name: str,
    size: int,
    calls: int,
    *,
    messages: int | None = None,
    streams: bool = False,
    model: str = MODEL,
    new_chars: int = NEW_CHARS,
) -> list[bytes]:
    """Return the bodies of this many calls. The first has about `size` bytes, in `messages` messages if given."""
    chance = random.Random(name)  # noqa: S311 - always the same text
    count = messages or max(3, size // 2_500) | 1
    history = _make_history(chance, name, size // count, count=count)
    bodies = []
    for number in range(calls):
        bodies.append(_encode(history, model=model, streams=streams))
        history.append({"role": "assistant", "content": [_text_block(ANSWER_TEXT)]})
        text = f"Next {number}: {_make_text(chance, new_chars)}"
        history.append({"role": "user", "content": [_text_block(text)]})
    return bodies


def _make_history(chance: random.Random, name: str, size: int, *, count: int) -> list[Body]:
    """Return a task, then calls of a tool and their results; only text if these would be longer than `size`."""
    opening = f"Task of {name}: {_make_text(chance, size)}"
    history: list[Body] = [{"role": "user", "content": [_text_block(opening)]}]
    if size < MIN_CALL_BYTES:
        for number in range(1, count):
            blocks = [_text_block(_make_text(chance, size - 60))]
            role = ("user", "assistant")[number % 2]
            history.append({"role": role, "content": blocks})
        return history
    for number in range(count // 2):
        call = {
            "type": "tool_use",
            "id": f"toolu_{number}",
            "name": f"tool_{number % TOOL_COUNT}",
            "input": {"path": _make_text(chance, 40)},
        }
        result = {
            "type": "tool_result",
            "tool_use_id": f"toolu_{number}",
            "content": [_text_block(_make_text(chance, max(10, 2 * size - 300)))],
        }
        history.append({"role": "assistant", "content": [call]})
        history.append({"role": "user", "content": [result]})
    return history


def _encode(history: Sequence[Body], *, model: str, streams: bool) -> bytes:
    """Return a body with cache marks on the two newest messages of the user."""
    marked = list(history)
    for index in (-1, -3):
        if -index <= len(marked):
            marked[index] = _with_mark(marked[index])
    body = {
        "model": model,
        "messages": marked,
        "system": [
            {"type": "text", "text": _system_prompt(), "cache_control": MARK},
        ],
        "tools": _tools(),
        "max_tokens": 8_000,
        **({"stream": True} if streams else {}),
    }
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def _with_mark(message: Body) -> Body:
    *blocks, last = message["content"]
    return {**message, "content": [*blocks, {**last, "cache_control": MARK}]}


def _text_block(text: str) -> Body:
    return {"type": "text", "text": text}


def _make_text(chance: random.Random, size: int) -> str:
    """Return a text of about this many bytes."""
    parts: list[str] = []
    length = 0
    while length < size:
        part = _corpus().text(chance)[: max(20, size - length)]
        parts.append(part)
        length += len(part.encode())
    return "\n".join(parts)


@functools.cache
def _corpus() -> Corpus:
    return Corpus()


@functools.cache
def _system_prompt() -> str:
    return _make_text(random.Random("system"), 6_000)  # noqa: S311 - always the same


@functools.cache
def _tools() -> list[Body]:
    chance = random.Random("tools")  # noqa: S311 - always the same
    return [
        {
            "name": f"tool_{number}",
            "description": _make_text(chance, 900),
            "input_schema": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
            },
        }
        for number in range(TOOL_COUNT)
    ]
