"""How well a text answers a question: rare words count more, long texts less, neighbours help."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

TYPICAL_CHARS = 150
"""Characters. A word in a longer text says less."""
NEIGHBOUR_SHARES: Mapping[int, float] = {-1: 0.6, 1: 0.4, -2: 0.3, 2: 0.2}
"""Share of a word's score that a message gets if a neighbour has the word, by distance before (-) or after (+): an
answer follows its question."""
SITTING_SHARE = 0.75
"""Share of its sitting's best scores that each message of the sitting gets."""
SITTING_BEST = 2
"""How many messages say how well their sitting answers the question."""
SPEAKER_BONUS = 0.2
"""How much more a text counts if the question names its speaker."""
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


def share_words(
    held: Sequence[Mapping[int, float]], sittings: Sequence[int]
) -> list[dict[int, float]]:
    """Return the words that messages in a row get from their neighbours of the same sitting, with their scores.

    `held`: the numbers of each message's words, with their scores. A word that several neighbours have counts once, at
    its best.
    """
    borrowed: list[dict[int, float]] = [{} for _ in held]
    for index, words in enumerate(held):
        if not words:
            continue
        for step, share in NEIGHBOUR_SHARES.items():
            neighbour = index - step
            if not 0 <= neighbour < len(held) or sittings[neighbour] != sittings[index]:
                continue
            neighbour_words = borrowed[neighbour]
            for word, score in words.items():
                if share * score > neighbour_words.get(word, 0.0):
                    neighbour_words[word] = share * score
    return borrowed


def rate_sittings(scores: Sequence[float], sittings: Sequence[int]) -> dict[int, float]:
    """Return what each sitting adds to its messages: a share of the mean of their best scores."""
    by_sitting: defaultdict[int, list[float]] = defaultdict(list)
    for score, sitting in zip(scores, sittings, strict=True):
        by_sitting[sitting].append(score)
    return {
        sitting: SITTING_SHARE
        * sum(sorted(some, reverse=True)[:SITTING_BEST])
        / SITTING_BEST
        for sitting, some in by_sitting.items()
    }


def weigh_question(weights: Sequence[float]) -> float:
    """Return the weight of a text that answers a question whole, from the weights of the question's words."""
    return sum(sorted(weights, reverse=True)[:MAX_COUNTED])


def closeness(present: float, whole: float) -> float:
    """Return the share of a question that a text holds, 0 to 1: the weight of its words by that of the question."""
    return min(1.0, present / whole) if whole else 0.0
