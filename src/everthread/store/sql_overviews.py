"""Lean rows over any SQL database: the part of `SqlStore` that pages read many threads with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TypeVar

from everthread.store.base import CompactionRecord, UsageRow
from everthread.store.database import Tx
from everthread.store.operations import overview
from everthread.store.operations.accounts import PICO
from everthread.store.overviews import CallRow, MessageSize, StoredRewrite, ThreadFigures

T = TypeVar("T")


class SqlOverviews(ABC):
    """`OverviewStore` over a database."""

    @abstractmethod
    async def _read(self, work: Callable[[Tx], T]) -> T: ...

    async def thread_figures(self, threads: Sequence[str]) -> Mapping[str, ThreadFigures]:
        return await self._read(lambda tx: overview.figures(tx, threads))

    async def call_rows(self, threads: Sequence[str]) -> list[CallRow]:
        return await self._read(lambda tx: overview.calls(tx, threads))

    async def period_compactions(
        self,
        *,
        since: float = 0.0,
        until: float = 1e18,
        tenant: str | None = None,
        threads: Sequence[str] | None = None,
        limit: int = 1_000,
    ) -> list[CompactionRecord]:
        return await self._read(lambda tx: overview.compactions(tx, since, until, tenant, threads, limit))

    async def usage_by_tenant(self, *, since: float, until: float, limit: int = 50) -> list[UsageRow]:
        rows = await self._read(lambda tx: overview.by_tenant(tx, since, until, limit))
        return [
            UsageRow(
                row[0], int(row[1]), int(row[2]) - int(row[3]), int(row[6]), int(row[3]),
                cost=Decimal(int(row[4])) / PICO, unpriced=int(row[5]),
            )
            for row in rows
        ]  # fmt: skip

    async def heaviest_messages(self, thread: str, limit: int = 10) -> list[MessageSize]:
        return await self._read(lambda tx: overview.heaviest(tx, thread, limit))

    async def tool_sizes(self, thread: str) -> list[tuple[str, int, int]]:
        return await self._read(lambda tx: overview.tool_sizes(tx, thread))

    async def thread_rewrites(self, thread: str) -> list[StoredRewrite]:
        return await self._read(lambda tx: overview.thread_rewrites(tx, thread))

    async def last_change(self, *, tenant: str | None = None, thread: str | None = None) -> str:
        return await self._read(lambda tx: overview.last_change(tx, tenant, thread))
