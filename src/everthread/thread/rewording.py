"""Compare two versions of a conversation: a client may re-word, shorten or decorate answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from everthread.core.messages import SYSTEM_ROLES, calls_of, text_of
from everthread.core.types import Api
from everthread.thread.history import identify, parse_arguments

_WORD = re.compile(r"\w+")
_MIN_SHARED_WORDS = 1 / 3
"""The share of its words that an answer keeps when a client re-words it."""
_FEWEST_WORDS = 5
_MARKER_WORDS = 8
"""A shortened message begins with `_FEWEST_WORDS` words of the stored one; its marker has at most `_MARKER_WORDS`."""


def align(
    api: Api,
    values: Sequence[Any],
    stored: Sequence[Any],
    is_given: Callable[[int], bool],
) -> tuple[int, int]:
    """Count the messages of a client, and the stored ones, that say the same from the start.

    Skip reasoning and reminders that only one side has. An answer in other words counts as the same, unless the model
    gave that one too: `is_given` returns this for the index of a client's message.
    """
    mine = theirs = 0
    while True:
        while mine < len(values) and _is_passed_over(api, values[mine]):
            mine += 1
        while theirs < len(stored) and _is_passed_over(api, stored[theirs]):
            theirs += 1
        if mine == len(values) or theirs == len(stored):
            return mine, theirs
        agrees = _agree(api, values[mine], stored[theirs])
        if not agrees and (
            is_given(mine) or not _is_other_wording(api, values[mine:], stored[theirs:])
        ):
            return mine, theirs
        mine = mine + 1
        theirs = theirs + 1


def _is_passed_over(api: Api, value: Any) -> bool:
    if isinstance(value, dict) and value.get("role") in SYSTEM_ROLES:
        return True
    return not identify(api, value).skeleton


def _agree(api: Api, mine: Any, stored: Any) -> bool:
    one = identify(api, mine)
    other = identify(api, stored)
    if one.fingerprint == other.fingerprint:
        return True
    if one.skeleton == other.skeleton and len(one.results) == len(other.results):
        pairs = zip(one.results, other.results, one.cleared, strict=True)
        return all(new == old or cleared for new, old, cleared in pairs)
    return _is_reworded(mine, stored)


def _is_other_wording(api: Api, values: Sequence[Any], stored: Sequence[Any]) -> bool:
    """Return whether both begin with the same answer in different words.

    It must have no calls and be followed by the same message. At the end of the stored messages, anything the client
    says may follow.
    """
    mine = values[0]
    theirs = stored[0]
    if not all(
        isinstance(value, dict) and value.get("role") == "assistant"
        for value in (mine, theirs)
    ):
        return False
    if (
        calls_of(mine)
        or calls_of(theirs)
        or len(values) < 2
        or not _share_words(text_of(mine), text_of(theirs))
    ):
        return False
    return len(stored) < 2 or _agree(api, values[1], stored[1])


def _share_words(text: str, other: str) -> bool:
    """Return whether the longer text has enough words of the shorter one; unrelated texts share few."""
    shorter, longer = sorted(
        (Counter(_WORD.findall(one.lower())) for one in (text, other)),
        key=Counter.total,
    )
    return (shorter & longer).total() >= max(1, _MIN_SHARED_WORDS * shorter.total())


def _is_reworded(mine: Any, stored: Any) -> bool:
    """Return whether an assistant's message is the stored one in other words.

    It may have other words around the same calls, its calls as text, or be shortened. A different answer to the same
    question does not count.
    """
    if not all(
        isinstance(value, dict) and value.get("role") == "assistant"
        for value in (mine, stored)
    ):
        return False
    calls = calls_of(mine)
    stored_calls = calls_of(stored)
    if calls:
        return [(call.name, parse_arguments(call.arguments)) for call in calls] == [
            (call.name, parse_arguments(call.arguments)) for call in stored_calls
        ]
    words = _WORD.findall(text_of(mine))
    stored_words = _WORD.findall(text_of(stored))
    if stored_calls:
        named = set(words)
        return all(
            named.issuperset(_WORD.findall(f"{call.name} {call.arguments}"))
            for call in stored_calls
        )
    alike = next(
        (
            index
            for index, (a, b) in enumerate(zip(words, stored_words, strict=False))
            if a != b
        ),
        len(words),
    )
    if len(words) < _FEWEST_WORDS or len(words) >= len(stored_words):
        return False
    remaining = iter(
        stored_words
    )  # each word after the previous one: thoughts or marks were removed
    return (alike >= _FEWEST_WORDS and len(words) - alike <= _MARKER_WORDS) or all(
        word in remaining for word in words
    )
