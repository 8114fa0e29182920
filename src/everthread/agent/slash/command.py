"""What a slash command is given and what it answers, and how its text is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.agent.loop import Agent
from everthread.conversation.conversation import Conversation
from everthread.store.store import Store


@dataclass(frozen=True, slots=True)
class Here:
    """Where a command was given."""

    conversation: Conversation
    store: Store
    agent: Agent | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command answers."""

    text: str
    """Markdown, plain enough to be read as it is."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same as JSON values."""
    switch: str | None = None
    """The session to go on in."""
    failed: bool = False


def paragraphs(*blocks: str | Sequence[str]) -> str:
    """Markdown blocks with a blank line between them; the items of a list are one block, empty ones are left out."""
    texts = [block if isinstance(block, str) else "\n".join(f"- {item}" for item in block) for block in blocks]
    return "\n\n".join(text for text in texts if text)


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def one_line(text: str, width: int = 100) -> str:
    """The first words on one line."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * width]).split())
    return line if len(line) <= width else f"{line[: width - 1]}…"
