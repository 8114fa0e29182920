"""The interface of a context engine, which decides when a history is too large and makes it smaller.

Services are injected: an engine imports neither transport nor database. `compress` does not change the engine. The
engine's state changes in `on_compacted`, which is called only after the result was committed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from everthread.compaction.compaction_result import (
    Compaction,
    CompactionLevel,
    append_new_messages,
)
from everthread.compaction.summarizers.summarizer import Summarizer
from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.messages import Message, Messages
from everthread.core.search.search_results import Lookup, Passage
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.core.types import Node, System

SessionStartReason = Literal["new", "resume", "compression", "branch"]
_PROGRESS_TEXTS = {
    "summary_failed": "{route} wrote no summary: {reason}",
    "summary_skipped": "{route} was not asked for a summary: it is paused for {seconds:.0f} s more",
}


class ReportProgress(Protocol):
    """A callable that receives an engine's progress reports, for front ends to show."""

    def __call__(self, kind: str, **details: Any) -> None: ...


def ignore_event(kind: str, **details: Any) -> None:
    """Ignore a report."""


@dataclass(frozen=True, slots=True)
class Original:
    """A stored message as it was sent, unpruned."""

    id: int
    message: Message
    created: float


class Graph(Protocol):
    """A thread's graph of summaries, and the original messages under it."""

    async def nodes(self) -> Sequence[Node]:
        """Return every summary of the thread's graph."""
        ...

    async def expand(self, wanted: str, *, offset: int, limit: int) -> Passage:
        """Return a part of the originals: of a node's messages, one message or a stored output.

        Raise `UnknownIdError` for an unknown id.
        """
        ...


class Archive(Graph, Protocol):
    """The original messages of a thread in its store, unchanged by compactions."""

    async def originals(self, ids: Sequence[int]) -> list[Original]:
        """Return the original messages of the thread with these ids; skip unknown ids."""
        ...

    async def covered(self) -> list[int]:
        """Return the ids of the messages that compactions of the thread cover, oldest first."""
        ...


def describe_progress(kind: str, details: Mapping[str, Any]) -> str:
    """Return a report of an engine or a summariser as a sentence."""
    if kind in _PROGRESS_TEXTS:
        return _PROGRESS_TEXTS[kind].format_map(details)
    return (
        f"{kind.replace('_', ' ')}: {', '.join(f'{key} {value}' for key, value in details.items())}"
    )


@dataclass(frozen=True, slots=True)
class Services:
    """The services injected into an engine."""

    summarizer: Summarizer
    counter: TokenCounter
    budget: Budget
    clock: Callable[[], float]
    """A monotonic clock, in seconds."""
    events: ReportProgress = ignore_event
    lookup: Lookup | None = None
    """Search in all messages of the store, or None without a store."""
    archive: Archive | None = None
    """The thread in its store, or None without a store."""
    is_stored: bool = False
    """Whether a store keeps the removed texts, so that the summary may name a tool that reads them."""
    summary_key: bytes = b""
    """The store's secret, used to sign a summary; a gateway derives one for each tenant. Without it, the tag is a
    content hash."""


class ContextEngine(abc.ABC):
    """The engine of one conversation, made by a factory: `factory(services, options) -> ContextEngine`.

    An engine must have the abstract members; all other methods are optional.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str: ...

    @abc.abstractmethod
    def update_from_response(self, usage: CanonicalUsage) -> None:
        """Take note of the usage that the provider reported for a call."""

    @abc.abstractmethod
    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Return whether to compress now.

        `prompt_tokens`: the size of the next prompt; None: the last reported size.
        """

    @abc.abstractmethod
    async def compress(  # noqa: PLR0913 - every input of a compaction
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
        """Return a smaller history. Change neither the input nor the engine.

        `current_tokens`: the provider's count for this prompt; `level`: how hard to begin, after an overflow; `manual`:
        a person asked; `dry_run`: only report; `ids`: the messages' ids, for quoting them.
        """

    async def refit(  # noqa: PLR0913 - as `compress`
        self,
        prepared: Compaction,
        since: Messages,
        *,
        start: int,
        current_tokens: int | None = None,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Compaction:
        """Return a prepared compaction with the messages since then, made small enough if it is too large.

        It was prepared from the first `start` messages of the list; `since` are the messages after those. No model is
        called.
        """
        return append_new_messages(prepared, since, start)

    def has_content_to_compress(self, messages: Messages) -> bool:
        """Return whether anything can be made smaller."""
        return bool(messages)

    def pin(self, notes: Sequence[str]) -> None:
        """Receive the pinned texts, which later summaries carry word for word. Called before `compress`."""

    def on_session_start(
        self,
        session_id: str,
        *,
        reason: SessionStartReason = "new",
        previous: str | None = None,
    ) -> None:
        """Called when a session starts, or continues under a new id."""

    def on_session_end(self, session_id: str) -> None:
        """Called when the conversation ends for good."""

    def on_compacted(self, compaction: Compaction) -> None:
        """Called after a compaction was committed."""

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """Return the engine's tools for the model."""
        return []

    async def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the answer of one of the engine's tools."""
        raise KeyError(name)

    def update_model(self, services: Services) -> None:
        """Called after a change of model, a fallback, or a learnt limit."""

    def dump_state(self) -> dict[str, Any]:
        """Return the state that another process needs to continue, as JSON."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `dump_state`."""


EngineFactory = Callable[[Services, Mapping[str, Any]], ContextEngine]
