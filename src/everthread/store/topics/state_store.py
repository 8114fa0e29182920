"""`store.state`: pins, counts of failures, state of engines and summary nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.core.types import Node
from everthread.store.access import StoreTopic
from everthread.store.records import Pin
from everthread.store.sql import session_state


class StateStore(StoreTopic):
    """Pins, counts of failures, state of engines and summary nodes."""

    async def put_pin(self, thread_id: str, text: str, *, max_pins: int = 50) -> Pin:
        """Pin a text to a thread, and return the pin. A text that is already pinned keeps its pin."""
        return await self._access.change_thread(
            thread_id,
            session_state.put_pin,
            self._access.clock(),
            thread_id,
            text,
            max_pins=max_pins,
        )

    async def list_pins(self, thread_id: str) -> list[Pin]:
        """Return the pins of a thread, the earliest first."""
        return await self._access.read(session_state.list_pins, thread_id)

    async def delete_pin(self, thread_id: str, pin: str) -> None:
        """Delete a pin; raise `UnknownIdError` if there is none with this id."""
        await self._access.change_thread(thread_id, session_state.delete_pin, thread_id, pin)

    async def add_failures(self, counts: Mapping[tuple[str, str, str], int]) -> None:
        """Add to the counts of failed requests that were passed through."""
        await self._access.write(session_state.add_failures, self._access.clock(), counts)

    async def sum_failures(
        self, *, since: float = 0.0, tenant: str | None = None
    ) -> list[tuple[str, int]]:
        """Return the number of failures of each kind since a time, the most frequent first."""
        return await self._access.read(session_state.sum_failures, since=since, tenant=tenant)

    async def put_state(self, scope: str, key: str, value: Any) -> None:
        """Store a JSON value under a key of a scope, replacing an earlier one."""
        await self._access.write(session_state.put_state, self._access.clock(), scope, key, value)

    async def get_state(self, scope: str, key: str) -> Any | None:
        return await self._access.read(session_state.get_state, scope, key)

    async def list_nodes(self, thread_id: str) -> list[Node]:
        return await self._access.read(session_state.list_nodes, thread_id)
