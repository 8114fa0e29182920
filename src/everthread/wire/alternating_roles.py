"""Encode for protocols in which user and assistant alternate: Anthropic and Gemini.

Neighbouring messages of one role share a message on the wire, the user comes first, and instructions in
mid-conversation are wrapped in a user message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everthread.core.messages import Part


@dataclass(frozen=True, slots=True)
class EncodedMessage:
    """The parts that one core message adds to the wire."""

    role: str
    parts: list[Part]
    native: Mapping[str, Any] | None = None
    """The original wire message; None if it came from another API."""
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
