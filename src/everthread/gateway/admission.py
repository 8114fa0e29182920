"""How many are answered at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from everthread.gateway.access import Refused


class Admission:
    """Counts who is inside. Nobody waits in line: a client that is told when to come again knows more.

    One key has at most half of the places, so that none can take all of them from the others.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._share = max(1, most // 2)
        self._by_key: Counter[str] = Counter()
        self.inside = 0

    @contextmanager
    def enter(self, key: str | None = None) -> Iterator[None]:
        """`key`: whose share it counts to; None: nobody's, there is one user."""
        if self.inside >= self._most:
            words = f"The gateway is busy with {self.inside} requests, as many as it takes; try again in a second."
            raise Refused(429, "rate_limit_exceeded", words, retry_after=1)
        if key is not None and self._by_key[key] >= self._share:
            words = f"This key has {self._share} requests under way, as many as one may have; try again in a second."
            raise Refused(429, "rate_limit_exceeded", words, retry_after=1)
        self.inside += 1
        if key is not None:
            self._by_key[key] += 1
        try:
            yield
        finally:
            self.inside -= 1
            if key is not None:
                self._by_key[key] -= 1
                if not self._by_key[key]:
                    del self._by_key[key]
