"""From a compacted history back to the client's bytes: what is covered, and what stands in its place.

A compaction is cut where the client's own messages begin again unchanged. What is before becomes the replacement,
what follows goes upstream as the client wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.exchange import Api, Request
from everthread.core.messages import Message
from everthread.gateway.slicing import LIST_FIELD, Element, Sliced, written
from everthread.wire.codecs import CODECS


@dataclass(frozen=True, slots=True)
class Cover:
    """How much of what was sent is replaced, and by what."""

    kept: int
    """How many messages at the end stay as they are."""
    replacement: list[Any]


def decoded(api: Api, values: Sequence[Any], model: str) -> list[Message]:
    """Wire messages in core form."""
    return CODECS[api].decode_messages(list(values), model=model)


def encoded(api: Api, messages: Sequence[Message], model: str) -> list[Any]:
    return CODECS[api].encode_messages(list(messages), model=model)


def frame_of(api: Api, sliced: Sliced, leading: Sequence[Element]) -> Request:
    """The request without its messages: model, system prompt and tools, in core form."""
    field = LIST_FIELD[api]
    body = {**sliced.fields, field: [element.value for element in leading]}
    return CODECS[api].decode_request(body)


def cover(api: Api, compacted: Sequence[Message], sent: Sequence[Any], model: str, *, most: int) -> Cover:
    """Where the compacted history becomes what was sent again; at most that many messages of the end."""
    wire = encoded(api, compacted, model)
    kept = 0
    while kept < min(most, len(wire), len(sent)) and wire[-1 - kept] == sent[-1 - kept]:
        kept += 1
    return Cover(kept, wire[: len(wire) - kept])


def replacement_text(replacement: Sequence[Any], sent: Sequence[tuple[Any, str]]) -> str:
    """The replacement as text; what it begins with unchanged keeps the client's own bytes."""
    texts = []
    same = True
    for index, value in enumerate(replacement):
        same = same and index < len(sent) and sent[index][0] == value
        texts.append(sent[index][1] if same else written(value))
    return ",".join(texts)


def replacement_change(sliced: Sliced, first: int, covered: int, replacement: str) -> tuple[int, int, str]:
    """What puts the replacement in the place of the `covered` messages from `first` on."""
    return sliced.elements[first].start, sliced.elements[first + covered - 1].end, replacement
