"""What the gateway's manager is made of: all of it given from outside."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from everthread.compaction.engine import ContextEngine, Services
from everthread.conversation.events import Event, Listener
from everthread.conversation.options import SessionOptions, SummarizerContext
from everthread.core.exchange import Api
from everthread.core.summary import Summarizer
from everthread.store.store import Store


def _unheard(event: Event) -> None:
    """For whoever does not listen."""


@dataclass(frozen=True, slots=True)
class ManagerSetup:
    """Everything a manager needs from outside."""

    store: Store
    engine: Callable[[Services], ContextEngine]
    engine_key: str
    """Names the engine with its options: a rewrite is only for those who would have made the same."""
    summarizer: Callable[[SummarizerContext], Summarizer]
    window: Callable[[Api, str, str], Awaitable[int]]
    """Of a model at an address: `window(api, model, upstream)`; asked once for each."""
    options: SessionOptions = field(default_factory=SessionOptions)
    cache_markers: bool = True
    """Set marks for Claude clients that set none."""
    emulate_state: bool = False
    """Resolve `previous_response_id` here, for upstreams that keep no state."""
    alone: Callable[[], bool] = lambda: False
    """Whether nobody else goes on from this store's threads; else a client is told its thread once that is stored."""
    listener: Listener = _unheard
    clock: Callable[[], float] = time.monotonic
    """Seconds that only grow."""
    wall: Callable[[], float] = time.time
