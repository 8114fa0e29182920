"""Names in a text: URLs, paths, hashes, identifiers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.mentions import CHECKABLE, IDENTIFIER, checkable_tokens, mentions

SHA = "3f2a9c1e5b7d9f0a1c3e5b7d9f0a1c3e5b7d9f0a"


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("url", "https://example.com/a_(b)/c?x=1,2 ssh://git@host/x postgres://db:5432/app"),
        (
            "path",
            r"src/app/main.py README.md Makefile .env ./run ../lib /etc/hosts /tmp ~/notes C:\Users\a.txt app-1.log",
        ),
        ("hash", f"3f2a9c1 {SHA} sha256:{SHA}{SHA[:24]} 550e8400-e29b-41d4-a716-446655440000"),
        (
            "identifier",
            "getUserName user_name UserService Foo.bar_baz std::vector __init__ app.userName",
        ),
        ("identifier", "E0308 TS2345 ENOENT PROJ-123 CVE-2024-12345 #4711 --dry-run $HOME VA5SGQ a@b.com @scope/pkg"),
        ("value", "timeout=30 DEBUG=true v1.2.3 3.11.7rc1 localhost:3000 10.0.0.1:80 #b5bd68 2025-11-21"),
    ],
)
def test_kinds(kind: str, names: str) -> None:
    for name in names.split():
        assert list(mentions(f"look at {name}, then")) == [(kind, name)], name


@pytest.mark.parametrize(
    "text",
    [
        "and/or client/server e.g. end.Next state-of-the-art TCP/IP n/a 24/7 Hello It's",
        "</div> // comment /* x */ s/a/b/ 1/2 512KB 2GB I/O w/o /mode /g",
        "GitHub JavaScript macOS UTF-8 SHA-256 Node.js console.log array.map foo.bar GPT-4",
        "1234567 deadbeef 12:30 a=b&c=d x==y e.g.",
        "github.com/user/repo",
        "x" * 400,
        "--- ... === ???",
    ],
)
def test_prose_names_nothing(text: str) -> None:
    assert list(mentions(text)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(see http://x.y/z).", [("url", "http://x.y/z")]),
        ("src/a.py:42:7: note", [("path", "src/a.py")]),
        ("lib/b.ts#L10-L12", [("path", "lib/b.ts")]),
        ("修改src/app/main.py文件", [("path", "src/app/main.py")]),
        ("--config=/etc/app.toml", [("identifier", "--config"), ("path", "/etc/app.toml")]),
        ("API_KEY=x1", [("value", "API_KEY=x1"), ("identifier", "API_KEY")]),
        ("**user_id**", [("identifier", "user_id")]),
        ("then run() it", [("identifier", "run")]),
        ("Foo.parse_config() fails", [("identifier", "Foo.parse_config")]),
        ("a_b and a_b", [("identifier", "a_b")]),
    ],
)
def test_a_name_is_cut_from_what_surrounds_it(text: str, expected: list[tuple[str, str]]) -> None:
    assert list(mentions(text)) == expected


def test_a_quoted_path_may_hold_spaces() -> None:
    assert ("path", "/var/x/Shot at 01.png") in mentions("open '/var/x/Shot at 01.png' now")


def test_checkable_tokens() -> None:
    text = (
        'Run `login` after https://x.io/a.py; "TypeError: cannot read x" in src/a.py (v1.2.3, port=5433, 42 lines), '
        "commit 3f2a9c1, 'C:\\my docs\\a.txt', `two words` failed before `go_on()` and \"error\", “access denied”"
    )
    assert [(token.kind, token.value) for token in checkable_tokens(text)] == [
        ("identifier", "login"),
        ("url", "https://x.io/a.py"),
        ("error", "TypeError: cannot read x"),
        ("path", "src/a.py"),
        ("hash", "3f2a9c1"),
        ("path", "C:\\my docs\\a.txt"),
        ("identifier", "go_on"),
        ("error", "access denied"),
    ]


@given(st.text(st.sampled_from("ab_AB1./:=-~\"'`() \nError#$@é\\"), max_size=60))
def test_tokens_stand_where_they_say(text: str) -> None:
    end = 0
    for token in checkable_tokens(text):
        assert text[token.start : token.end] == token.value
        assert token.start >= end
        assert token.kind in CHECKABLE
        end = token.end


@pytest.mark.parametrize("garbage", [None, 3, ["a.py"]])
def test_garbage_names_nothing(garbage: Any) -> None:
    assert checkable_tokens(garbage) == []


@pytest.mark.parametrize("name", ["svc-mail-eu4", "db-eu-7", "web-01-blue"])
def test_hosts_and_services_are_identifiers(name: str) -> None:
    assert (IDENTIFIER, name) in mentions(f"It runs on {name}, I think.")


@pytest.mark.parametrize("word", ["state-of-the-art", "utf-8", "up-to-date"])
def test_words_with_hyphens_are_none(word: str) -> None:
    assert mentions(f"It is {word} now.") == {}
