"""Protocols in which user and assistant alternate: Anthropic and Gemini.

Neighbouring messages of one role share a message on the wire, the user comes first, and instructions in
mid-conversation are wrapped in a user message. A user message on the wire may hold several tool results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import Message, Part
from everthread.core.types import Api
from everthread.wire.native_values import with_native

WirePart = Mapping[str, Any]


def split_at_results(
    parts: Sequence[WirePart], is_result: Callable[[WirePart], bool]
) -> Iterator[tuple[int, Sequence[WirePart]]]:
    """Yield each result alone and the parts between results together, with their index. No parts are one empty run."""
    start = 0
    for index, part in enumerate(parts):
        if is_result(part):
            if start < index:
                yield start, parts[start:index]
            yield index, [part]
            start = index + 1
    if start < len(parts) or not parts:
        yield start, parts[start:]


def share_native_value(
    decoded_runs: Sequence[tuple[Message, Sequence[WirePart]]],
    wire_message: Mapping[str, Any],
    list_name: str,
    *,
    api: Api,
) -> list[Message]:
    """Return the messages of one wire message, each with its own parts of it as its native value.

    `list_name`: the field of the wire message that has the parts.
    """
    messages: list[Message] = []
    for message, parts in decoded_runs:
        value = {**wire_message, list_name: list(parts)} if len(decoded_runs) > 1 else wire_message
        messages.append(with_native(message, api, value, continues_previous=bool(messages)))
    return messages


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """The parts that one core message adds to the wire."""

    role: str
    parts: list[Part]
    native: Mapping[str, Any] | None = None
    """The original wire message, or None if it came from another API."""
    continues_previous: bool = False
    """Whether it was part of the same wire message as the one before it."""


def group_by_role(
    encoded_messages: Iterable[EncodedMessage],
) -> Iterator[list[EncodedMessage]]:
    """Yield neighbouring messages of one role together, unless they were separate messages on the wire."""
    neighbours: list[EncodedMessage] = []
    for encoded_message in encoded_messages:
        was_separate = (
            bool(neighbours)
            and neighbours[-1].native is not None
            and encoded_message.native is not None
            and not encoded_message.continues_previous
        )
        if neighbours and (neighbours[-1].role != encoded_message.role or was_separate):
            yield neighbours
            neighbours = []
        neighbours.append(encoded_message)
    if neighbours:
        yield neighbours


def needs_opening(encoded_messages: Sequence[EncodedMessage], *, assistant_role: str) -> bool:
    """Return whether a user message must be put first: the list is empty or begins with a translated answer."""
    if not encoded_messages:
        return True
    first = encoded_messages[0]
    return first.role == assistant_role and first.native is None


def wrap_instruction(text: str) -> str:
    """Wrap an instruction in mid-conversation, so that it is not mistaken for the user's words."""
    return f"<system-reminder>\n{text}\n</system-reminder>"
