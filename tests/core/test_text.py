"""Shorten texts for people."""

from __future__ import annotations

from everthread.core.text import clip, count_noun, excerpt, one_line


def test_one_line_has_no_control_characters() -> None:
    assert one_line("one\n  two") == "one two"
    assert one_line("\x1b[31mred\x1b[0m\n  and\tplain\x00 ") == "red and plain"


def test_a_clipped_text_fits_and_says_that_it_was_cut() -> None:
    assert clip("short", 5) == "short"
    assert clip("a long text", 7) == "a long…"
    assert clip("a long text", 0) == ""


def test_a_count_has_its_noun_in_the_right_number() -> None:
    assert [count_noun(number, "message") for number in (0, 1, 2_000)] == [
        "0 messages",
        "1 message",
        "2,000 messages",
    ]


def test_an_excerpt_is_one_printable_line_of_at_most_a_width() -> None:
    assert excerpt("one\n\x1b two") == "one two"
    assert excerpt("word " * 100, 10) == "word word…"
