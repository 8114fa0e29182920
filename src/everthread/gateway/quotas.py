"""What keys may use in a day: counted in the store, for every process that shares it.

Requests are counted when they are let in, tokens and dollars when they are known. Nothing waits for the store: what
comes within a tenth of a second is written together, and each write brings back the sums of all processes. So a limit
may be passed by what is in flight: what is being answered, and what other processes let in since the last write.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from everthread.core.cost import cost_of
from everthread.core.usage import CanonicalUsage
from everthread.errors import EverthreadError
from everthread.gateway.access import Refused
from everthread.store.models import NO_USE, KeyUse, NewKey
from everthread.store.store import Store

_LOG = logging.getLogger("everthread.gateway")
_DAY = 86_400
DELAY = 0.1
"""Seconds: what is counted within this time is written together."""
LATER = 5.0
"""Seconds until another attempt, when the store did not take it."""


def utc_day(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


@dataclass(slots=True)
class _Line:
    """One key's account of a day."""

    day: str
    known: KeyUse
    """As the store had it last."""
    writing: KeyUse = NO_USE
    """On its way there."""
    waiting: KeyUse = NO_USE

    @property
    def total(self) -> KeyUse:
        return self.known + self.writing + self.waiting


class Ledger:
    """The accounts of the keys this process has seen."""

    def __init__(self, store: Store, *, wall: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall = wall
        self._lines: dict[str, _Line] = {}
        self._late: list[tuple[str, dict[str, KeyUse]]] = []
        """Of days that are over."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[bool] | None = None

    @property
    def day(self) -> str:
        return utc_day(self._wall())

    def learn(self, key_id: str, day: str, use: KeyUse) -> None:
        """What the store says. While a write is under way it may hold that already, and the write itself will tell."""
        line = self._line(key_id)
        if line.day == day and line.writing == NO_USE:
            known = line.known
            line.known = KeyUse(
                max(known.requests, use.requests), max(known.tokens, use.tokens), max(known.dollars, use.dollars)
            )

    def admit(self, key: NewKey) -> None:
        """Count a request; `Refused` where a limit is reached."""
        line = self._line(key.id)
        used, limits = line.total, key.limits
        for what, limit, spent in (
            ("requests", limits.requests, used.requests),
            ("tokens", limits.tokens, used.tokens),
            ("dollars", limits.dollars, used.dollars),
        ):
            if limit is not None and spent >= limit:
                raise self._over(key, what, limit, spent)
        self._add(line, KeyUse(requests=1))

    def spend(self, key: NewKey, usage: CanonicalUsage, model: str) -> None:
        """Count what a call used. What has no price adds no dollars; that is told where dollars are limited."""
        cost = cost_of(usage, model, at=datetime.fromtimestamp(self._wall(), UTC))
        if cost is None and key.limits.dollars is not None:
            _LOG.warning("the price of %.80r is not known; key %s is charged no dollars for it", model, key.id)
        self._add(self._line(key.id), KeyUse(tokens=usage.total_tokens, dollars=cost or Decimal(0)))

    async def close(self) -> None:
        """After what is counted is written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task
        while self._waits and await self._write():
            pass

    def _over(self, key: NewKey, what: str, limit: int | Decimal, spent: int | Decimal) -> Refused:
        wait = _DAY - self._wall() % _DAY
        figures = f"${spent:,.4f} of ${limit:,.4f}" if what == "dollars" else f"{spent:,} of {limit:,} {what}"
        return Refused(
            429,
            f"{what}_per_day_exceeded",
            f"The key et_{key.id} has used {figures} of this day (UTC); it may go on in {wait:,.0f} seconds.",
            retry_after=wait,
        )

    def _line(self, key_id: str) -> _Line:
        day = self.day
        line = self._lines.get(key_id)
        if line is None or line.day != day:
            if line is not None and line.waiting != NO_USE:
                self._late.append((line.day, {key_id: line.waiting}))
            line = self._lines[key_id] = _Line(day, NO_USE)
        return line

    def _add(self, line: _Line, use: KeyUse) -> None:
        line.waiting += use
        self._write_soon()

    @property
    def _waits(self) -> bool:
        return bool(self._late) or any(line.waiting != NO_USE for line in self._lines.values())

    def _write_soon(self, delay: float = DELAY) -> None:
        if self._timer is None and (self._task is None or self._task.done()):
            self._timer = asyncio.get_running_loop().call_later(delay, self._begin)

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write())
        self._task.add_done_callback(self._go_on)

    def _go_on(self, done: asyncio.Task[bool]) -> None:
        if self._waits and not done.cancelled() and done.exception() is None:
            self._write_soon(DELAY if done.result() else LATER)

    async def _write(self) -> bool:
        """What waits. What cannot be written stays in the account and goes with a later write; then False."""
        while self._late:
            day, uses = self._late[0]
            if await self._written(day, uses) is None:
                return False
            self._late.pop(0)
        waiting = {key: line for key, line in self._lines.items() if line.waiting != NO_USE}
        day = next((line.day for line in waiting.values()), "")
        lines = {key: line for key, line in waiting.items() if line.day == day}
        for line in lines.values():
            line.writing, line.waiting = line.waiting, NO_USE
        sums = await self._written(day, {key: line.writing for key, line in lines.items()}) if lines else {}
        for key, line in lines.items():
            if sums is not None:
                line.known = sums[key]
            elif self._lines[key] is line:
                line.waiting += line.writing
            else:  # its day ended meanwhile
                self._late.append((day, {key: line.writing}))
            line.writing = NO_USE
        return sums is not None

    async def _written(self, day: str, uses: dict[str, KeyUse]) -> dict[str, KeyUse] | None:
        try:
            return await self._store.count_use(day, uses)
        except EverthreadError as error:
            _LOG.warning("what keys used cannot be written now; it is kept and tried again: %s", error)
            return None


@dataclass(frozen=True, slots=True)
class KeyAccount:
    """`gateway.base.Account` of one key."""

    ledger: Ledger
    key: NewKey

    def admit(self) -> None:
        self.ledger.admit(self.key)

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        self.ledger.spend(self.key, usage, model)
