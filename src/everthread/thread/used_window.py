"""The window that the last call of a thread used, stored with what the thread learnt from its calls.

Another process knows the settings and the catalogue, but not what a server said about its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everthread.store.records import ThreadRow
from everthread.store.store import Store
from everthread.thread.options import Route

CALLER_STATE = "gateway"
"""The key of what a proxied thread learnt, by its thread."""
CONVERSATION_STATE = "calibration"
"""The key of what one of our own conversations learnt, by its session."""
_FIELD = "window"


@dataclass(frozen=True, slots=True)
class UsedWindow:
    """A window, where compaction starts in it, and the model and the source it comes from."""

    model: str
    tokens: int
    threshold: int
    source: str = ""
    """Empty if it is not known."""

    def dump(self) -> dict[str, Any]:
        """Return the field to add to the stored state."""
        fields = {
            "model": self.model,
            "tokens": self.tokens,
            "threshold": self.threshold,
            "source": self.source,
        }
        return {_FIELD: fields}


def describe_window(window: int, route: Route) -> str:
    """Return a window in use and its source; a limit learnt since the start replaces the first source."""
    size = f"{window:,} tokens"
    if window != route.window:
        return f"{size}, learnt from the provider"
    return route.source if route.source.startswith(size) else f"{size} ({route.source})"


async def load_used_window(store: Store, row: ThreadRow) -> UsedWindow | None:
    """Return the window that a thread's last call used; None if no call stored one."""
    own = _read(await store.get_state(row.tip.id, CONVERSATION_STATE))
    return own or await load_caller_window(store, row.first.id)


async def load_caller_window(store: Store, thread: str) -> UsedWindow | None:
    """Return the window of the last call in a thread whose caller keeps the history."""
    return _read(await store.get_state(thread, CALLER_STATE))


def _read(state: Any) -> UsedWindow | None:
    used = state.get(_FIELD) if isinstance(state, Mapping) else None
    return UsedWindow(**used) if isinstance(used, Mapping) else None
