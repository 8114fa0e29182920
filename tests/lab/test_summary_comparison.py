"""What an agent needed after its client's own compaction: found by structure, counted in every context alike."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from benchmarks import handoff
from everthread.core.messages import Message
from everthread.lab.importers.log import ClientCompaction, Log, LoggedMessage
from everthread.lab.importers.read_logs import read_log
from everthread.lab.summary_comparison import (
    DEFAULT_SIZE,
    OWN_CONTEXT,
    SAME_SIZE,
    Comparison,
    Names,
    compare_log,
    describe,
    find_measurable_compactions,
    find_names,
    sum_held_counts,
)
from tests.chat_messages import calls_message, function_call, result_message
from tests.lab.recorded_histories import make_history
from tests.shared_data import shared_path


def _call(number: int, command: str) -> list[Message]:
    return [
        calls_message(function_call(f"late_{number}", "bash", f'{{"command": "{command}"}}')),
        result_message(f"late_{number}", f"shown_by_a_result_{number}"),
    ]


def _log(summary: str | None, *later: str, restored: str = "") -> Log:
    """A session with a compaction, then these commands. Before it, `shown_by_a_result_0` was seen too."""
    before: list[Message] = [
        *make_history(12),
        {"role": "user", "content": "Mind shown_by_a_result_0 and the_old_identifier."},
    ]
    after = [message for number, command in enumerate(later) for message in _call(number, command)]
    entries = [LoggedMessage(message) for message in (*before, *after)]
    return Log(
        "log",
        "claude-code",
        entries,
        compactions=[ClientCompaction(len(before), summary, restored)],
    )


def test_finds_files_and_long_identifiers() -> None:
    names = find_names(
        "See src/app/main.go, `parse_the_header`, camelCaseName, a_b, and README.md."
    )
    assert names.files == {"main.go", "README.md"}
    assert names.identifiers == {"parse_the_header", "camelCaseName"}


def test_counts_names_known_before_and_used_before_a_result_shows_them() -> None:
    log = _log(
        "Kept: part_3.py.",
        "cat src/part_3.py the_old_identifier",
        "cat shown_by_a_result_0 brand_new_identifier",
    )
    (found,) = find_measurable_compactions(log)
    assert found.needed_names == Names(frozenset({"part_3.py"}), frozenset({"the_old_identifier"}))


def test_measures_every_context_in_the_same_way() -> None:
    log = _log(
        "Kept: part_3.py.",
        "cat src/part_3.py the_old_identifier",
        restored="Question 11: why does part 11 fail?",
    )
    compared = compare_log(log)
    (made,) = compared.compactions
    assert (made.files, made.identifiers, made.user_messages) == (1, 1, 13)
    assert (made.held["own"].files, made.held["own"].identifiers) == (1, 0)
    assert made.held["default_size"].identifiers == 1
    assert made.held["default_size"].user_messages == 13
    assert made.held["same_size"].tokens <= made.held["own"].tokens
    assert describe([compared]).startswith(
        "At its compaction Claude Code's summary kept 50% of the names"
    )


def test_does_not_count_an_encrypted_summary() -> None:
    compared = compare_log(_log(None, "cat src/part_3.py the_old_identifier"))
    assert [made.is_readable for made in compared.compactions] == [False]
    assert "encrypted" in describe([compared])
    assert "No compaction" in describe([Comparison("log", "Codex")])


def test_skips_a_compaction_at_the_end() -> None:
    compared = compare_log(_log("A summary."))
    assert (compared.compactions, compared.skipped) == ([], 1)


def test_agrees_with_the_benchmark() -> None:
    log = read_log(str(shared_path("logs", "claude-code-63_bd3f9b02f2_1.jsonl.gz")))
    totals = handoff.Totals()
    for case in find_measurable_compactions(log):
        totals.add(case, handoff.make_contexts(case))
    names = {
        handoff.CLAUDE: OWN_CONTEXT,
        handoff.SAME: SAME_SIZE,
        handoff.FULL: DEFAULT_SIZE,
    }
    compared = compare_log(log)
    assert compared.compactions
    for benchmark_name, name in names.items():
        assert asdict(totals.scores[benchmark_name]) == asdict(sum_held_counts([compared], name))


@pytest.mark.parametrize(
    ("name", "needs", "own"),
    [
        ("claude-code-13_340918e71b_0", (2, 6), (2, 3)),
        ("claude-code-c8_b6cdd373a2_0", (5, 4), (5, 4)),
    ],
)
def test_measures_recorded_compactions(
    name: str, needs: tuple[int, int], own: tuple[int, int]
) -> None:
    (made,) = compare_log(read_log(str(shared_path("logs", f"{name}.jsonl.gz")))).compactions
    assert (made.files, made.identifiers) == needs
    assert (made.held["own"].files, made.held["own"].identifiers) == own
