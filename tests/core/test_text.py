"""Texts that are shown in one line."""

from __future__ import annotations

from everthread.core.messages import clip, one_line


def test_one_line_has_no_control_characters() -> None:
    assert one_line("\x1b[31mred\x1b[0m\n  and\tplain\x00 ") == "red and plain"


def test_a_clipped_text_fits_and_says_that_it_was_cut() -> None:
    assert clip("short", 5) == "short"
    assert clip("a long text", 7) == "a long…"
    assert clip("a long text", 0) == ""
