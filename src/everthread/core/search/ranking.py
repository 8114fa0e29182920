"""How well what was said answers a question: rare words count more, a long text is diluted, neighbours help.

In a conversation the words of a question and those of its answer often stand in two messages that follow each other.
So a message also gets a share of what its neighbours of the same sitting score.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item", bound=Hashable)

TYPICAL = 150
"""Characters. A word in a longer text says less."""
NEAR: Mapping[int, float] = {-1: 0.5, 1: 0.3, -2: 0.2, 2: 0.1}
"""The share a message gets of what one so many places before (-) or behind (+) it scores: an answer follows."""
LEAST_TEXTS = 100
FEW_TEXTS = 8
OF_A_DAY = 3.0
"""What it counts to be of a day that is named: about a word that stands in every twentieth message."""
MOST_COUNTED = 6
"""A text that has the so many rarest words of a long question answers it whole."""


def rarity(held: int, total: int) -> float:
    """The weight of a word that so many of all texts hold (BM25's). Of few texts one cannot tell what is rare."""
    return math.log(1 + (max(total, held, LEAST_TEXTS) - held + 0.5) / (held + 0.5))


def is_telling(held: int, total: int) -> bool:
    """Whether a word that so many of all texts hold says what a text is about. Of a handful one cannot tell."""
    return total < FEW_TEXTS or held <= total / 4


def dilution(length: int) -> float:
    """What a text's score is divided by, for its length in characters."""
    return max(0.8, 1 + (math.log2(1 + length / TYPICAL) - 1) / 5)


def spread(scores: Sequence[float], sittings: Sequence[Hashable]) -> list[float]:
    """The scores of messages in a row, with what neighbours of the same sitting give to each."""
    found = list(scores)
    for place, sitting in enumerate(sittings):
        for step, share in NEAR.items():
            other = place + step
            if 0 <= other < len(scores) and sittings[other] == sitting:
                found[place] += share * scores[other]
    return found


def closeness(held: Sequence[float], asked: Sequence[float]) -> float:
    """From 0 to 1: how much of what was asked a text holds, by the weights of its words and of those asked for."""
    whole = sum(sorted(asked, reverse=True)[:MOST_COUNTED])
    return min(1.0, sum(held) / whole) if whole else 0.0
