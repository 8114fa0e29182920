"""A person's own sentences, apart from what they pasted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.sentences import QUOTED, sentences


def texts(text: str) -> list[str]:
    return [sentence.text for sentence in sentences(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? four", ["One.", "Two!", "Three?", "four"]),
        ("See e.g. main.py or v1.2; then stop.", ["See e.g. main.py or v1.2;", "then stop."]),
        ("好的。请继续！可以吗？", ["好的。", "请继续！", "可以吗？"]),
        ("- first\n* second\n1. third\n・四つ目\n2、第五", ["first", "second", "third", "四つ目", "第五"]),
        ("before\n```py\nx = 1\n```\nafter", ["before", "after"]),
        ("before\n~~~\n```\n~~~\nafter", ["before", "after"]),
        ("```one line``` after\nnext", ["next"]),
        ("before\n```\nopen to the end", ["before"]),
        ("> quoted\nown", ["own"]),
        ("a <b>x</b> c", ["a <b>x</b> c"]),
        ("<a>x<a>y</a>z</a> end", ["end"]),
        ("1 < 2 and </a> stays", ["1 < 2 and </a> stays"]),
        ('user@host:~$ ls\nTraceback (most recent call last):\n  File "x"\nown', ["own"]),
        ("", []),
    ],
)
def test_split(text: str, expected: list[str]) -> None:
    assert texts(text) == expected


def test_quotations_are_masked_in_place() -> None:
    (sentence,) = sentences("Say 'hi' to \"them\", don't use `eval`.")
    assert sentence.masked == f"Say {QUOTED * 4} to {QUOTED * 6}, don't use {QUOTED * 6}."


def test_a_wrapped_line_goes_on_and_a_short_one_does_not() -> None:
    long = "word " * 13 + "end"
    assert texts(f"{long}\nof it") == [f"{long} of it"]
    assert texts("short\nof it") == ["short", "of it"]
    assert texts(f"{long}.\nof it") == [f"{long}.", "of it"]


def test_list_items_know_their_heading() -> None:
    found = sentences("Rules:\n- a\n- b\nother\n- c")
    assert [(sentence.text, sentence.heading) for sentence in found] == [
        ("Rules:", ""), ("a", "Rules:"), ("b", "Rules:"), ("other", ""), ("c", ""),
    ]  # fmt: skip


@given(st.text(st.sampled_from("ab .!?\n`\"'<>/-*1。「」:"), max_size=80))
def test_masks_keep_every_place(text: str) -> None:
    for sentence in sentences(text):
        assert len(sentence.text) == len(sentence.masked)
        assert sentence.masked.strip()
