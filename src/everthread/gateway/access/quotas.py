"""Daily usage and allowance of each key."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from everthread.core.costs.canonical_usage import CanonicalUsage
from everthread.core.costs.prices import compute_call_cost
from everthread.core.messages import text_of
from everthread.core.types import ModelRequest
from everthread.core.utc_days import DAY_SECONDS, format_utc_day
from everthread.errors import EverthreadError, SummaryError
from everthread.gateway.contracts import Authorize
from everthread.gateway.error_answers import RequestRefused
from everthread.store.key_records import NO_USE, KeyUse, NewKey
from everthread.store.store import Store
from everthread.thread.thread_setup import CheckPermission

_LOG = logging.getLogger("everthread.gateway")
WRITE_DELAY_SECONDS = 0.1
"""Seconds for which usage is collected before it is written."""
WRITE_RETRY_DELAY_SECONDS = 5.0
"""Seconds until the next attempt after the store has failed to write."""
BYTES_PER_TOKEN = 4
"""Bytes of text per token, for estimates."""


class KeyUsageCounter:
    """Counts the daily usage of keys and enforces their limits. Usage is written to the store in batches."""

    def __init__(self, store: Store, *, wall_clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._stored_uses: dict[str, KeyUse] = {}
        """By key, the usage on `_stored_day` that was last read from the store."""
        self._stored_day = ""
        self._uses_being_written: dict[tuple[str, str], KeyUse] = {}
        """By day and key, the usage that is being written now."""
        self._unwritten_uses: dict[tuple[str, str], KeyUse] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[bool] | None = None

    @property
    def day(self) -> str:
        return format_utc_day(self._wall_clock())

    def add_stored_use(self, key_id: str, day: str, use: KeyUse) -> None:
        """Take over usage that was just read from the store. Ignore it during a write, which returns the new sums."""
        if day == self.day and (day, key_id) not in self._uses_being_written:
            uses_of_day = self._get_stored_uses(day)
            old_use = uses_of_day.get(key_id, NO_USE)
            uses_of_day[key_id] = KeyUse(
                max(old_use.requests, use.requests),
                max(old_use.tokens, use.tokens),
                max(old_use.dollars, use.dollars),
            )

    def admit(self, key: NewKey) -> None:
        """Count a request. Raise `RequestRefused` if a limit is reached."""
        self._check(key, NO_USE)
        self._add((self.day, key.id), KeyUse(requests=1))

    def authorize(self, key: NewKey, usage: CanonicalUsage, model: str) -> None:
        """Raise `RequestRefused` if a call with this usage would exceed a limit. Count nothing."""
        cost = compute_call_cost(usage, model, time=datetime.fromtimestamp(self._wall_clock(), UTC))
        self._check(key, KeyUse(tokens=usage.total_tokens, dollars=cost or Decimal(0)))

    def _check(self, key: NewKey, added_use: KeyUse) -> None:
        """Raise `RequestRefused` if a limit is reached, or would be exceeded with this additional use."""
        day = self.day
        entry = day, key.id
        total_use = self._get_stored_uses(day).get(key.id, NO_USE)
        total_use += self._uses_being_written.get(entry, NO_USE) + self._unwritten_uses.get(
            entry, NO_USE
        )
        for unit in ("requests", "tokens", "dollars"):
            limit = getattr(key.limits, unit)
            spent = getattr(total_use, unit)
            if limit is not None and (spent >= limit or spent + getattr(added_use, unit) > limit):
                raise self._make_limit_error(key, unit, limit, spent)

    def spend(self, key: NewKey, usage: CanonicalUsage, model: str) -> None:
        """Count the usage of a call. A model without a price adds no dollars; log that if dollars are limited."""
        cost = compute_call_cost(usage, model, time=datetime.fromtimestamp(self._wall_clock(), UTC))
        if cost is None and key.limits.dollars is not None:
            _LOG.warning(
                "the price of %.80r is not known; key %s is charged no dollars for it",
                model,
                key.id,
            )
        self._add(
            (self.day, key.id),
            KeyUse(tokens=usage.total_tokens, dollars=cost or Decimal(0)),
        )

    async def close(self) -> None:
        """Write the counted uses, then stop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._task is not None:
            await self._task
        while self._unwritten_uses and await self._write():
            pass

    def _make_limit_error(
        self, key: NewKey, unit: str, limit: int | Decimal, spent: int | Decimal
    ) -> RequestRefused:
        wait_seconds = DAY_SECONDS - self._wall_clock() % DAY_SECONDS
        figures = f"{spent:,} of {limit:,} {unit}"
        if unit == "dollars":
            figures = f"${spent:,.4f} of ${limit:,.4f}"
        return RequestRefused(
            429,
            f"{unit}_per_day_exceeded",
            f"The key et_{key.id} has used {figures} of this day (UTC); try again in {wait_seconds:,.0f} seconds.",
            retry_after=wait_seconds,
        )

    def _get_stored_uses(self, day: str) -> dict[str, KeyUse]:
        if self._stored_day != day:
            self._stored_day = day
            self._stored_uses = {}
        return self._stored_uses

    def _add(self, entry: tuple[str, str], use: KeyUse) -> None:
        self._unwritten_uses[entry] = self._unwritten_uses.get(entry, NO_USE) + use
        self._write_soon()

    def _write_soon(self, delay: float = WRITE_DELAY_SECONDS) -> None:
        if self._timer is None and (self._task is None or self._task.done()):
            self._timer = asyncio.get_running_loop().call_later(delay, self._start_write)

    def _start_write(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._write())
        self._task.add_done_callback(self._write_remaining_uses)

    def _write_remaining_uses(self, write_task: asyncio.Task[bool]) -> None:
        if self._unwritten_uses and not write_task.cancelled() and write_task.exception() is None:
            self._write_soon(
                WRITE_DELAY_SECONDS if write_task.result() else WRITE_RETRY_DELAY_SECONDS
            )

    async def _write(self) -> bool:
        """Write collected usage, day by day. Return False if the store fails; a later write retries."""
        self._uses_being_written = self._unwritten_uses
        self._unwritten_uses = {}
        for day in sorted({day for day, _ in self._uses_being_written}):
            uses = {
                key: use for (of_day, key), use in self._uses_being_written.items() if of_day == day
            }
            try:
                sums = await self._store.keys.add_use(day, uses)
            except EverthreadError as error:
                _LOG.warning(
                    "the usage of keys cannot be written now; it is kept and written later: %s",
                    error,
                )
                for entry, use in self._uses_being_written.items():
                    self._unwritten_uses[entry] = self._unwritten_uses.get(entry, NO_USE) + use
                self._uses_being_written = {}
                return False
            for key in uses:
                del self._uses_being_written[day, key]
            if day == self.day:
                self._get_stored_uses(day).update(sums)
        return True


@dataclass(frozen=True, slots=True)
class KeyAccount:
    """The account of one key; see `gateway.contracts.Account`."""

    usage_counter: KeyUsageCounter
    key: NewKey

    def admit(self) -> None:
        self.usage_counter.admit(self.key)

    def authorize(self, usage: CanonicalUsage, model: str) -> None:
        self.usage_counter.authorize(self.key, usage, model)

    def spend(self, usage: CanonicalUsage, model: str) -> None:
        self.usage_counter.spend(self.key, usage, model)


def make_spending_check(authorize: Authorize) -> CheckPermission:
    """Return a check to run before each summary call: it refuses if the caller may not spend the estimated usage."""

    async def permit(request: ModelRequest) -> None:
        chars = sum(len(text_of(message)) for message in request.messages)
        max_tokens = request.params.get("max_tokens")
        output = max_tokens if isinstance(max_tokens, int) else 0
        try:
            await authorize(CanonicalUsage(chars // BYTES_PER_TOKEN, output), request.model)
        except RequestRefused as refused:
            raise SummaryError(refused.message) from refused

    return permit
