"""Replay a recorded conversation with Everthread: contexts, compactions and cost.

from everthread.lab.replay import replay

result = replay(messages, model="claude-sonnet-4-5", window=200_000)
result.everthread.cost, result.everthread.peak, result.compactions
"""

from everthread.lab.replay.result import (
    FactCounts,
    PlayedCall,
    PlayedCompaction,
    Replay,
    StrategyResult,
)
from everthread.lab.replay.run_replay import areplay, replay

__all__ = [
    "FactCounts",
    "PlayedCall",
    "PlayedCompaction",
    "Replay",
    "StrategyResult",
    "areplay",
    "replay",
]
