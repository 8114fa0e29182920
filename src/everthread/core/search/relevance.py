"""How well a text answers a question: rare words count more, long texts less, neighbours help."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

TYPICAL_CHARS = 150
"""Characters. A word in a longer text says less."""
NEIGHBOUR_SHARES: Mapping[int, float] = {-1: 0.5, 1: 0.3, -2: 0.2, 2: 0.1}
"""Share of a neighbour's score that a message gets, by distance before (-) or after (+): an answer follows."""
MIN_TEXTS = 100
FEW_TEXTS = 8
DAY_SCORE = 3.0
"""Score for matching a named day: about that of a word found in every twentieth message."""
MAX_COUNTED = 6
"""A text with this many of a long question's rarest words answers it whole."""


def rarity(holding: int, total: int) -> float:
    """Return the BM25 weight of a word found in `holding` of `total` texts. Few texts cannot show rarity."""
    return math.log(
        1 + (max(total, holding, MIN_TEXTS) - holding + 0.5) / (holding + 0.5)
    )


def is_telling(holding: int, total: int) -> bool:
    """Return whether a word is rare enough to describe a text. A handful of texts cannot show that."""
    return total < FEW_TEXTS or holding <= total / 4


def dilution(length: int) -> float:
    """Return the divisor of a text's score for its length in characters."""
    return max(0.8, 1 + (math.log2(1 + length / TYPICAL_CHARS) - 1) / 5)


def spread(scores: Sequence[float], sittings: Sequence[Hashable]) -> list[float]:
    """Return the scores of messages in a row, each raised by its neighbours of the same sitting."""
    totals = list(scores)
    for index, sitting in enumerate(sittings):
        for step, share in NEIGHBOUR_SHARES.items():
            other = index + step
            if 0 <= other < len(scores) and sittings[other] == sitting:
                totals[index] += share * scores[other]
    return totals


def closeness(present: Sequence[float], wanted: Sequence[float]) -> float:
    """Return the share of a question that a text holds, 0 to 1: the weights of its words by those of the question's."""
    most = sum(sorted(wanted, reverse=True)[:MAX_COUNTED])
    return min(1.0, sum(present) / most) if most else 0.0
