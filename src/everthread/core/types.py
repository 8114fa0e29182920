"""Types that several packages share: requests, replies, pieces of a stream, models, nodes of a summary graph."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from everthread.core.messages import Message, Part

System = str | list[Part] | None
"""The system prompt: text, or blocks of text. If a later block changes, the cached blocks before it stay valid."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
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
class ModelReply:
    """One answer of a model, in core form.

    `stop` is one of `stop`, `length`, `tool_calls`, `content_filter`, `refusal`, `pause`, `other`, None while unknown;
    `usage` is the provider's unchanged object (see `normalize_usage`); `raw` holds all other fields of the wire
    reply, by their own names.
    """

    message: Message
    stop: str | None = None
    usage: dict[str, Any] | None = None
    model: str = ""
    id: str = ""
    raw: dict[str, Any] = field(default_factory=dict)


DeltaKind = Literal["text", "reasoning", "refusal", "call", "usage", "stop", "error"]


@dataclass(frozen=True, slots=True)
class StreamDelta:
    """One event of a stream, in the same form for every API.

    `text` is the text, reasoning or refusal, the message of an error, or the core name of a stop reason; `raw` is the
    provider's own object for usage, stop and error.
    """

    kind: DeltaKind
    text: str = ""
    index: int = 0
    """Which call this is a piece of, counted from 0 within the message."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """A fragment of the call's JSON arguments."""
    raw: Mapping[str, Any] = field(default_factory=dict)


class Model(Protocol):
    """A model that answers requests."""

    @property
    def name(self) -> str: ...

    @property
    def window(self) -> int:
        """Maximum tokens of a request and its answer together."""
        ...

    async def complete(self, request: ModelRequest) -> ModelReply: ...


Api = Literal["openai_chat", "openai_responses", "anthropic", "gemini"]
"""The supported protocols, named after their codecs."""
MAX_MODEL_NAME_CHARS = 300
"""Longer model names are refused by the gateway and have no price."""


class StreamingModel(Model, Protocol):
    """A model that can also stream its answer, as conversations need."""

    @property
    def api(self) -> Api: ...

    @property
    def base_url(self) -> str:
        """Address of the API; learnt limits are stored per address."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[StreamDelta | ModelReply]:
        """Yield the pieces as they come, then the whole `ModelReply`, once and last.

        A stream that breaks off raises `ModelError`, whose `partial` is the answer so far.
        """
        ...


@dataclass(frozen=True, slots=True)
class Node:
    """One summary in a thread's graph. A leaf summarises messages; a condensed node summarises other nodes."""

    id: str
    thread: str
    level: int
    body: str
    tokens: int
    covered_tokens: int
    author: str
    first_message: int
    last_message: int
    first_turn: int
    last_turn: int
    since: float
    until: float
    sources: tuple[str, ...]
    """Ids of the summarised messages, as text, or of the summarised nodes."""
    degraded: bool = False
