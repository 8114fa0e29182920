"""A recorded conversation, whoever recorded it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from everthread.core.exchange import System
from everthread.core.messages import Message
from everthread.core.usage import CanonicalUsage


@dataclass(frozen=True, slots=True)
class Said:
    """One message of a log, with what was written down beside it."""

    message: Message
    at: float | None = None
    """When, in seconds since 1970."""
    usage: CanonicalUsage | None = None
    """Of a model's answer: what the provider reported for it."""
    cost: float | None = None
    """Of a model's answer: the dollars that were written down for it."""
    model: str = ""
    """Of a model's answer: who gave it."""


@dataclass(frozen=True, slots=True)
class Log:
    """A conversation with what is known of it."""

    source: str
    kind: str
    """Whose form it has: `openai_chat`, `anthropic`, `claude-code`, `codex`, …"""
    said: list[Said]
    system: System = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    warnings: list[str] = field(default_factory=list)
    """What could not be read, with line numbers; what was left out."""

    @property
    def messages(self) -> list[Message]:
        return [entry.message for entry in self.said]


def moment(value: Any) -> float | None:
    """A time as logs have it: ISO 8601, or seconds or milliseconds since 1970; None where it is none."""
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return None
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return value / 1_000 if value > _MILLISECONDS else float(value)
    return None


_MILLISECONDS = 1e11
"""As seconds this is the year 5138."""


def numbered(lines: list[int], most: int = 8) -> str:
    """`line 3`, `lines 3, 4 and 12`, `lines 1, 2, … (90 in all)`."""
    if len(lines) == 1:
        return f"line {lines[0]}"
    if len(lines) > most:
        return f"lines {', '.join(map(str, lines[:most]))}, … ({len(lines):,} in all)"
    return f"lines {', '.join(map(str, lines[:-1]))} and {lines[-1]}"
