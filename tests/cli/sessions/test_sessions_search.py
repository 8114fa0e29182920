"""`everthread sessions search`."""

from __future__ import annotations

import re
from datetime import datetime

import pytest

from everthread.store.records import NewSession
from tests.cli.conftest import Command, RunAtTerminal
from tests.cli.sessions.conftest import StoreSession
from tests.cli.sessions.stored_thread import SECRET, StoredThread, text_message


def test_hits_are_ranked_with_their_snippets(everthread: Command, thread: StoredThread) -> None:
    hits = everthread.json("sessions search lexer")["hits"]
    assert [(hit["message"], hit["thread"], hit["role"]) for hit in hits] == [
        (thread.ids[4], thread.id, "user")
    ]
    assert "lexer" in hits[0]["snippet"]
    datetime.fromisoformat(hits[0]["created"])
    output = everthread("sessions search lexer").stdout
    assert f"#{thread.ids[4]}" in output
    assert "And the lexer?" in output


@pytest.mark.usefixtures("thread")
def test_matches_are_highlighted_at_a_terminal(at_terminal: RunAtTerminal) -> None:
    assert re.search(
        r"\x1b\[[\d;]*7[\d;]*mlexer\x1b\[0m",
        at_terminal("sessions search LEXER")[1],
    )


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("--role user", 1),
        ("--role assistant", 1),
        ("--tool terminal", 0),
        ("--since 1h", 2),
        ("--until 1h", 0),
        ("--since 2020-01-01 --until 2020-02-01", 0),
        ("--tenant other", 0),
        ("--limit 1", 1),
        ("--offset 1", 1),
    ],
)
@pytest.mark.usefixtures("thread")
def test_options_narrow_the_search(everthread: Command, options: str, count: int) -> None:
    assert len(everthread.json(f"sessions search parser {options}")["hits"]) == count


def test_in_a_thread_or_a_session_by_prefix(everthread: Command, thread: StoredThread) -> None:
    for options, words, count in (
        (f"--thread {thread.tip[:12]}", "dead", 0),
        (f"--thread {thread.subagent[:12]}", "dead", 1),
        (f"--session {thread.id[:12]}", "lexer", 0),
        (f"--session {thread.tip[:12]}", "lexer", 1),
    ):
        hits = everthread.json(f"sessions search {words}", options)["hits"]
        assert len(hits) == count, options


def test_the_closest_are_shown_if_no_message_holds_every_word(
    everthread: Command, store_session: StoreSession
) -> None:
    store_session(
        NewSession(id="s"),
        text_message("user", "The harbour uses port 8443."),
        text_message("user", "Rain tomorrow."),
    )
    output = everthread("sessions search 'which port does the harbour listen on'").stdout
    assert output.startswith("No message holds every word. The closest:\n")
    assert "port 8443" in output
    report = everthread.json("sessions search 'harbour port nonsense'")
    assert (report["near"], [hit["snippet"] for hit in report["hits"]]) == (
        True,
        ["The harbour uses port 8443."],
    )
    phrase = everthread("sessions search '\"harbour port\"'").stdout
    assert phrase.startswith("nothing found in 1 thread of /"), "a phrase must match exactly"


def test_a_hit_is_shown_with_the_message_before_and_after(
    everthread: Command, thread: StoredThread
) -> None:
    first, _, result, last, lexer, end = thread.ids
    lines = everthread("sessions search lexer").stdout.splitlines()
    assert lines[1:] == [
        f"    before #{last} assistant: The parser is repaired.",
        "  And the lexer?",
        f"    after #{end} assistant: Also repaired.",
    ]
    lines = everthread("sessions search please").stdout.splitlines()
    assert lines[1:] == [
        "  Repair the parser in src/app/main.py, please.",
        f'    after #{first + 1} assistant: terminal {{"command": "pytest -q"}}',
    ]
    (hit,) = everthread.json("sessions search also")["hits"]
    lexer_message = {
        "message": lexer,
        "role": "user",
        "tool": "",
        "text": "And the lexer?",
    }
    assert (hit["before"], hit["after"]) == (lexer_message, None)
    (hit,) = everthread.json("sessions search '\"is repaired\"'")["hits"]
    assert (hit["before"]["message"], hit["before"]["tool"]) == (result, "terminal")
    assert hit["before"]["text"].startswith("FAILED line 0 FAILED line 1 ")


def test_a_neighbour_that_matches_too_is_only_named(
    everthread: Command, store_session: StoreSession
) -> None:
    ids = store_session(
        NewSession(id="s"),
        *(text_message("user", text) for text in ("One", "Pine a", "Pine b", SECRET)),
    )
    one, a, b, key = (f"#{number} user" for number in ids)
    lines = everthread("sessions search pine").stdout.splitlines()
    assert [line.strip() for line in lines if line.startswith("  ")] == [
        f"before {a} (also a match)",
        "Pine b",
        f"after {key}: [REDACTED]",
        f"before {one}: One",
        "Pine a",
        f"after {b} (also a match)",
    ]


def test_a_neighbour_fits_one_line_of_a_terminal(
    everthread: Command, at_terminal: RunAtTerminal, store_session: StoreSession
) -> None:
    store_session(
        NewSession(id="s"),
        text_message("user", "Pine"),
        text_message("tool", "wide " * 99, name="a" * 60),
    )
    assert "wide wide wide wide…" in everthread("sessions search pine").stdout
    screen = at_terminal("sessions search pine")[1]
    assert re.search(r"\n\x1b\[2m    after #2 tool \(a{60}\): [wide ]+…\x1b\[0m\r\n$", screen), (
        "cut, not wrapped"
    )


def test_search_covers_all_tenants_unless_one_is_named(
    everthread: Command, store_session: StoreSession
) -> None:
    store_session(
        NewSession(id="s", tenant="two"),
        text_message("user", "The needle is in the third barn."),
    )
    store_session(NewSession(id="t"), text_message("user", "Nothing else."))
    for words in ("needle", "where is the needle now"):
        assert "third barn" in everthread(f"sessions search '{words}'").stdout
    assert "third barn" in everthread("sessions search needle --tenant two").stdout
    assert "third barn" in everthread("sessions search needle --thread s").stdout


def test_an_empty_result_names_the_searched_threads(
    everthread: Command, store_session: StoreSession
) -> None:
    assert (
        everthread("sessions search needle").stdout == "nothing found (there are no threads yet)\n"
    )
    store_session(NewSession(id="s", tenant="two"), text_message("user", "A needle."))
    store_session(NewSession(id="t"), text_message("user", "Nothing else."))
    for options, where in (
        (
            "--tenant default",
            "in 1 thread of tenant default; 1 of other tenants were not searched",
        ),
        ("--thread t", "in thread t; other threads were not searched"),
    ):
        assert everthread(f"sessions search needle {options}").stdout == f"nothing found {where}\n"
    assert everthread("sessions search haystack").stdout.startswith(
        "nothing found in 2 threads of /"
    )


def test_an_invalid_time_is_refused(everthread: Command) -> None:
    assert "'someday' is not a time" in everthread.refuses("sessions search x --since someday")
