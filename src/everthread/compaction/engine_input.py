"""The input of an engine that plans and finishes: a history to compact, and the state that a plan needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.compaction.compaction_result import Compaction, CompactionLevel
from everthread.compaction.engine import ContextEngine, Original
from everthread.compaction.history.thread_state import ThreadState
from everthread.core.messages import Messages
from everthread.core.types import Node, System


@dataclass(frozen=True, slots=True)
class CompactionInput:
    """A history to compact, with options; the fields are the arguments of `ContextEngine.compress`."""

    messages: Messages
    current_tokens: int | None = None
    focus_topic: str | None = None
    system: System = None
    tools: Sequence[Mapping[str, Any]] | None = None
    level: CompactionLevel = CompactionLevel.NORMAL
    manual: bool = False
    dry_run: bool = False
    ids: Sequence[int] | None = None
    has_model: bool = False
    """Whether a model can write drafts. If not, the journal writes the summary."""

    @property
    def message_count(self) -> int:
        """The number of messages to compact."""
        return len(self.messages)

    def to_compaction_input(self) -> CompactionInput:
        """Return the input itself, so that it can be used like a `RefitInput`."""
        return self

    async def run_on(self, engine: ContextEngine) -> Compaction:
        """Return the result of the engine's `compress`."""
        return await engine.compress(
            self.messages,
            current_tokens=self.current_tokens,
            focus_topic=self.focus_topic,
            system=self.system,
            tools=self.tools,
            level=self.level,
            manual=self.manual,
            dry_run=self.dry_run,
            ids=self.ids,
        )


@dataclass(frozen=True, slots=True)
class RefitInput:
    """A compaction prepared from the first messages of a list, and the messages that were added since."""

    prepared_compaction: Compaction
    new_messages: Messages
    prepared_count: int
    """The number of messages that the compaction was prepared from."""
    current_tokens: int | None = None
    system: System = None
    tools: Sequence[Mapping[str, Any]] | None = None
    ids: Sequence[int] | None = None
    """The ids of all messages of the list."""

    def to_compaction_input(self) -> CompactionInput:
        """Return the prepared messages and the new ones as one history."""
        ids = None
        if self.ids is not None:
            ids = [*self._list_kept_ids(self.ids), *self.ids[self.prepared_count :]]
        return CompactionInput(
            [*self.prepared_compaction.messages, *self.new_messages],
            current_tokens=self.current_tokens,
            system=self.system,
            tools=self.tools,
            ids=ids,
        )

    @property
    def message_count(self) -> int:
        """The number of messages of the list."""
        return self.prepared_count + len(self.new_messages)

    async def run_on(self, engine: ContextEngine) -> Compaction:
        """Return the result of the engine's `refit`."""
        return await engine.refit(
            self.prepared_compaction,
            self.new_messages,
            start=self.prepared_count,
            current_tokens=self.current_tokens,
            system=self.system,
            tools=self.tools,
        )

    def _list_kept_ids(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield the ids of the prepared messages; a new message gets the id of the message before it."""
        last_id = ids[0]
        for index in self.prepared_compaction.kept:
            last_id = last_id if index is None else ids[index]
            yield last_id


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A thread's graph of summaries, with the messages under them that a plan needs."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The summaries of the graph by their ids."""
    is_stored: bool = False
    """Whether the graph was read from a store. If not, it holds only nodes that the engine made itself."""
    covered_ids: tuple[int, ...] = ()
    """Ids of the messages that earlier compactions cover."""
    originals: Mapping[int, Original] = field(default_factory=dict)
    """Original messages by id."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state that an engine needs for a plan, besides the history to compact."""

    thread: ThreadState | None
    """The state of the thread after the last compaction, or None if it is not known."""
    notes: tuple[str, ...]
    """Pinned texts."""
    graph: StoredGraph | None
    """None if the engine makes no graph."""
