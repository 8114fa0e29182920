"""Search terms: an indexed text is found, by the whole and by parts."""

from __future__ import annotations

import re
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.search.indexed_terms import (
    MAX_CACHED_CHUNKS,
    encode_term,
    make_index_text,
)
from everthread.core.search.term_patterns import MAX_TERM_CHARS
from everthread.core.search.terms import (
    list_identifiers,
    list_phrase_terms,
    list_query_terms,
    list_terms,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, World hello", ["hello", "world", "hello"]),
        ("getUserName", ["getusername", "get", "user", "name"]),
        ("user_name", ["user", "name", "user_name"]),
        ("HTTPServer2", ["httpserver2", "http", "server2"]),
        ("src/app/main.py", ["src", "app", "main", "py", "src/app/main.py", "main.py"]),
        ("v1.2.3", ["v1", "2", "3", "v1.2.3"]),
        ("--flag-name", ["flag", "name", "flag-name"]),
        (
            "a.b@example.com",
            ["a", "b", "example", "com", "a.b@example.com", "a.b", "example.com"],
        ),
        ("E0308", ["e0308"]),
        ("K1hd", ["k1hd"]),
        ("Größe getUser", ["grösse", "getuser", "get", "user"]),
        ("ERR_NOT_FOUND", ["err", "not", "found", "err_not_found"]),
        ("3f2a9c1e", ["3f2a9c1e"]),
        ("/etc/hosts", ["etc", "hosts", "etc/hosts"]),
        ("std::vector<int>", ["std", "vector", "int", "std::vector"]),
        ("aGVsbG8gd29ybGQ", ["agvsbg8gd29ybgq"]),
        ("数据库", ["数", "据", "库", "数据", "据库"]),
        ("改src/a.py吧", ["改", "src", "a", "py", "吧", "src/a.py", "a.py"]),
        ("テスト", ["テ", "ス", "ト", "テス", "スト"]),
        ("검색", ["검", "색", "검색"]),
        ("ＡＢＣ Straße", ["abc", "strasse"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("✅ done 🎉", ["✅", "done", "🎉"]),
        ("Größe größenÄndern", ["grösse", "grössenändern"]),
        ("a—b “c” ⚠️ d", ["a", "b", "c", "⚠", "d"]),
        ("½ か\u3099", ["1", "2", "が"]),
        ("", []),
        (" .,;!? ", []),
    ],
)
def test_splits_text_into_terms(text: str, expected: list[str]) -> None:
    assert list_terms(text) == expected
    assert make_index_text(text) == " ".join(map(encode_term, expected))


@pytest.mark.parametrize(
    ("query", "strict", "loose"),
    [
        ("src/app/main.py", ["src", "app", "main", "py"], ["src", "app", "main", "py"]),
        ("getUser getUser", ["getuser"], ["get", "user"]),
        ("GitHub", ["github"], ["git", "hub"]),
        ("数据库", ["数据", "据库"], ["数据", "据库"]),
        ("库", ["库"], ["库"]),
        ("改 main.py", ["改", "main", "py"], ["改", "main", "py"]),
    ],
)
def test_reads_query_terms_strictly_and_loosely(
    query: str, strict: list[str], loose: list[str]
) -> None:
    assert list_query_terms(query) == strict
    assert list_query_terms(query, loose=True) == loose


def test_lists_identifiers_as_typed() -> None:
    assert list_identifiers("the src/app/main.py getUserName user_name src/app/main.py") == [
        "src/app/main.py",
        "user_name",
    ]
    assert list_identifiers("x-" * MAX_TERM_CHARS + "x") == []
    assert list_identifiers("src/app/main.py")[0] in list_terms("in /home/me: src/app/main.py.")


def test_bounds_long_words_and_compounds() -> None:
    word = "x" * (2 * MAX_TERM_CHARS + 3)
    assert [len(term) for term in list_terms(word)] == [MAX_TERM_CHARS, MAX_TERM_CHARS, 3]
    assert set(list_query_terms(word)) <= set(list_terms(f"a {word}, b"))
    assert max(map(len, list_terms("é" + "-Ab" * 1_000))) <= MAX_TERM_CHARS
    assert all(
        len(term) <= 5 * MAX_TERM_CHARS
        for term in list_terms("e\u0301\u0301\u0301\u0301\u0301\u0301" * 1_000)
    )


ascii_piece = st.from_regex(r"[A-Za-z0-9]{1,8}", fullmatch=True)
identifier = st.builds(
    lambda parts, joint: joint.join(parts),
    st.lists(ascii_piece, min_size=1, max_size=4),
    st.sampled_from("_-./:@"),
)
word = st.text(
    st.characters(categories=["Ll", "Lu", "Lo", "Nd"], max_codepoint=0x24F),
    min_size=1,
    max_size=8,
)
cjk = st.text(st.sampled_from("数据库连接超时テストを実行검색어입력ー々"), min_size=1, max_size=6)
query = st.lists(st.one_of(identifier, word, cjk), min_size=1, max_size=3).map(" ".join)
edge = st.text(st.sampled_from(" \n,;!()[]<>/._-:=\"'改行カ한"), min_size=1, max_size=3)
around = st.text(max_size=12)


@given(around, edge, query, edge, around)
def test_every_text_that_contains_the_query_matches(
    before: str, left: str, wanted: str, right: str, after: str
) -> None:
    text = f"{before}{left}{wanted}{right}{after}"
    assert set(list_query_terms(wanted)) <= set(list_terms(text))


@given(around, query, around)
def test_phrase_is_a_run_of_terms(before: str, wanted: str, after: str) -> None:
    found = list_terms(f"{before} {wanted} {after}")
    run = list_phrase_terms(wanted)
    assert any(found[place : place + len(run)] == run for place in range(len(found)))


@given(
    st.one_of(
        st.text(),
        query,
        st.lists(
            st.one_of(
                identifier,
                cjk,
                st.sampled_from(
                    [
                        "—",
                        "…",
                        "→",
                        "⚠️",
                        "’",
                        "ﬁ",
                        "½",
                        "e\u0301",
                        "か\u3099",
                        "ᄒ",
                        "한",
                    ]
                ),
            )
        ).map("".join),
    )
)
def test_indexed_terms_are_the_terms(text: str) -> None:
    assert make_index_text(text).split() == [encode_term(term) for term in list_terms(text)]


def test_indexes_the_parts_of_words_with_accents() -> None:
    text = "élèveNom"
    assert make_index_text(text) == " ".join(map(encode_term, list_terms(text)))
    assert len(list_terms(text)) > 1


def test_indexes_words_beyond_the_cache_size() -> None:
    words = [f"word{number}" for number in range(MAX_CACHED_CHUNKS + 10)]
    assert make_index_text(" ".join(words)).split() == words
    assert make_index_text("word3 word4") == "word3 word4"


@given(st.text())
def test_terms_are_clean_and_deterministic(text: str) -> None:
    found = list_terms(text)
    assert found == list_terms(text)
    for term in found:
        assert term
        assert not any(char.isspace() or char in "\"'" for char in term)


def decode_term(token: str) -> str:
    return re.sub(
        r"_(?:_|([0-9a-f]+)_)",
        lambda match: chr(int(match[1], 16)) if match[1] else "_",
        token,
    )


@given(st.text(min_size=1))
def test_encoding_is_reversible(text: str) -> None:
    token = encode_term(text)
    assert decode_term(token) == text
    assert all(
        char == "_"
        or (
            char.isalnum()
            and (not char.isascii() or char in "abcdefghijklmnopqrstuvwxyz0123456789")
        )
        for char in token
    )


@given(st.text(), st.text())
def test_encoding_keeps_prefixes(start: str, rest: str) -> None:
    assert encode_term(start + rest).startswith(encode_term(start))


def test_encoded_terms_are_single_tokens_of_full_text_search() -> None:
    found = list_terms(
        "src/app/main.py user_name naïve数据库 v1.2.3 a.b@example.com हिन्दी ✅ 🎉 C:\\x ﬁn Ǆ"
    )
    database = sqlite3.connect(":memory:")
    try:
        database.execute(
            "create virtual table t using fts5(x, tokenize=\"unicode61 remove_diacritics 0 tokenchars '_'\")"
        )
    except sqlite3.OperationalError:
        pytest.skip("this Python's SQLite has no FTS5")
    database.execute("insert into t values (?)", (" ".join(map(encode_term, found)),))
    database.execute("create virtual table v using fts5vocab(t, 'row')")
    indexed = {row[0] for row in database.execute("select term from v")}
    database.close()
    assert {decode_term(token) for token in indexed} == set(found)
