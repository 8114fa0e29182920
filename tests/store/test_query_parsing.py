"""Parsing of queries, and snippets that show the match."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.search.indexed_terms import encode_term
from everthread.store.search.index_query import (
    MAX_PHRASE_TERMS,
    MAX_QUERY_WORDS,
    parse_query,
)
from everthread.store.search.postgres_index import split_id_windows
from everthread.store.search.snippets import SNIPPET_CHARS, make_snippet


def describe_variants(query: str) -> str:
    """Return the ways to run a query, separated by `|`: phrases with commas between them, a prefix with a star."""
    return " | ".join(
        ", ".join(" ".join(phrase.terms) + "*" * phrase.last_is_prefix for phrase in phrases)
        for phrases in parse_query(query).variants
    )


@pytest.mark.parametrize(
    ("query", "variants"),
    [
        ("Hello world", "hello world | hello, world"),
        ('say "hello world"', "say, hello world"),
        ("conn*", "conn*"),
        ("app/conf*", "app conf*"),
        ("main.py", "main_2e_py | main py | main, py"),
        (
            "see main.py",
            "see main py | see, main_2e_py | see, main py | see, main, py",
        ),
        ('"main.py"', "main py"),
        ("getUserName", "getusername | get, user, name"),
        (
            "foo-bar,baz",
            "foo_2d_bar, baz | foo bar baz | foo, bar, baz",
        ),
        ("库", "库"),
        ("数据", "数据"),
        ("数据库", "数据 据库 | 数据, 据库"),
        ("哈哈哈", "哈哈 哈哈 | 哈哈"),
        ("数-据", "数 据 | 数, 据"),
        ("GPT模型", "gpt 模 型, 模型 | gpt, 模型"),
        ("数据*", "数据"),
        ('"unbalanced words', "unbalanced, words"),
        ('5" disk "a b"', "5, disk, a b"),
        (
            "a AND b OR NOT c",
            "a and b or not c | a, and, b, or, not, c",
        ),
        ("twice twice", "twice"),
        ('* ** "" " !', ""),
        ("", ""),
    ],
)
def test_parses_a_query_into_its_variants(query: str, variants: str) -> None:
    assert describe_variants(query) == variants


def test_a_long_query_is_cut() -> None:
    ((in_a_row,), words) = parse_query(" ".join(f"w{number}" for number in range(1_000))).variants
    assert len(in_a_row.terms) == MAX_QUERY_WORDS
    assert len(words) == MAX_QUERY_WORDS
    (phrase,) = parse_query('"' + " ".join(f"w{number}" for number in range(1_000)) + '"').variants[
        0
    ]
    assert len(phrase.terms) == MAX_PHRASE_TERMS


@given(st.text())
def test_every_text_is_a_query(text: str) -> None:
    asked = parse_query(text)
    terms = [term for phrases in asked.variants for phrase in phrases for term in phrase.terms]
    assert all(
        (term and term == encode_term(term).replace("__", "_")) or "_" in term for term in terms
    )
    assert not any(mark in term for term in terms for mark in " \"'\\*:&|!()<>\0")
    assert bool(asked.variants) == bool(asked.highlighted)


@given(st.integers(0, 2**41), st.integers(0, 2**41))
def test_id_windows_cover_every_id_once_newest_first(first: int, before: int) -> None:
    found = list(split_id_windows(first, before))
    for (_, start, _), (_, _, end) in pairwise(found):
        assert start == end
    if before > first:
        assert found[0][2] == before
        assert found[-1][1] == first
    assert all(first <= start < end <= before for _, start, end in found)
    assert all(end - start <= 2048 for _, start, end in found[:1])
    assert all(
        ((end - 1) >> bits) - (start >> bits) < 32 for bits, start, end in found if bits is not None
    )


FILLER = "lorem ipsum dolor sit amet " * 40


def snippet_of(text: str, query: str) -> str:
    return make_snippet(text, parse_query(query).highlighted)


def test_a_short_text_is_shown_whole_on_one_line() -> None:
    assert snippet_of("two\n  needles\there", "needles") == "two needles here"


def test_snippet_from_the_middle_of_a_long_text() -> None:
    shown = snippet_of(FILLER + "the needle is here " + FILLER, "needle")
    assert "the needle is here" in shown
    assert shown.startswith("…")
    assert shown.endswith("…")
    assert len(shown) <= SNIPPET_CHARS + 2


def test_snippet_at_the_end_has_full_length() -> None:
    shown = snippet_of(FILLER + "needle", "needle")
    assert shown.endswith("needle")
    assert len(shown) > SNIPPET_CHARS * 0.9


def test_a_snippet_shows_the_part_with_the_most_words() -> None:
    text = "alpha " + FILLER + "beta " + FILLER + "beta then alpha then gamma" + FILLER
    assert "beta then alpha then gamma" in snippet_of(text, "alpha beta gamma")


def test_snippet_prefers_a_whole_word() -> None:
    assert "the art of" in snippet_of("party start cart " + FILLER + "the art of " + FILLER, "art")
    assert "party" in snippet_of(FILLER + "party" + FILLER, "art")


@pytest.mark.parametrize(
    ("said", "query"),
    [
        ("Connection-Refused", '"connection refused"'),
        ("SRC/App/main.py", "src/app/main.py"),
        ("数据库", "数据"),
        ("ﬁle STRASSE", "file straße"),
        ("CAFE\u0301", "café"),
        ("ｎｅｅｄｌｅ", "needle"),
        ("configuration", "config*"),
        ("getUserName", "getUser"),
    ],
)
@pytest.mark.parametrize("before", ["lorem ipsum " * 60, "ﬁne ﬂow … e\u0301 " * 60, "中文，" * 200])
def test_snippet_shows_the_match_in_any_spelling(said: str, query: str, before: str) -> None:
    assert said in snippet_of(f"{before} {said} {before}", query)


def test_omitted_text_before_a_snippet_is_marked() -> None:
    assert make_snippet("needle", [("needle",)], is_continued=True) == "…needle"


def test_a_secret_the_index_did_not_know_is_not_shown() -> None:
    secret = "ghp_" + "a8Kd02mQpX7zLw4nRt6Yb1Vc9Je3Hu5Gs0Fo"
    for pad in range(0, 240, 10):
        shown = snippet_of(
            f"{'x ' * 300}needle {'y ' * (pad // 2)}token = {secret} {'z ' * 300}",
            "needle",
        )
        assert "needle" in shown
        assert not any(secret[at : at + 8] in shown for at in range(len(secret) - 8))


@given(st.text(max_size=400), st.text(max_size=20))
def test_any_text_has_a_snippet(text: str, query: str) -> None:
    shown = snippet_of(text, query)
    assert len(shown) <= SNIPPET_CHARS + 2 + len("[REDACTED]") * 4
    assert "\n" not in shown
