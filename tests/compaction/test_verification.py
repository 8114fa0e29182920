"""A model's lines are held against the sources: names and figures that are in none are marked, prose never."""

from __future__ import annotations

import pytest

from everthread import compress
from everthread.compaction.verification.unsupported_lines import (
    UNVERIFIED_MARK,
    MarkedSections,
    join_sources,
    mark_sections,
)
from everthread.core.messages import Message
from everthread.testing import ScriptedSummarizer

SOURCES: list[Message] = [
    {
        "role": "user",
        "content": "The retry limit of the importer is 7 and the timeout 30 seconds.",
    },
    {
        "role": "assistant",
        "content": "I set MAX_RETRIES in src/importer/retry.py; the nightly batch had 18,500 rows.",
    },
    {
        "role": "tool",
        "tool_call_id": "a",
        "content": "commit 4f9d2c1a: raise the limit\nError: connection refused",
    },
]
TEXT = join_sources(
    SOURCES,
    "An earlier line about src/old.py.\nAn invented one about src/none.py. (unverified)",
)


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
def test_supported_lines_are_not_marked(line: str) -> None:
    assert mark_sections({"Goal": line}, TEXT).sections == {"Goal": line}


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
def test_unsupported_lines_are_marked_once(line: str) -> None:
    marked = mark_sections({"Goal": line}, TEXT)
    assert marked.sections == {"Goal": f"{line} {UNVERIFIED_MARK}"}
    assert 1 <= marked.unverified_count <= marked.checked_count
    assert mark_sections(marked.sections, TEXT).sections == marked.sections


NOISE = "\n".join(f"step {n}: worker {n} wrote 3 files and 7 rows" for n in range(200))
DEEP = "\n".join(
    (
        NOISE,
        "$ ledgerctl vacuum --plan nightly --verbose",
        NOISE,
        "The vacuum job of the ledger keeps 3 snapshots for 7 days.",
        NOISE,
    )
)


@pytest.mark.parametrize(
    "line",
    [
        "- The vacuum job of the ledger keeps 3 snapshots for 7 days.",
        "4. CONFIGURED the vacuum job of the ledger keeps 3 snapshots for 7 days. [tool: terminal]",
        "5. RAN `ledgerctl vacuum --plan nightly --verbose` — ledger keeps 3 snapshots [tool: terminal]",
        "- 3 snapshots",
    ],
)
def test_every_occurrence_of_a_figure_counts(
    line: str,
) -> None:
    marked = mark_sections({"Completed Actions": line}, DEEP)
    assert marked.sections == {"Completed Actions": line}


def test_a_summary_of_literal_sentences_is_not_refused() -> None:
    sentences = [
        f"worker {n} wrote 3 files and {n} rows of batch {n % 9} in {n % 5} seconds"
        for n in range(300)
    ]
    lines = "\n".join(f"- {sentence}" for sentence in sentences[::43])
    marked = mark_sections({"Goal": lines}, "\n".join(sentences))
    assert marked.sections == {"Goal": lines}
    assert not marked.should_be_refused


SAID = [
    "Please store the session tokens in Redis instead of cookies for the admin portal.",
    "The nightly export of the billing service runs on host atlas and takes 45 minutes.",
    "The import of the catalogue should not delete products that suppliers still list.",
    "load_rates() reads the exchange rates for the invoice preview from rates.json.",
    "save_rates() writes a backup after midnight, which takes 12 minutes.",
    "The reviewers agreed to keep the legacy importer of the archive until spring.",
    "Then remove the unused headers.",
]
DECIDED = join_sources([{"role": "user", "content": f"{said}\n\n{NOISE}"} for said in SAID], "")


@pytest.mark.parametrize(
    ("true", "wrong"),
    [
        (
            "- The catalogue import should not delete products that suppliers still list",
            "- The catalogue import should delete products that suppliers still list",
        ),
        (
            "- User wants session tokens in Redis instead of cookies for the admin portal",
            "- User wants session tokens in cookies instead of Redis for the admin portal",
        ),
        (
            "- The billing service's nightly export runs on atlas, takes 45 minutes",
            "- The billing service's nightly export runs on atlas, takes 12 minutes",
        ),
        (
            "- `load_rates()` reads exchange rates for the invoice preview",
            "- `save_rates()` reads exchange rates for the invoice preview",
        ),
        (
            "- Reviewers agreed to keep the archive's legacy importer until spring",
            "- Reviewers agreed to remove the archive's legacy importer until spring",
        ),
    ],
)
def test_a_line_is_marked_if_the_closest_statement_says_otherwise(true: str, wrong: str) -> None:
    marked = mark_sections({"Key Decisions": f"{true}\n{wrong}"}, DECIDED)
    assert marked.sections["Key Decisions"] == f"{true}\n{wrong} {UNVERIFIED_MARK}"


def test_a_repeated_invention_is_marked_again() -> None:
    conversation: list[Message] = [
        {
            "role": role,
            "content": f"Step {number}: src/step_{number}.py is done, {'on and on ' * 40}",
        }
        for number in range(60)
        for role in ("user", "assistant")
    ]
    lines = "\n".join(f"- src/step_{number}.py was done" for number in range(8))
    writer = ScriptedSummarizer({"Goal": f"{lines}\n- src/none.py was done"})
    once = compress(conversation, window=8_000, summarizer=writer)
    twice = compress([*once.messages, *conversation], window=8_000, summarizer=writer)
    for result in (once, twice):
        assert f"- src/none.py was done {UNVERIFIED_MARK}" in result.summary
        assert result.summary.count(UNVERIFIED_MARK) == 1


@pytest.mark.parametrize(
    ("checked", "unverified", "is_refused"),
    [(10, 2, False), (20, 5, False), (11, 3, True)],
)
def test_a_summary_with_too_many_unknown_names_is_refused(
    checked: int, unverified: int, is_refused: bool
) -> None:
    assert MarkedSections({}, checked, unverified).should_be_refused == is_refused


def test_a_long_line_of_figures_costs_little() -> None:
    flood = " ".join(f"value_{n} {n}" for n in range(5_000))
    assert mark_sections({"Goal": flood}, flood).sections == {"Goal": flood}
