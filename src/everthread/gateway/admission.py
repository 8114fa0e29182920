"""How many are answered at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everthread.gateway.access import Refused


class Admission:
    """Counts who is inside. Nobody waits in line: a client that is told when to come again knows more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.inside = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        if self.inside >= self._most:
            words = f"The gateway is busy with {self.inside} requests, as many as it takes; try again in a second."
            raise Refused(429, "rate_limit_exceeded", words, retry_after=1)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
