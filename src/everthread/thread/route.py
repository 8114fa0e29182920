"""A model and how to reach it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everthread.core.caching.claude_cache_marks import find_cache_route
from everthread.core.caching.openai_cache_breakpoints import accepts_breakpoints
from everthread.core.caching.provider_diagnosis import ask_for_diagnosis
from everthread.core.types import Api, StreamingModel


@dataclass(frozen=True, slots=True)
class Route:
    """The model of a conversation and how to reach it. If `model` is None, the caller sends the requests."""

    name: str
    api: Api
    window: int
    source: str = "given"
    """The source of the window, as a text for the user."""
    base_url: str = ""
    provider: str = "auto"
    headers: str = ""
    """The headers that change the window, joined into one text."""
    model: StreamingModel | None = None

    @property
    def caches_by_marks(self) -> bool:
        """Whether the provider caches only up to marks that a request sets."""
        return find_cache_route(self.name, self.provider, self.base_url) is not None

    def ask_for_diagnosis(self, previous_id: str) -> dict[str, Any]:
        """Return the field that asks the provider why its cache missed, if it answers."""
        return ask_for_diagnosis(
            self.api, self.name, self.provider, self.base_url, previous_id=previous_id
        )

    @property
    def accepts_breakpoints(self) -> bool:
        """Whether the cache matches at breakpoints that a request can set."""
        return accepts_breakpoints(self.api, self.name, self.provider, self.base_url)
