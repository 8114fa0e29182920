"""Pass events on to an object that is opened after the source of the events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class EventRelay(Generic[T]):
    """A listener that passes events on to another one. Until `listener` is set, events are dropped."""

    def __init__(self) -> None:
        self.listener: Callable[[T], None] | None = None

    def __call__(self, event: T) -> None:
        if self.listener is not None:
            self.listener(event)
