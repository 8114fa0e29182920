"""Rate how well a text answers a question: rare words count more, long texts less, neighbours help.

A conversation is a run of messages without a long pause between them.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

TYPICAL_TEXT_CHARS = 150
"""Typical length of a text in characters; a word in a longer text counts less."""
NEIGHBOUR_SHARES: Mapping[int, float] = {-1: 0.6, 1: 0.4, -2: 0.3, 2: 0.2}
"""Share of a word's score that a message gets if a neighbour has the word, by distance before (-) or after (+): an
answer follows its question."""
CONVERSATION_SCORE_WEIGHT = 0.75
"""Weight of a conversation's best scores in the score of each of its messages."""
CONVERSATION_BEST_COUNT = 2
"""How many of the best messages rate their conversation."""
SPEAKER_BONUS = 0.2
"""How much more a text counts if the question names its speaker."""
MIN_TEXTS_FOR_RARITY = 100
MIN_TEXTS_FOR_DISTINCTION = 8
DAY_SCORE = 3.0
"""Score for matching a named day: about that of a word found in every twentieth message."""
MAX_COUNTED_WORDS = 6
"""A text with this many of a long question's rarest words counts as a full answer."""


def compute_rarity(holding_count: int, total_count: int) -> float:
    """Return the BM25 weight of a word found in `holding_count` of all texts. Few texts cannot show rarity."""
    return math.log(
        1
        + (max(total_count, holding_count, MIN_TEXTS_FOR_RARITY) - holding_count + 0.5)
        / (holding_count + 0.5)
    )


def is_distinctive(holding_count: int, total_count: int) -> bool:
    """Return whether a word is rare enough to describe a text. A handful of texts cannot show that."""
    return total_count < MIN_TEXTS_FOR_DISTINCTION or holding_count <= total_count / 4


@functools.lru_cache(maxsize=1 << 12)
def compute_length_penalty(length: int) -> float:
    """Return the divisor of a text's score for its length in characters."""
    return max(0.8, 1 + (math.log2(1 + length / TYPICAL_TEXT_CHARS) - 1) / 5)


def borrow_words(
    words_by_message: Sequence[Mapping[int, float]], conversation_numbers: Sequence[int]
) -> list[dict[int, float]]:
    """Return the words that each message gets from its neighbours in the same conversation, with their scores.

    `words_by_message`: for each message, the score of each of its words, by the word's number. A word that several
    neighbours have counts once, with its best score.
    """
    borrowed_words: list[dict[int, float]] = [{} for _ in words_by_message]
    for index, words in enumerate(words_by_message):
        if not words:
            continue
        for step, share in NEIGHBOUR_SHARES.items():
            neighbour = index - step
            if (
                not 0 <= neighbour < len(words_by_message)
                or conversation_numbers[neighbour] != conversation_numbers[index]
            ):
                continue
            neighbour_words = borrowed_words[neighbour]
            for word, score in words.items():
                if share * score > neighbour_words.get(word, 0.0):
                    neighbour_words[word] = share * score
    return borrowed_words


def rate_conversations(
    scores: Sequence[float], conversation_numbers: Sequence[int]
) -> dict[int, float]:
    """Return the score that each conversation adds to its messages: a share of the mean of their best scores."""
    by_conversation: defaultdict[int, list[float]] = defaultdict(list)
    for score, conversation in zip(scores, conversation_numbers, strict=True):
        by_conversation[conversation].append(score)
    return {
        conversation: CONVERSATION_SCORE_WEIGHT
        * _sum_best(conversation_scores)
        / CONVERSATION_BEST_COUNT
        for conversation, conversation_scores in by_conversation.items()
    }


def _sum_best(scores: Sequence[float]) -> float:
    """Return the sum of the best scores of a conversation. Most have one message."""
    if len(scores) == 1:
        return scores[0]
    return sum(sorted(scores, reverse=True)[:CONVERSATION_BEST_COUNT])


def weigh_question(weights: Sequence[float]) -> float:
    """Return the weight of a full answer to a question, from the weights of the question's words."""
    return sum(sorted(weights, reverse=True)[:MAX_COUNTED_WORDS])


def rate_closeness(text_weight: float, question_weight: float) -> float:
    """Return the share of a question that a text answers, 0 to 1: its weight divided by the question's."""
    return min(1.0, text_weight / question_weight) if question_weight else 0.0
