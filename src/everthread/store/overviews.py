"""Lean rows for pages that show many threads: the values and their protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from everthread.store.proxied import Rewrite

if TYPE_CHECKING:
    from everthread.store.base import CompactionRecord, UsageRow


@dataclass(frozen=True, slots=True)
class ThreadFigures:
    """A thread's calls and compactions, summed up."""

    thread: str
    calls: int = 0
    """To the main model."""
    cost: Decimal | None = None
    """Dollars of all calls with a known price; None where none has one."""
    unpriced: int = 0
    prompts: int = 0
    read: int = 0
    output: int = 0
    model: str = ""
    """Of the last call."""
    prompt: int = 0
    """Tokens of the last call's prompt."""
    compactions: int = 0
    compacted: float | None = None
    """When it was compacted last."""
    removed: int = 0
    """Tokens that compactions took out, in sum."""


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call to a model."""

    thread: str
    created: float
    model: str
    task: str
    tenant: str
    platform: str
    input: int
    output: int
    read: int
    write: int
    cost: Decimal | None
    estimated: bool = False

    @property
    def prompt(self) -> int:
        return self.input + self.read + self.write


@dataclass(frozen=True, slots=True)
class MessageSize:
    """How large a message is."""

    id: int
    role: str
    tool: str
    tokens: int
    created: float


@dataclass(frozen=True, slots=True)
class StoredRewrite:
    """What stands for the beginning of a proxied thread, and since when."""

    rewrite: Rewrite
    created: float


class OverviewStore(Protocol):
    """The part of a store that pages read many threads with."""

    async def thread_figures(self, threads: Sequence[str]) -> Mapping[str, ThreadFigures]: ...
    async def call_rows(self, threads: Sequence[str]) -> list[CallRow]:
        """Every call of these threads, thread by thread, in order."""
        ...

    async def period_compactions(
        self,
        *,
        since: float = 0.0,
        until: float = 1e18,
        tenant: str | None = None,
        threads: Sequence[str] | None = None,
        limit: int = 1_000,
    ) -> list[CompactionRecord]:
        """The newest first; those that were undone too."""
        ...

    async def usage_by_tenant(self, *, since: float, until: float, limit: int = 50) -> list[UsageRow]: ...
    async def heaviest_messages(self, thread: str, limit: int = 10) -> list[MessageSize]: ...
    async def tool_sizes(self, thread: str) -> list[tuple[str, int, int]]:
        """What each tool's results take: its name, how many there are, their tokens."""
        ...

    async def thread_rewrites(self, thread: str) -> list[StoredRewrite]: ...
    async def last_change(self, *, tenant: str | None = None, thread: str | None = None) -> str:
        """A text that differs as soon as something was said, used or compacted."""
        ...
