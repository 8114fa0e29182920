"""Compare two versions of a conversation, in which clients may re-word, shorten or decorate answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from everthread.core.messages import (
    SYSTEM_ROLES,
    calls_of,
    part_text,
    parts_of,
    text_of,
)
from everthread.core.types import Api
from everthread.core.user_words import remove_volatile_elements
from everthread.thread.matching.history import identify_message, parse_arguments

_WORD_PATTERN = re.compile(r"\w+")
_MIN_SHARED_WORDS_SHARE = 1 / 3
"""The minimum share of its words that an answer keeps when a client re-words it."""
_MIN_START_WORDS = 5
"""Minimum number of words of the stored message with which a shortened one begins."""
_MAX_MARKER_WORDS = 8
"""Maximum words of the marker at the end of a shortened message."""


def count_matching_messages(
    api: Api,
    sent: Sequence[Any],
    stored: Sequence[Any],
    is_model_answer: Callable[[int], bool],
) -> tuple[int, int]:
    """Count the sent and the stored messages that agree from the start.

    Skip reasoning and reminders that only one side has. A re-worded answer counts as the same, unless it is another
    answer of the model; `is_model_answer` returns that for the index of a sent message.
    """
    sent_count = stored_count = 0
    while True:
        while sent_count < len(sent) and _is_skipped(api, sent[sent_count]):
            sent_count += 1
        while stored_count < len(stored) and _is_skipped(api, stored[stored_count]):
            stored_count += 1
        if sent_count == len(sent) or stored_count == len(stored):
            return sent_count, stored_count
        is_same = _is_same_message(api, sent[sent_count], stored[stored_count])
        if not is_same:
            sent_parts, stored_parts = _count_split_answer(
                api, sent[sent_count:], stored[stored_count:]
            )
            if sent_parts:
                sent_count += sent_parts
                stored_count += stored_parts
                continue
        if not is_same and (
            is_model_answer(sent_count)
            or not _begins_with_rewording(api, sent[sent_count:], stored[stored_count:])
        ):
            return sent_count, stored_count
        sent_count = sent_count + 1
        stored_count = stored_count + 1


def _is_skipped(api: Api, value: Any) -> bool:
    """Return whether a message is reasoning or only a reminder, which one side may lack."""
    if isinstance(value, dict) and value.get("role") in SYSTEM_ROLES:
        return True
    return _is_reminder(value) or not identify_message(api, value).loose_fingerprint


def _is_reminder(value: Any) -> bool:
    """Return whether a message contains only a client's reminders."""
    if not isinstance(value, dict) or value.get("role") != "user":
        return False
    text = text_of(value)
    if not text.lstrip().startswith("<") or remove_volatile_elements(text).strip():
        return False
    return all(map(part_text, parts_of(value)))


def _is_same_message(api: Api, sent: Any, stored: Any) -> bool:
    """Return whether a sent message equals a stored one, ignoring cleared results and re-wording around calls."""
    sent_identity = identify_message(api, sent)
    stored_identity = identify_message(api, stored)
    if sent_identity.fingerprint == stored_identity.fingerprint:
        return True
    if sent_identity.loose_fingerprint == stored_identity.loose_fingerprint and len(
        sent_identity.result_hashes
    ) == len(stored_identity.result_hashes):
        pairs = zip(
            sent_identity.result_hashes,
            stored_identity.result_hashes,
            sent_identity.cleared_flags,
            strict=True,
        )
        return all(new == old or cleared for new, old, cleared in pairs)
    return _is_reworded(sent, stored)


def _count_split_answer(api: Api, sent: Sequence[Any], stored: Sequence[Any]) -> tuple[int, int]:
    """Return how many messages the first answer takes on each side if one side has split it into text and calls.

    Goose splits the newest answer, with a reminder between the parts. Return (0, 0) if neither side has split it.
    """
    if parts := _count_messages_forming_answer(api, stored[0], sent):
        return parts, 1
    if parts := _count_messages_forming_answer(api, sent[0], stored):
        return 1, parts
    return 0, 0


def _count_messages_forming_answer(api: Api, answer: Any, parts: Sequence[Any]) -> int:
    """Return how many messages together form an answer, its text first and then its calls, or 0 if they do not."""
    text = parts[0]
    if not _is_answer(answer) or not _is_answer(text):
        return 0
    if calls_of(text) or not text_of(text) or text_of(text) != text_of(answer):
        return 0
    for index, message in enumerate(parts[1:], start=1):
        if _is_skipped(api, message):
            continue
        is_remainder = _is_answer(message) and not text_of(message)
        if is_remainder and calls_of(message) and _is_reworded(message, answer):
            return index + 1
        return 0
    return 0


def _is_answer(value: Any) -> bool:
    return isinstance(value, dict) and value.get("role") == "assistant"


def _begins_with_rewording(api: Api, sent: Sequence[Any], stored: Sequence[Any]) -> bool:
    """Return whether both lists begin with the same answer in different words.

    The answer must have no calls and be followed by the same message on both sides. If the stored answer is the last
    message, any message of the client may follow.
    """
    sent_answer = sent[0]
    stored_answer = stored[0]
    if not _is_answer(sent_answer) or not _is_answer(stored_answer):
        return False
    if (
        calls_of(sent_answer)
        or calls_of(stored_answer)
        or len(sent) < 2
        or not _share_words(text_of(sent_answer), text_of(stored_answer))
    ):
        return False
    return len(stored) < 2 or _is_same_message(api, sent[1], stored[1])


def _share_words(text: str, other: str) -> bool:
    """Return whether the longer text has enough words of the shorter one; unrelated texts share few."""
    shorter, longer = sorted(
        (Counter(_WORD_PATTERN.findall(words_text.lower())) for words_text in (text, other)),
        key=Counter.total,
    )
    return (shorter & longer).total() >= max(1, _MIN_SHARED_WORDS_SHARE * shorter.total())


def _is_reworded(sent: Any, stored: Any) -> bool:
    """Return whether an assistant's message is the stored one in other words.

    The sent message may have other words around the same calls, have the calls as text, or be shortened. A different
    answer to the same question does not count.
    """
    if not _is_answer(sent) or not _is_answer(stored):
        return False
    calls = calls_of(sent)
    stored_calls = calls_of(stored)
    if calls:
        return [(call.name, parse_arguments(call.arguments)) for call in calls] == [
            (call.name, parse_arguments(call.arguments)) for call in stored_calls
        ]
    words = _WORD_PATTERN.findall(text_of(sent))
    stored_words = _WORD_PATTERN.findall(text_of(stored))
    if stored_calls:
        sent_words = set(words)
        return all(
            sent_words.issuperset(_WORD_PATTERN.findall(f"{call.name} {call.arguments}"))
            for call in stored_calls
        )
    shared_start = next(
        (
            index
            for index, (sent_word, stored_word) in enumerate(zip(words, stored_words, strict=False))
            if sent_word != stored_word
        ),
        len(words),
    )
    if len(words) < _MIN_START_WORDS or len(words) >= len(stored_words):
        return False
    # Each word after the previous one: thoughts or marks were removed.
    remaining_words = iter(stored_words)
    return (
        shared_start >= _MIN_START_WORDS and len(words) - shared_start <= _MAX_MARKER_WORDS
    ) or all(word in remaining_words for word in words)
