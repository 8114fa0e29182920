"""From a configuration to whoever makes its context engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everthread.config import Config, home_directory

if TYPE_CHECKING:
    from everthread.compaction.engine import ContextEngine, Services


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """The configured engine with its options; called, it makes one."""

    name: str
    options: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config) -> EngineChoice:
        from everthread.compaction.registry import ALIASES

        name = config.context.engine
        options = dict(config.engines.get(name) or config.engines.get(ALIASES.get(name, name), {}))
        if name == "compressor":
            options.setdefault("template", config.compression.template)
        return cls(name, options)

    def __call__(self, services: Services) -> ContextEngine:
        from everthread.compaction.registry import create_engine

        return create_engine(self.name, services, self.options, home=home_directory())
