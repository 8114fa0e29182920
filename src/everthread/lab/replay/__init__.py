"""Replay a recorded conversation with Everthread: contexts, compactions and cost.

from everthread.lab.replay import replay

found = replay(messages, model="claude-sonnet-4-5", window=200_000)
found.ours.cost, found.ours.peak, found.compactions
"""

from everthread.lab.replay.result import (
    FactCounts,
    PlayedCall,
    PlayedCompaction,
    Replay,
    ReplayWay,
)
from everthread.lab.replay.runner import areplay, replay

__all__ = [
    "FactCounts",
    "PlayedCall",
    "PlayedCompaction",
    "Replay",
    "ReplayWay",
    "areplay",
    "replay",
]
