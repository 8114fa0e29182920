"""The model of a conversation, with its limits, its token counter and its summariser."""

from __future__ import annotations

from dataclasses import dataclass, replace

from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from everthread.store.records import LimitKey
from everthread.thread.engines.plugin_engines import LoopSummarizer
from everthread.thread.model_limits import CallLimits
from everthread.thread.options import SessionOptions
from everthread.thread.policy.call_prices import CallPrices
from everthread.thread.route import Route


@dataclass(frozen=True, slots=True)
class ActiveModel:
    """The model that a conversation calls now."""

    route: Route
    limits: CallLimits
    options: SessionOptions
    """The settings for this model."""
    counter: TokenCounter
    summarizer: LoopSummarizer

    @property
    def name(self) -> str:
        return self.route.name

    @property
    def window(self) -> int:
        return self.limits.window

    @property
    def answering_name(self) -> str:
        """The name of the model that answers: the route's own, or its fallback."""
        return self.route.name if self.route.model is None else self.route.model.name

    @property
    def prices(self) -> CallPrices:
        route = self.route
        return CallPrices(
            route.name, route.provider, route.caches_by_marks, self.summarizer.summarizer
        )

    @property
    def nominal_budget(self) -> Budget:
        """The budget by the settings, whatever the size of system prompt and tools."""
        return self.options.budget(self.window)

    def make_limit_key(self, tenant: str) -> LimitKey:
        """Return the key under which a tenant's limits of the model are kept."""
        route = self.route
        return LimitKey(route.base_url, route.name, tenant=tenant, headers=route.headers)

    def with_window(self, window: int) -> ActiveModel:
        return replace(self, limits=replace(self.limits, window=window))
