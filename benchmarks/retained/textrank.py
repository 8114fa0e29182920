"""Make a plain text-rank extract: the lines most similar to all others, in order, within a number of tokens.

Lines are nodes, and the words that two lines share are the edge between them. The rank is found by power iteration,
without storing the edges: going from lines to words and back is the same product, in linear time.

"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

ROUNDS = 12
DAMPING = 0.85
MAX_LINE_CHARS = 400
"""Characters to keep of a line."""
_WORD = re.compile(r"[a-z_][\w]{2,}|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]", re.IGNORECASE)


def extract(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """Return the extract of a text."""
    lines = [line.strip()[:MAX_LINE_CHARS] for line in text.split("\n")]
    lines = [line for line in dict.fromkeys(lines) if len(_WORD.findall(line)) >= 3]
    ranked = sorted(zip(_rank_lines(lines), range(len(lines)), strict=True), reverse=True)
    chosen: list[int] = []
    left = tokens
    for _, place in ranked:
        price = count(lines[place]) + 1
        if price <= left:
            left -= price
            chosen.append(place)
        if left < 8:
            break
    return "\n".join(lines[place] for place in sorted(chosen))


def _rank_lines(lines: Sequence[str]) -> list[float]:
    """Return the rank of every line. The weight of shared words falls with the logarithm of the line's length."""
    words = [Counter(word.lower() for word in _WORD.findall(line)) for line in lines]
    frequency = Counter(word for line in words for word in line)
    vectors = [
        [(word, 1 / math.log(2 + len(line))) for word in line if frequency[word] > 1]
        for line in words
    ]
    totals: dict[str, float] = defaultdict(float)
    for vector in vectors:
        for word, weight in vector:
            totals[word] += weight
    degrees = [sum(weight * totals[word] for word, weight in vector) or 1.0 for vector in vectors]
    ranks = [1.0] * len(lines)
    for _ in range(ROUNDS):
        shared: dict[str, float] = dict.fromkeys(totals, 0.0)
        for rank, degree, vector in zip(ranks, degrees, vectors, strict=True):
            for word, weight in vector:
                shared[word] += rank / degree * weight
        ranks = [
            1 - DAMPING + DAMPING * sum(weight * shared[word] for word, weight in vector)
            for vector in vectors
        ]
    return ranks
