"""The lossless engine: a graph of summaries over everything that was said, and tools to read the originals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everthread.compaction.engine import ContextEngine, Services
from everthread.compaction.lossless.engine import LosslessEngine
from everthread.compaction.lossless.options import Options

__all__ = ["LosslessEngine", "Options", "create"]


def create(services: Services, options: Mapping[str, Any]) -> ContextEngine:
    """The registry's way to make one."""
    return LosslessEngine(services, Options.of(options))
