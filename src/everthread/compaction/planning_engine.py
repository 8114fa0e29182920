"""Engines that plan and finish.

    plan = engine.plan(history, state)
    drafts = await request_drafts(summarizer, plan.requests)
    result = engine.finish(plan, drafts)        # a compaction, or a plan that asks for more

Both steps are pure and their values can be pickled. So a caller runs them beside its event loop, in a thread or in
another process, and asks the summariser in between.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from everthread.compaction.compaction_result import Compaction, CompactionLevel
from everthread.compaction.draft_requests import request_drafts
from everthread.compaction.engine import ContextEngine, Original, Services
from everthread.compaction.history.thread_facts import ThreadState
from everthread.compaction.journal.journal import AUTHOR
from everthread.compaction.summarizers.summarizer import (
    Summarizer,
    SummaryDraft,
    SummaryRequest,
)
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

    def compress_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `ContextEngine.compress`."""
        return {
            "current_tokens": self.current_tokens,
            "focus_topic": self.focus_topic,
            "system": self.system,
            "tools": self.tools,
            "level": self.level,
            "manual": self.manual,
            "dry_run": self.dry_run,
            "ids": self.ids,
        }


@dataclass(frozen=True, slots=True)
class RefitInput:
    """A compaction prepared from the first messages of a list, and the messages that were added since."""

    prepared: Compaction
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
            ids = [*self._kept_ids(self.ids), *self.ids[self.prepared_count :]]
        return CompactionInput(
            [*self.prepared.messages, *self.new_messages],
            current_tokens=self.current_tokens,
            system=self.system,
            tools=self.tools,
            ids=ids,
        )

    def refit_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of `ContextEngine.refit`."""
        return {
            "start": self.prepared_count,
            "current_tokens": self.current_tokens,
            "system": self.system,
            "tools": self.tools,
        }

    def _kept_ids(self, ids: Sequence[int]) -> Iterator[int]:
        """Yield the ids of the prepared messages; a new message gets the id of the message before it."""
        last_id = ids[0]
        for index in self.prepared.kept:
            last_id = last_id if index is None else ids[index]
            yield last_id


@dataclass(frozen=True, slots=True)
class StoredGraph:
    """A thread's graph of summaries, with the messages under them that a plan needs."""

    nodes: Mapping[str, Node] = field(default_factory=dict)
    """The summaries of the graph by their ids."""
    is_stored: bool = False
    """Whether the graph was read from a store. If not, it holds only nodes that the engine made itself."""
    covered: tuple[int, ...] = ()
    """Ids of the messages that earlier compactions cover."""
    originals: Mapping[int, Original] = field(default_factory=dict)
    """Original messages by id."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The state that an engine needs for a plan, besides the history to compact."""

    facts: ThreadState | None = None
    """The state of the thread after the last compaction; None if it is not known."""
    notes: tuple[str, ...] = ()
    """Pinned texts."""
    graph: StoredGraph | None = None
    """None if the engine makes no graph."""


class Plan(Protocol):
    """A compaction that has begun."""

    @property
    def requests(self) -> Sequence[SummaryRequest]:
        """The drafts to ask for, in order; empty if the journal writes the summary."""
        ...


class PlanningEngine(ContextEngine):
    """An engine that compacts in two steps, plan and finish.

    Neither step calls back, reads a store or calls a model.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    @abc.abstractmethod
    def current_state(self, graph: StoredGraph | None = None) -> EngineState:
        """Return the engine's state. `graph`: the graph that was read from the store, if any."""

    @abc.abstractmethod
    async def read_state(self, history: CompactionInput) -> EngineState:
        """Return the engine's state, with everything from the store that a plan of this history needs."""

    @abc.abstractmethod
    def has_work(self, history: CompactionInput) -> bool:
        """Return whether a plan would make anything smaller. The plan is kept for `plan`."""

    @abc.abstractmethod
    def plan(self, history: CompactionInput, state: EngineState) -> Plan:
        """Decide what a compaction replaces, and which drafts it needs. `finish` completes it."""

    @abc.abstractmethod
    def finish(self, plan: Plan, drafts: Sequence[SummaryDraft]) -> Compaction | Plan:
        """Return the compaction, given a draft for each request; or a plan with further requests."""

    @abc.abstractmethod
    def refit_with_state(
        self, refit_input: RefitInput, state: EngineState
    ) -> Compaction:
        """Do the work of `refit`, with the state that was read for its history."""

    def has_content_to_compress(self, messages: Messages) -> bool:
        return self.has_work(CompactionInput(messages))

    async def compress(  # noqa: PLR0913 - as every engine
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
        """Return a smaller history; return the input, with the reason, if nothing can be saved."""
        summarizer = self._services.summarizer
        history = CompactionInput(
            messages,
            current_tokens=current_tokens,
            focus_topic=focus_topic,
            system=system,
            tools=tools,
            level=level,
            manual=manual,
            dry_run=dry_run,
            ids=ids,
            has_model=may_call_model(summarizer),
        )
        plan = self.plan(history, await self.read_state(history))
        while True:
            drafts = await request_drafts(summarizer, plan.requests)
            step = self.finish(plan, drafts)
            if isinstance(step, Compaction):
                return step
            plan = step

    async def refit(  # noqa: PLR0913 - as every engine
        self,
        prepared: Compaction,
        since: Messages,
        *,
        start: int,
        current_tokens: int | None = None,
        system: System = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Compaction:
        refit_input = RefitInput(
            prepared,
            since,
            start,
            current_tokens=current_tokens,
            system=system,
            tools=tools,
        )
        return self.refit_with_state(
            refit_input, await self.read_state(refit_input.to_compaction_input())
        )


def as_planning_engine(engine: ContextEngine) -> PlanningEngine | None:
    """Return the engine if it works by `plan` and `finish`; None if it overrides `compress` or `refit`."""
    if not isinstance(engine, PlanningEngine):
        return None
    method_names = ("compress", "refit", "has_content_to_compress")
    overrides_whole_work = any(
        getattr(type(engine), name) is not getattr(PlanningEngine, name)
        for name in method_names
    )
    return None if overrides_whole_work else engine


def may_call_model(summarizer: Summarizer) -> bool:
    """Return whether a summariser may call a model. If so, its messages must be pruned and redacted."""
    return summarizer.name != AUTHOR
