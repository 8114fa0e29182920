"""A model's lines are held against the sources: names and figures that are in none are marked, prose never."""

from __future__ import annotations

import pytest

from everthread import compress
from everthread.compaction.verification import UNVERIFIED, is_refused, mark_sections, source_text
from everthread.core.messages import Message
from everthread.testing import ScriptedSummarizer

SOURCES: list[Message] = [
    {"role": "user", "content": "The retry limit of the importer is 7 and the timeout 30 seconds."},
    {"role": "assistant", "content": "I set MAX_RETRIES in src/importer/retry.py; the nightly batch had 18,500 rows."},
    {"role": "tool", "tool_call_id": "a", "content": "commit 4f9d2c1a: raise the limit\nError: connection refused"},
]
TEXT = source_text(SOURCES, "An earlier line about src/old.py.\nAn invented one about src/none.py. (unverified)")


@pytest.mark.parametrize(
    "line",
    [
        "- MAX_RETRIES was set in src/importer/retry.py",
        "- the importer's retry limit is 7, its timeout 30 seconds",
        "- 18,500 rows in the nightly batch",
        "- commit 4f9d2c1a raised the limit",
        "- src/old.py was mentioned",
        "- the user was satisfied with how it went",
        "3. DONE nothing of note",
    ],
)
def test_what_a_source_says_is_not_marked(line: str) -> None:
    marked, _, unknown = mark_sections({"Goal": line}, TEXT)
    assert (marked["Goal"], unknown) == (line, 0)


@pytest.mark.parametrize(
    "line",
    [
        "- MAX_RETRIES was set in src/importer/limits.py",
        "- the importer's retry limit is 70",
        "- 81,500 rows in the nightly batch",
        "- commit 4f9d2c1b raised the limit",
        "- src/none.py was changed",
        "- the release of the ledger was moved to week 7 by the board in Vienna",
    ],
)
def test_what_no_source_says_is_marked_once_at_the_end(line: str) -> None:
    marked, checked, unknown = mark_sections({"Goal": line}, TEXT)
    assert marked["Goal"] == f"{line} {UNVERIFIED}"
    assert unknown >= 1
    assert checked >= unknown
    assert mark_sections(marked, TEXT)[0] == marked


def test_an_invention_told_again_is_marked_again() -> None:
    talk: list[Message] = [
        {"role": role, "content": f"Step {number}: src/step_{number}.py is done, {'on and on ' * 40}"}
        for number in range(60)
        for role in ("user", "assistant")
    ]
    lines = "\n".join(f"- src/step_{number}.py was done" for number in range(8))
    writer = ScriptedSummarizer({"Goal": f"{lines}\n- src/none.py was done"})
    once = compress(talk, window=8_000, summarizer=writer)
    twice = compress([*once.messages, *talk], window=8_000, summarizer=writer)
    for result in (once, twice):
        assert f"- src/none.py was done {UNVERIFIED}" in result.summary
        assert result.summary.count(UNVERIFIED) == 1


def test_a_summary_that_names_too_much_is_refused() -> None:
    assert not is_refused(10, 2)
    assert not is_refused(20, 5)
    assert is_refused(11, 3)


def test_a_long_line_of_figures_costs_little() -> None:
    flood = " ".join(f"value_{n} {n}" for n in range(5_000))
    marked, _, _ = mark_sections({"Goal": flood}, flood)
    assert marked["Goal"] == flood
