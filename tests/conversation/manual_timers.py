"""Timers that end when the test says so."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class ManualTimers:
    """A `StartTimer` whose timers end when the test says so."""

    def __init__(self) -> None:
        self.waiting: dict[Callable[[], None], float] = {}
        """The seconds of each running timer, by its callback."""

    def __call__(self, seconds: float, callback: Callable[[], None]) -> Any:
        self.waiting[callback] = seconds
        return SimpleNamespace(cancel=lambda: self.waiting.pop(callback, None))

    def list_seconds(self) -> list[float]:
        return list(self.waiting.values())

    def end_all(self, seconds: float | None = None) -> None:
        """End every timer, or those of this length."""
        for callback, wait in list(self.waiting.items()):
            if seconds in (None, wait):
                self.waiting.pop(callback, None)
                callback()
