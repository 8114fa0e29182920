"""Choose the context engine by the configuration."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everthread.config import Config, home_directory

if TYPE_CHECKING:
    from everthread.compaction.engine import ContextEngine, Services


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The configured engine and its options. Calling it creates an engine."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def from_config(cls, config: Config) -> EngineChoice:
        from everthread.compaction.registry import ALIASES

        name = config.context.engine
        options = dict(config.engines.get(name) or config.engines.get(ALIASES.get(name, name), {}))
        if name == "compressor":
            options.setdefault("template", config.compression.template)
        return cls(name, options)

    @property
    def is_built_in(self) -> bool:
        """Whether the engine is built in, so that it can run in worker processes."""
        from everthread.compaction.registry import find_engine

        return find_engine(self.name, home=home_directory()).origin == "built-in"

    def check(self) -> None:
        """Create an engine, so that an invalid one is reported at the start and not at each request."""
        from everthread.compaction.engine import Services
        from everthread.compaction.journal.journal_writer import JournalWriter
        from everthread.core.tokens import TokenCounter
        from everthread.core.tokens.budget import Budget

        counter = TokenCounter(None)
        self(
            Services(
                JournalWriter(counter),
                counter,
                Budget.for_window(128_000),
                time.monotonic,
            )
        )

    def __call__(self, services: Services) -> ContextEngine:
        from everthread.compaction.registry import create_engine

        return create_engine(self.name, services, self.options, home=home_directory())
