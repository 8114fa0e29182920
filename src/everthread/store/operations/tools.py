"""Which tool a result is of: where the result does not say so, its call does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from everthread.core.messages import Call, calls_of
from everthread.store.database import Tx
from everthread.store.operations.prepared import Prepared
from everthread.store.operations.sessions import LAST, from_json, plain

CHUNK = 8
"""So many messages with calls are read at once: a result mostly follows its call closely."""


class CallNames:
    """The tools that the calls of a session are of: those of a batch, then, as far back as needed, the stored ones."""

    def __init__(self, tx: Tx, session_id: str) -> None:
        self._tx = tx
        self._session = session_id
        self._known: dict[str, str] = {}
        self._before: int | None = LAST
        """The place up to which the session is not read yet; None when all of it is."""

    def named(self, item: Prepared) -> Prepared:
        """The message with its tool. Given in order, as a later call may have an earlier one's id."""
        self._known |= names_of(item.calls)
        return with_tool(item, self._name)

    def _name(self, call_id: str) -> str:
        while call_id not in self._known and self._before is not None:
            self._read_on(self._before)
        return self._known.get(call_id, "")

    def _read_on(self, before: int) -> None:
        rows = self._tx.all(
            "SELECT p.seq, m.body FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? "
            "AND p.seq < ? AND m.role = 'assistant' AND m.tool <> '' ORDER BY p.seq DESC LIMIT ?",
            (self._session, before, CHUNK),
        )
        for _, body in rows:
            self._known = names_of(calls_of(from_json(body))) | self._known
        self._before = rows[-1][0] if len(rows) == CHUNK else None


def names_of(calls: Iterable[Call]) -> dict[str, str]:
    return {call.id: call.name for call in calls}


def with_tool(item: Prepared, name_of: Callable[[str], str]) -> Prepared:
    """A message whose results do not name their tools, with the names their calls have."""
    if not item.answers:
        return item
    names = dict.fromkeys(name_of(call_id) for call_id in item.answers)
    return dataclasses.replace(item, tool=plain(",".join(filter(None, names))))
