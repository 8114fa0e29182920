"""Results of a lookup as a model reads them: ids first, how to continue last, and a clear end if there are none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everthread.core.lookup_tools import ANSWER_GIST_CHARS, shorten_answer
from everthread.core.search.search_results import (
    Excerpt,
    Neighbour,
    Passage,
    SearchPage,
    describe_passage,
    format_heading,
    format_page,
    format_passage,
    format_utc_time,
)

AT = 1_769_851_800.0


def passage(
    found: str, text: str, *, start: int = 0, size: int, role: str = "", tool: str = ""
) -> Passage:
    return Passage(
        id=found,
        thread="t1",
        turn=3 if role else None,
        role=role,
        tool=tool,
        created=AT if role else None,
        text=text,
        start=start,
        end=start + len(text),
        size=size,
    )


SAID = Excerpt(
    id="message:12",
    thread="t1",
    role="user",
    tool="",
    turn=3,
    created=AT,
    text="never touch it",
)
STORED = Excerpt(
    id="output:ab",
    thread="t1",
    role="",
    tool="terminal",
    turn=None,
    created=AT,
    text="exit 1",
)


def page(found: SearchPage, *, offset: int = 0, threads: bool = False) -> str:
    asked = "the migrations folder"
    return format_page(
        found,
        asked,
        tool="lcm_grep",
        searched_place="this thread",
        offset=offset,
        show_threads=threads,
    )


def test_first_line_of_a_page_has_its_ids() -> None:
    text = page(SearchPage((SAID, STORED), next=None))
    assert shorten_answer(text) == "lcm_grep 'the migrations folder': 2 found: message:12 output:ab"
    assert "[message:12] user, turn 3, 2026-01-31 09:30 UTC:\nnever touch it" in text
    assert "[output:ab] output of terminal, 2026-01-31 09:30 UTC:\nexit 1" in text
    assert text.endswith("[That was all.]")


def test_shows_the_messages_before_and_after() -> None:
    between = replace(SAID, before="assistant: May I?", after="assistant: Understood.")
    text = page(SearchPage((between,), next=None))
    assert (
        "UTC:\n(before, assistant: May I?)\nnever touch it\n(after, assistant: Understood.)\n"
        in text
    )


def test_states_more_results_and_approximate_matches() -> None:
    text = page(SearchPage((SAID,), next=20, is_approximate=True), threads=True)
    assert "1 close, none with all these words: message:12" in text
    assert "thread t1" in text
    assert text.endswith("[There may be more; go on with offset 20]")
    assert page(SearchPage((), next=40)).endswith(
        "[Not all was looked through; go on with offset 40]"
    )


def test_empty_page_states_what_was_searched() -> None:
    assert "Do not repeat this search." in page(SearchPage((), next=None))
    assert "Not searched" not in page(SearchPage((), next=None))
    assert "Not searched: other threads." in format_page(
        SearchPage((), next=None),
        "x",
        tool="search",
        searched_place="this thread",
        unsearched_texts="other threads",
    )
    assert "nothing more beyond offset 20. That was all" in page(
        SearchPage((), next=None), offset=20
    )


def test_passage_states_where_to_continue() -> None:
    part = passage("message:12", "abc", size=10, role="tool", tool="terminal")
    assert "tool (terminal), turn 3" in format_passage(part, tool="lcm_expand")
    assert format_passage(part, tool="lcm_expand").endswith(
        "[7 more characters; go on with offset 3]"
    )
    whole = passage("node:1", "abc", size=3)
    assert format_passage(whole, tool="lcm_expand") == (
        "lcm_expand node:1: characters 0 to 3 of 3\n\nabc\n\n[That was all of it.]"
    )
    beyond = passage("node:1", "", start=9, size=3)
    assert "do not go on" in format_passage(beyond, tool="lcm_expand")


def test_describes_a_passage() -> None:
    part = passage("output:ab", "abc", size=3)
    assert describe_passage(part, tool="lcm_describe", reader="lcm_expand") == (
        "lcm_describe output:ab: 3 characters of output of a tool; lcm_expand reads them.\nIt begins:\nabc"
    )
    assert format_heading(STORED) == "[output:ab] output of terminal, 2026-01-31 09:30 UTC"
    assert format_utc_time(0) == "1970-01-01 00:00 UTC"


def test_clips_long_answers() -> None:
    assert shorten_answer("lcm_grep " + "x" * 1_000 + "\nmore").endswith("…")
    assert len(shorten_answer("y" * 1_000)) == ANSWER_GIST_CHARS


@pytest.mark.parametrize(
    ("role", "tool", "line"),
    [
        ("user", "", "#7 user: 12 passed"),
        ("tool", "terminal", "#7 tool (terminal): 12 passed"),
        ("assistant", "terminal", "#7 assistant: 12 passed"),
    ],
)
def test_neighbour_names_its_speaker(role: str, tool: str, line: str) -> None:
    neighbour = Neighbour(7, role, tool, "12 passed")
    assert neighbour.as_line({6, None}) == line
    assert str(neighbour) == line.removeprefix("#7 ")
    assert neighbour.as_line({7}) == line.replace(": 12 passed", " (also a match)")
