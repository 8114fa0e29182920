"""Limit the number of concurrent requests, or of bytes in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from everthread.gateway.error_answers import RequestRefused


class Admission:
    """Limits the number of concurrent requests, or of bytes in memory. Requests never queue; they are refused.

    A group of callers (a tenant with all its keys) may use at most half of the limit.
    """

    def __init__(self, limit: int, unit: str = "requests") -> None:
        self.count = 0
        self._limit = limit
        self._unit = unit
        self._count_by_group: Counter[str] = Counter()

    def enter(self, group: str | None = None) -> Reservation:
        """Return a reservation for one request. `group`: the group to count it for; a single user needs none."""
        return Reservation(self, group, 1)

    def reserve(self, group: str | None = None) -> Reservation:
        """Return an empty reservation, to which the caller adds later."""
        return Reservation(self, group, 0)

    def acquire(self, group: str | None, added_count: int) -> None:
        if self.count + added_count > self._limit:
            raise _make_busy_error(
                f"The gateway is busy with {self.count:,} {self._unit}, which is its limit"
            )
        if group is not None:
            group_count = self._count_by_group[group]
            if group_count + added_count > max(1, self._limit // 2):
                raise _make_busy_error(
                    f"This tenant has {group_count:,} {self._unit} under way, which is the limit for one tenant"
                )
            self._count_by_group[group] = group_count + added_count
        self.count += added_count

    def release(self, group: str | None, added_count: int) -> None:
        self.count -= added_count
        if group is not None:
            self._count_by_group[group] -= added_count
            if not self._count_by_group[group]:
                del self._count_by_group[group]


@dataclass(slots=True)
class Reservation:
    """A number of requests or bytes that is reserved within a `with`, whose value is a function to reserve more.

    Raise `RequestRefused` if the limit is reached.
    """

    admission: Admission
    group: str | None
    count: int
    """The reserved number."""

    def __enter__(self) -> Callable[[int], None]:
        self.admission.acquire(self.group, self.count)
        return self.add

    def add(self, count: int) -> None:
        self.admission.acquire(self.group, count)
        self.count += count

    def __exit__(self, *_error: object) -> None:
        self.admission.release(self.group, self.count)


def _make_busy_error(message: str) -> RequestRefused:
    return RequestRefused(
        429, "rate_limit_exceeded", f"{message}; try again in a second.", retry_after=1
    )
