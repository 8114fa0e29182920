"""Distinguish random strings from names, paths and words.

Keys are drawn at random; names, paths and words are not. Three things distinguish them: the number of different
characters, how often neighbouring characters make a pair that words rarely have (a letter beside a digit, `xq`), and
whether the characters simply count up (`abcdef`, `123456`), as only an example does.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import pairwise
from math import log2

MAX_JUDGED_CHARS = 128
"""Maximum characters to read of a string; more would cost time without changing the result."""

_COMMON_PAIR_LIST = (
    "er in re te on at le en ti st es nt de or se co ar al ed et li ri ta tr ra me ro io an ng it ex ec ma nd ge di pe "
    "ne is ns as ac ct el pr ca pa ve la lo to ce ic si fi ea ch ll un ol ss na rs il rt th ad ou am ts no ur pl mp em "
    "nc im po he om id ut od mm op sc ha ab ep ke ap sp oc ck da ig bl os ot so ty fo mo pt mi cl xe sh ef ni rr va ie "
    "tt su us ul ag cr ho ba ee rc ia rm ir eg yp um ow gr up ip ls hi tc ev be do if ai sa qu ff vi xt lu rd ry tu lt "
    "ci cu iv sl ui gi nv nf"
)
_COMMON_PAIRS = frozenset(_COMMON_PAIR_LIST.split())
"""The 160 letter pairs that make up four fifths of the words in code and its prose, but a quarter of random letters."""

ALPHANUMERIC_PATTERN = re.compile(r"[A-Za-z0-9]+")
_HEX_PATTERN = re.compile(r"[0-9a-fA-F]+")


def shannon_entropy(text: str) -> float:
    """Return the bits per character, from the text's own character counts, or 0.0 for an empty text."""
    size = len(text)
    return sum(-count / size * log2(count / size) for count in Counter(text).values())


def is_sequence(text: str) -> bool:
    """Return whether a third or more of the neighbours count up by one: the alphabet or the digits, written out."""
    steps = sum(ord(next_char) - ord(char) == 1 for char, next_char in pairwise(text))
    return steps >= 4 and steps * 3 >= len(text)


@lru_cache(1024)
def is_random(text: str) -> bool:
    """Return whether a string of at least eight characters looks random, because most pairs of letters are unusual.

    Letters without digits must be at least sixteen in a row. Digits alone are never random: they are counts, dates and
    ids.
    """
    text = text[:MAX_JUDGED_CHARS]
    parts: list[str] = ALPHANUMERIC_PATTERN.findall(text)
    characters = "".join(parts)
    if (
        len(text) < 8
        or not characters
        or characters.isdigit()
        or shannon_entropy(text) < 2.6
        or is_sequence(text)
    ):
        return False
    if characters.isalpha():
        if max(map(len, parts)) < 16:
            return False
    elif _HEX_PATTERN.fullmatch(characters):
        return True
    pair_count = unusual_count = 0
    for part in parts:
        lower_part = part.lower()
        for char, next_char in pairwise(lower_part):
            if char.isalpha() or next_char.isalpha():
                pair_count += 1
                unusual_count += (
                    char.isdigit() or next_char.isdigit() or char + next_char not in _COMMON_PAIRS
                )
    return unusual_count >= 4 and unusual_count * 2 > pair_count
