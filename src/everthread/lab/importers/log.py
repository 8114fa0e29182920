"""A recorded conversation of any program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message
from everthread.core.types import System

CLIENT_NAMES = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "copilot": "Copilot CLI",
    "gemini-cli": "Gemini CLI",
    "opencode": "opencode",
    "pi": "pi",
}
"""The programs whose logs can be read, by the name of their format."""


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """One message of a log. An answer also has its usage, its cost in dollars and its model, if recorded."""

    message: Message
    timestamp: float | None = None
    """Seconds since 1970."""
    usage: CanonicalUsage | None = None
    cost: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class ClientCompaction:
    """A compaction that the client made itself."""

    next_entry_index: int
    """Index of the first entry after it."""
    summary: str | None
    """The summary in the log, or None if it cannot be read, for example because it is encrypted."""
    restored: str = ""
    """The rest of the new context: preserved messages, files and the prompt that continued the session."""
    timestamp: float | None = None
    trigger: str = ""
    """`auto` or `manual`, if the log states it."""
    tokens_before: int | None = None

    @property
    def context(self) -> str:
        """All text of the client's context after the compaction."""
        return "\n".join(part for part in (self.summary or "", self.restored) if part)


@dataclass(frozen=True, slots=True)
class Log:
    """A recorded conversation."""

    source: str
    kind: str
    """Its format: `openai_chat`, `anthropic`, `claude-code`, `codex`, …"""
    entries: list[LoggedMessage]
    system: System = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    warnings: list[str] = field(default_factory=list)
    """Which lines could not be read, by number, and how many were left out."""
    session_id: str = ""
    """The session's id in the program that wrote it."""
    title: str = ""
    window: int | None = None
    """Tokens of the model's window, if the log states them."""
    compactions: list[ClientCompaction] = field(default_factory=list)
    """The client's own compactions, in order. Entries hold the messages before and after, not the summaries."""

    @property
    def messages(self) -> list[Message]:
        return [entry.message for entry in self.entries]


@dataclass(frozen=True, slots=True)
class LogStream:
    """A recorded conversation whose messages are read one at a time, so that it is never in memory as a whole."""

    log: Log
    """The conversation without its messages. Warnings are added when all of them have been read."""
    entries: Iterable[LoggedMessage]


def without_reasoning(messages: Iterable[Message]) -> list[Message]:
    """Return the messages without reasoning and native values, which only the model that reasoned can use."""
    dropped_keys = ("reasoning_content", "_native")
    return [
        cast(
            "Message",
            {key: value for key, value in message.items() if key not in dropped_keys},
        )
        for message in messages
    ]


def find_first_model(entries: Sequence[LoggedMessage]) -> str:
    """Return the model of the first answer that names one."""
    return next((entry.model for entry in entries if entry.model), "")
