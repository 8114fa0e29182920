"""The window that a thread's last call used, stored with the thread.

Other processes know the settings and the catalogue of models, but not the window that a server reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from everthread.store.records import ThreadRow
from everthread.store.store import Store
from everthread.thread.route import Route

CALLER_STATE = "gateway"
"""Key of the state that a proxied thread learnt, stored per thread."""
CONVERSATION_STATE = "calibration"
"""Key of the state that a conversation learnt, stored per session."""
_WINDOW_FIELD = "window"


@dataclass(frozen=True, slots=True)
class UsedWindow:
    """A window, its compaction threshold, its model and its source."""

    model: str
    tokens: int
    threshold: int
    source: str = ""
    """How the window was found, or an empty string if that is not known."""

    def dump(self) -> dict[str, Any]:
        """Return the field to add to the stored state."""
        return {_WINDOW_FIELD: asdict(self)}


def describe_window(window: int, route: Route) -> str:
    """Describe the window in use and its source: the route's, or the provider if the window was learnt since."""
    size_text = f"{window:,} tokens"
    if window != route.window:
        return f"{size_text}, learnt from the provider"
    return route.source if route.source.startswith(size_text) else f"{size_text} ({route.source})"


async def load_used_window(store: Store, row: ThreadRow) -> UsedWindow | None:
    """Return the window that a thread's last call used, or None if no call stored one."""
    own_window = _read_window(await store.state.get_state(row.tip.id, CONVERSATION_STATE))
    return own_window or await load_caller_window(store, row.first.id)


async def load_caller_window(store: Store, thread: str) -> UsedWindow | None:
    """Return the window of the last call in a thread whose caller keeps the history."""
    return _read_window(await store.state.get_state(thread, CALLER_STATE))


def _read_window(state: Any) -> UsedWindow | None:
    fields = state.get(_WINDOW_FIELD) if isinstance(state, Mapping) else None
    return UsedWindow(**fields) if isinstance(fields, Mapping) else None
