"""The memory of threads in one process. It may be lost at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everthread.core.recent_dict import RecentDict
from everthread.core.tokens.budget import Budget
from everthread.store.rewrite_records import RewriteSearchState
from everthread.thread.caller.rewrite_maker import RewriteDraft
from everthread.thread.policy.learnt_usage import LearntUsage
from everthread.thread.preparation import Preparation

MAX_THREADS = 5_000
_REWRITE_FIELD = "rewrite"


@dataclass(slots=True)
class ThreadMemory:
    """The memory of a thread in one process; not needed to continue the thread."""

    learnt_usage: LearntUsage = field(default_factory=LearntUsage)
    is_payload_shrunk: bool = False
    """Whether a request had too many bytes, so that its smaller form is used regardless of tokens."""
    last_rewrite_key: str | None = None
    """The key of the rewrite that was sent last, in this process or an earlier one."""
    last_search: RewriteSearchState | None = None
    """The result of the last search for its rewrites."""
    last_engine_keys: list[str] = field(default_factory=list)
    """The keys of that search; if they differ from the present ones, the client's tools have changed."""
    is_stored: bool = False
    """Whether the thread is in the store, so that the client may be told its id."""
    continues_other: bool = False
    """Whether the client itself compacted an earlier thread, from which the model can recall."""
    has_recall_rounds: bool = False
    """Whether the model called our own tool, so that its rounds are put back into later requests."""
    preparation: Preparation[RewriteDraft] = field(default_factory=Preparation)
    """The compaction that is being made."""
    compaction_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request that decides about a compaction."""
    last_budget: tuple[tuple[str, int, int | None, int], Budget] | None = None
    """The last budget, with its inputs."""
    matching_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a request is matched with the thread, so that requests are matched in their order."""

    def dump(self) -> dict[str, Any]:
        """Return the part that is stored with the thread, as JSON values."""
        return {**self.learnt_usage.dump(), _REWRITE_FIELD: self.last_rewrite_key}


class ThreadMemories:
    """The memories of recently used threads."""

    def __init__(self) -> None:
        self._memories: RecentDict[str, ThreadMemory] = RecentDict(MAX_THREADS)

    def find(self, thread_id: str) -> ThreadMemory | None:
        """Return the memory of a thread, or None, and mark the thread as recently used."""
        memory = self._memories.get(thread_id)
        if memory is not None:
            self._memories.move_to_end(thread_id)
        return memory

    def remember(
        self, thread_id: str, state: Mapping[str, Any] | None, *, is_stored: bool
    ) -> ThreadMemory:
        """Remember a thread that is new to this process, with its stored state."""
        memory = self._memories[thread_id] = ThreadMemory(
            LearntUsage.load(state),
            last_rewrite_key=state.get(_REWRITE_FIELD) if state is not None else None,
            is_stored=is_stored,
        )
        return memory

    async def wait_for_preparations(self) -> None:
        """Wait for the compactions that are being made."""
        tasks: list[asyncio.Task[Any]] = []
        for memory in self._memories.values():
            started_tasks = (memory.preparation.task, memory.preparation.idle_task)
            tasks += [task for task in started_tasks if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end_preparations(self, seconds: float) -> None:
        """Give the compactions that are being made a few seconds, then cancel them."""
        for memory in self._memories.values():
            memory.preparation.cancel_idle_timer()
            if memory.preparation.idle_task is not None:
                memory.preparation.idle_task.cancel()
        tasks = [
            task
            for memory in self._memories.values()
            if (task := memory.preparation.task) is not None
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
