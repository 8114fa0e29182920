"""Which turn something is of: how many messages of the user its thread had by then."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from dataclasses import dataclass, field

from everthread.store.database import Tx

MOST_THREADS = 64


@dataclass(slots=True)
class _Known:
    """A thread's messages of the user: their ids in order, and their times in order."""

    last: int = 0
    """The newest message that was looked at, of any thread."""
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class Turns:
    """What was said does not change: of a thread that is known only what came since is read.

    Shared by reading threads; each makes a new entry, so that none sees one half done.
    """

    def __init__(self) -> None:
        self._threads: OrderedDict[str, _Known] = OrderedDict()

    def forget(self) -> None:
        """A thread was deleted, and others may have inherited its messages."""
        self._threads.clear()

    def of(self, tx: Tx, thread: str, message: int | None, created: float) -> int:
        """The turn of a message, or of a stored output by its time; 0 before the first."""
        known = self._threads.get(thread)
        if known is None or (message is not None and message > known.last) or message is None:
            known = _read(tx, thread, known or _Known())
            self._threads[thread] = known
            while len(self._threads) > MOST_THREADS:
                self._threads.popitem(last=False)
        return bisect.bisect(known.ids, message) if message is not None else bisect.bisect(known.times, created)


def _read(tx: Tx, thread: str, known: _Known) -> _Known:
    newest = tx.one("SELECT MAX(id) FROM messages")
    last = int(newest[0] or 0) if newest else 0
    if last <= known.last:
        return known
    # By id where some are known: those since are few, those of the thread may be many.
    of_thread = "thread_id || '' = ?" if known.last else "thread_id = ?"
    rows = tx.all(
        f"SELECT id, created FROM messages WHERE {of_thread} AND id > ? AND id <= ? AND role = 'user' "
        "AND kind = 'message' ORDER BY id",
        (thread, known.last, last),
    )
    times = sorted([*known.times, *(row[1] for row in rows)])
    return _Known(last, [*known.ids, *(row[0] for row in rows)], times)
