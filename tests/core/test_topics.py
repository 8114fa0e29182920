"""What texts are about, and what they share."""

from __future__ import annotations

from everthread.core.topics import overlap, shared, subject, weight


def test_inflection_and_function_words_are_aside() -> None:
    assert subject("The locks were locking") == subject("locked lock were")
    assert shared("the eviction of the cache", "it evicts caches") == 2
    assert "42" in subject("port 42")


def test_a_pair_of_characters_is_half_a_word() -> None:
    assert weight(frozenset({"cache", "日志"})) == 1.5
    assert shared("日志保留期", "日志保留期") > 0


def test_overlap_is_a_share_of_the_first() -> None:
    assert overlap("cache eviction", "the cache is slow") == 0.5
    assert overlap("", "anything") == 0.0
