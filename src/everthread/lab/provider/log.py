"""What the provider was asked and what it answered, for a test to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everthread.core.cache_control import PrefixDiff
from everthread.core.pricing import CanonicalUsage, normalize_usage
from everthread.core.types import Api, Reply, Request

SESSION_HEADERS = ("x-everthread-session", "x-session-id", "session-id", "session_id")
"""Headers by which clients name a session; the first that is there counts."""


@dataclass(slots=True)
class Record:
    """One request. It is in the log as soon as it came, and complete before the answer's first byte is sent."""

    number: int
    """Counted from 1."""
    api: Api
    path: str
    headers: Mapping[str, str]
    """With lower-case names."""
    at: float
    body: Any = None
    """The JSON as it came; None where it was none."""
    request: Request | None = None
    """The same in core form; None where it could not be read."""
    status: int | None = None
    """None while it hangs."""
    error: str = ""
    """The words of the error it was answered with."""
    fault: str = ""
    """The kind of fault that was played."""
    reply: Reply | None = None
    usage: dict[str, Any] | None = None
    """As it was sent, which a fault may have falsified."""
    prompt_tokens: int = 0
    """What the prompt really was."""
    cached_tokens: int = 0
    written_tokens: int = 0
    shared: PrefixDiff | None = None
    """How far it extends the request before of its session and model; None for the first."""
    events: list[str] = field(default_factory=list)
    """What happened while the answer was sent: `gone` where the client left, `reset`, `cut`."""

    @property
    def model(self) -> str:
        return self.request.model if self.request else ""

    @property
    def stream(self) -> bool:
        return isinstance(self.body, Mapping) and self.body.get("stream") is True

    @property
    def session(self) -> str:
        """Whose request it was, by its headers; empty where they say nothing."""
        return next((self.headers[name] for name in SESSION_HEADERS if self.headers.get(name)), "")

    @property
    def canonical_usage(self) -> CanonicalUsage:
        return normalize_usage(self.usage, api=self.api)

    def summary(self) -> dict[str, Any]:
        """The figures of one line."""
        return {
            "number": self.number,
            "api": self.api,
            "model": self.model,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "written_tokens": self.written_tokens,
            "output_tokens": self.canonical_usage.output_tokens if self.usage else 0,
            "stream": self.stream,
            "session": self.session,
            "fault": self.fault,
            "error": self.error,
        }
