"""Recognise a summary that the client wrote itself, by the words it shares with the conversation before it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from everthread.core.messages import text_of
from everthread.core.user_words import strip_surroundings

_WORDS_PER_RUN = 6
MIN_REPEATED_RUNS = 20
_MIN_REPEATED_SHARE = 0.25
"""Minimum share of the runs of words that a client's own summary has in common with the answer it was taken from.

Unrelated conversations of one project share at most 0.12 of the runs of their first messages (measured on eight
recorded sessions).
"""
_WORD_PATTERN = re.compile(r"\w+")


def list_opening_runs(wire_messages: Sequence[Any]) -> set[tuple[str, ...]]:
    """Return the runs of words in a client's messages before the first answer."""
    opening = itertools.takewhile(
        lambda value: isinstance(value, dict) and value.get("role") != "assistant",
        wire_messages,
    )
    return _list_word_runs(strip_surroundings("\n".join(text_of(value) for value in opening)))


def repeats_stored_words(runs: set[tuple[str, ...]], bodies: Sequence[Any]) -> bool:
    """Return whether the stored messages contain many of an opening's runs of words.

    If so, the opening is a summary that the model wrote in the stored conversation: the client compacted its history
    itself.
    """
    stored_runs = set().union(*(_list_word_runs(text_of(body)) for body in bodies))
    return len(runs & stored_runs) >= max(MIN_REPEATED_RUNS, _MIN_REPEATED_SHARE * len(runs))


def _list_word_runs(text: str) -> set[tuple[str, ...]]:
    """Return all sequences of `_WORDS_PER_RUN` adjacent words in a text."""
    words = _WORD_PATTERN.findall(text.lower())
    return set(zip(*(words[start:] for start in range(_WORDS_PER_RUN)), strict=False))
