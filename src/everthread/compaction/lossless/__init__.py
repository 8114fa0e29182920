"""The lossless engine: a graph of summaries over everything that was said, and tools to read the originals."""

from everthread.compaction.lossless.lossless_engine import (
    LosslessEngine,
    LosslessOptions,
    create,
)

__all__ = ["LosslessEngine", "LosslessOptions", "create"]
