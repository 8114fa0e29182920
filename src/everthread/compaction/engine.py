"""What a context engine is: it decides when a history is too large, and makes it smaller.

An engine gets what it needs injected. It imports no transport and no database; `compress` changes nothing, not even
the engine: state moves on in `on_compacted`, which is called only after the result was committed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from everthread.compaction.summary import Compaction, CompactionLevel, Summarizer
from everthread.core.messages import Message, Messages
from everthread.core.pricing import CanonicalUsage
from everthread.core.search.lookup import Lookup, Passage
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import Node, System

StartReason = Literal["new", "resume", "compression", "branch"]


class Events(Protocol):
    """Where an engine tells what it does. Front ends show it."""

    def __call__(self, kind: str, **details: Any) -> None: ...


def silent(kind: str, **details: Any) -> None:
    """For whoever does not listen."""


@dataclass(frozen=True, slots=True)
class Original:
    """A message as it was said."""

    id: int
    message: Message
    created: float


class Graph(Protocol):
    """A thread's graph of summaries, and what stands under it."""

    async def nodes(self) -> Sequence[Node]:
        """Every summary of the thread's graph."""
        ...

    async def expand(self, wanted: str, *, offset: int, limit: int) -> Passage:
        """A part of the originals: of a node's messages, one message or a stored output; `UnknownIdError`."""
        ...


class Archive(Graph, Protocol):
    """The thread as its store keeps it, whatever compactions made of it."""

    async def originals(self, ids: Sequence[int]) -> list[Original]:
        """Messages of the thread by their ids, each as it was said; those that are not there are left out."""
        ...

    async def covered(self) -> list[int]:
        """Ids of all messages that the thread's compactions stand for, oldest first."""
        ...


_PROGRESS = {
    "summary_failed": "{route} wrote no summary: {reason}",
    "summary_skipped": "{route} was not asked for a summary: it rests for {seconds:.0f} s more",
}


def progress_text(kind: str, details: Mapping[str, Any]) -> str:
    """What an engine or a summariser reports, as a sentence."""
    if kind in _PROGRESS:
        return _PROGRESS[kind].format_map(details)
    return f"{kind.replace('_', ' ')}: {', '.join(f'{key} {value}' for key, value in details.items())}"


@dataclass(frozen=True, slots=True)
class Services:
    """What an engine is given."""

    summarizer: Summarizer
    counter: TokenCounter
    budget: Budget
    clock: Callable[[], float]
    """Seconds that only grow."""
    events: Events = silent
    lookup: Lookup | None = None
    """Everything that was ever said; None where no store is behind the messages."""
    archive: Archive | None = None
    """What the store keeps of this thread; None as above."""
    is_stored: bool = False
    """Whether a store keeps what is taken out, so that a tool that reads it back is worth naming."""
    summary_key: bytes = b""
    """The home's key: the tag of a summary is made with it. Without one the tag is a content hash."""


class ContextEngine(abc.ABC):
    """One per conversation, made by a factory: `factory(services, options) -> ContextEngine`."""

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @abc.abstractmethod
    def update_from_response(self, usage: CanonicalUsage) -> None:
        """Take note of what the provider reported for a call."""

    @abc.abstractmethod
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Whether it is time. `prompt_tokens`: the size of the next prompt; None: as last reported."""

    @abc.abstractmethod
    async def compress(  # noqa: PLR0913 - what a compaction may depend on
        self,
        messages: Messages,
        *,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        level: CompactionLevel = CompactionLevel.NORMAL,
        manual: bool = False,
        dry_run: bool = False,
        ids: Sequence[int] | None = None,
    ) -> Compaction:
        """A smaller history. Changes neither its input nor the engine.

        `current_tokens`: what the provider counts for this prompt; `level`: how hard to begin, after an overflow;
        `manual`: a person asked; `dry_run`: only tell; `ids`: the messages' ids, for quoting them.
        """

    # What an engine may do besides

    def has_content_to_compress(self, messages: Messages) -> bool:
        """Whether there is anything to make smaller."""
        return bool(messages)

    def pin(self, notes: Sequence[str]) -> None:
        """Told before `compress`: texts somebody pinned, which the summaries from now on carry word for word."""

    def on_session_start(self, session_id: str, *, reason: StartReason = "new", previous: str | None = None) -> None:
        """A session begins, or goes on under a new id."""

    def on_session_end(self, session_id: str) -> None:
        """The conversation ends for good."""

    def on_compacted(self, compaction: Compaction) -> None:
        """A compaction was committed."""

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Tools for the model."""
        return []

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The answer of one of the engine's tools."""
        raise KeyError(name)

    def update_model(self, services: Services) -> None:
        """Another model, a fallback, or a limit that was learnt."""

    def dump_state(self) -> dict[str, Any]:
        """What another process needs to continue, as JSON."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from what `dump_state` gave."""


EngineFactory = Callable[[Services, Mapping[str, Any]], ContextEngine]
