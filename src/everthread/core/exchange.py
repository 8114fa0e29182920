"""What passes to and from a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from everthread.core.messages import Message, Part

System = str | list[Part] | None
"""The system prompt: text, or text blocks (so that a later block leaves the cached ones before it valid)."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model, in core form.

    `tools` are OpenAI chat tool dicts. `params` holds every other field of the wire request by its own name,
    untouched, so that nothing a client sent is lost.
    """

    model: str
    messages: list[Message]
    system: System = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a model, in core form.

    `stop` is one of `stop`, `length`, `tool_calls`, `content_filter`, `refusal`, `pause`, `other`, None while
    unknown; `usage` is the provider's object as it came (see `usage.normalize_usage`); `raw` whatever else the wire
    reply held, by its own names.
    """

    message: Message
    stop: str | None = None
    usage: dict[str, Any] | None = None
    model: str = ""
    id: str = ""
    raw: dict[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """Somebody who answers a request."""

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int:
        """How many tokens one request may have, in all."""
        ...

    async def complete(self, request: Request) -> Reply: ...
