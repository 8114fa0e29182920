"""The parts of the benchmarks that decide what a figure says."""

from __future__ import annotations

import gzip
import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chain, compactbench, handoff, load, scale, verify
from benchmarks.__main__ import replace_section
from benchmarks.checked.material import Recording
from benchmarks.code_shape.reading import measure_reading
from benchmarks.load.threads import ANSWER_TEXT, make_growing_thread
from benchmarks.retained import labels
from benchmarks.retained.contender_contexts import OURS, Contexts
from benchmarks.retained.contenders import HEAD_TAIL
from benchmarks.retained.recordings import LOGS, THREADS
from benchmarks.shared import HALVES, find_shared, half_of
from benchmarks.table import format_section
from everthread.lab.importers.read_logs import read_log
from everthread.lab.summary_comparison import Names, find_measurable_compactions


def test_contenders_get_no_more_room_than_everthread() -> None:
    contexts = Contexts(8_000, (), (HEAD_TAIL,))
    number = 0
    while not contexts.append(
        [
            {
                "role": "user" if number % 2 == 0 else "assistant",
                "content": f"{number} " * 60,
            }
        ]
    ):
        number += 1
    assert contexts.compact()
    assert contexts.sizes()[OURS] == 1
    assert contexts.sizes()[HEAD_TAIL] <= 1


def test_every_label_matches_its_recording() -> None:
    if find_shared("transcripts") is None:
        pytest.skip("the shared recordings are absent")
    recordings = [*THREADS.values(), *LOGS.values()]
    loaded = labels.load_labels(name for names in recordings for name in names)
    assert len(loaded) == len(labels.LABELS_FILE.read_text("utf-8").splitlines())
    kinds = labels.USER | labels.MECHANICAL | labels.FINDINGS
    assert {label.kind for label in loaded} <= kinds


def test_refuses_a_changed_recording(tmp_path: Path) -> None:
    entry = {
        "in": "one",
        "message": 0,
        "at": [0, 5],
        "hash": "0" * 12,
        "kind": "rule",
        "question": "Which rule?",
    }
    file = tmp_path / "labels.jsonl"
    file.write_text(json.dumps(entry), "utf-8")
    with pytest.raises(ValueError, match="no longer there"):
        labels.load_labels(
            ["one"],
            file=file,
            load=lambda _name: [{"role": "user", "content": "Never push."}],
        )


def test_ignores_typography() -> None:
    assert labels.normalize("“Never”  push\nto `main`") == "'never' push to 'main'"


def test_checks_the_order_of_unique_texts() -> None:
    assert chain.are_in_order(["first", "second"], "first … second")
    assert not chain.are_in_order(["first", "second"], "second … first")
    assert chain.are_in_order(["first", "twice"], "twice, first, twice")
    assert chain.remove_quoting("> # Goal\n\\[2] text") == "# Goal\n[2] text"


def _case(name: str, value: str) -> dict[str, Any]:
    checks = [
        {
            "key": "a",
            "type": "locked_decision_retention",
            "check": "contains_normalized",
            "value": value,
        },
        {
            "key": "b",
            "type": "planning_soundness",
            "check": "forbidden_absent",
            "value": value,
        },
    ]
    turns = [{"role": "user", "content": f"Never {value}."}]
    return {
        "template": name,
        "turns": turns,
        "rules": [value],
        "decisions": [],
        "checks": checks,
    }


def test_lists_only_positive_checks() -> None:
    assert list(compactbench.list_checks(_case("t", "deploy"))) == [("rules", ["deploy"])]


def test_chats_have_distinct_cases() -> None:
    cases = [_case("t", value) for value in ("a1", "a1", "b2", "c3", "d4", "a1")]
    (chats,) = compactbench.make_chats({"cases": cases})
    named = [[next(compactbench.list_values(case)) for case in chat] for chat in chats]
    assert named == [["a1", "b2", "c3", "d4"], ["a1"], ["a1"]]


def test_counts_packed_code(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        '"""What it is."""\n\n# --- part ---\nMOST_ROWS = 3\n'
        "a, b = 1, 2\nprint(1, 2, 3, 4, 5, 6)\n",
        "utf-8",
    )
    (tmp_path / "two.py").write_text('"""Return the row."""\n', "utf-8")
    figures = {row.name: row.figure for row in measure_reading(tmp_path)}
    assert figures["banners inside a file"] == "1"
    assert figures["constants not named MAX_ or MIN_"] == "1"
    assert figures["calls with six or more positional arguments"] == "1"
    assert figures["tuple assignments per 1,000 lines"] == "166.7"
    assert figures["docstrings and comments with a what-clause as a noun, %"] == "33.3"


def test_counts_the_gateways_that_a_database_can_serve() -> None:
    few, many = (
        scale.count_gateways_served(rate=100, service=0.002, cores=cores) for cores in (1, 8)
    )
    assert 1 <= few <= 500 / 70
    assert 8 * few <= many <= 8 * 500 / 70
    assert scale.count_gateways_served(rate=100, service=1.0, cores=1) == 0


def test_halves_depend_on_the_name_only() -> None:
    halves = [half_of(str(number)) for number in range(8)]
    assert halves == [HALVES[sha256(str(number).encode()).digest()[0] % 2] for number in range(8)]
    assert set(halves) == set(HALVES)


def test_replaces_a_section_and_removes_obsolete_ones(
    tmp_path: Path,
) -> None:
    file = tmp_path / "benchmarks.md"
    file.write_text(
        "# Benchmarks\n\n### gone\n\nold\n\n### tokens\n\nold\n\n### zebra\n\nstays\n",
        "utf-8",
    )
    text = replace_section(file, "tokens", "### tokens\n\nnew\n", ["tokens", "zebra"])
    assert "gone" not in text
    assert text.index("### tokens\n\nnew") < text.index("### zebra\n\nstays")


def _log(path: Path, events: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(f"{json.dumps(event)}\n" for event in events)
    return path


def _typed(text: str) -> dict[str, Any]:
    call = {
        "type": "tool_use",
        "id": "c",
        "name": "Bash",
        "input": {"command": text, "notTheWorksName": 1},
    }
    return {
        "type": "assistant",
        "message": {
            "role": "assistant",
            "id": text,
            "content": [call],
        },
    }


def _said(text: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "message": {"role": "user", "content": text},
        **more,
    }


def test_handoff_counts_names_used_before_a_result_shows_them(
    tmp_path: Path,
) -> None:
    before = [_said(f"look at src/parser.py and read_all_tokens, {number}") for number in range(20)]
    log = [
        *before,
        _typed("cat src/lexer_table.py"),
        {"subtype": "compact_boundary"},
        _said("The work was on parser.py.", isCompactSummary=True),
        _typed("cat src/parser.py src/never_said.py"),
        _said("src/lexer_table.py"),
        _typed("grep read_all_tokens src/lexer_table.py"),
    ]
    (case,) = find_measurable_compactions(
        read_log(str(_log(tmp_path / "claude-code-1.jsonl.gz", log)))
    )
    assert case.client_context == "The work was on parser.py."
    assert case.needed_names == Names(frozenset({"parser.py"}), frozenset({"read_all_tokens"}))
    totals = handoff.Totals()
    totals.add(case, {"a": ("parser.py", 3), "b": ("read_all_tokens look at", 5)})
    assert (totals.scores["a"].files, totals.scores["a"].identifiers) == (1, 0)
    assert (totals.scores["b"].files, totals.scores["b"].identifiers) == (0, 1)


def _recording() -> Recording:
    """Sentences with names and figures, as a recording of which a model wrote a summary."""
    sentences = [
        f"The importer_{n} of region {n} should not retry {n % 7 + 2} times because queue_{n} has {n * 13} rows"
        for n in range(60)
    ]
    return Recording(
        "made up",
        HALVES[0],
        "\n".join(sentences),
        sentences,
        sentences,
        [f"- {line}" for line in sentences],
    )


def test_a_checker_that_marks_nothing_fails() -> None:
    rows = verify.run(lambda lines, _sources: [False] * len(lines), [_recording()])
    assert [row.name for row in rows if row.is_failed] == [f"wrong facts caught, {HALVES[0]}"]
    assert "FAILED" in format_section("verify", rows)


def test_a_checker_that_marks_everything_fails() -> None:
    rows = verify.run(lambda lines, _sources: [True] * len(lines), [_recording()])
    assert sum(row.is_failed for row in rows) == len(verify.MAX_MARKED) + 1


def test_our_checker_passes_on_made_up_sentences() -> None:
    rows = verify.run(material=[_recording()])
    assert not any(row.is_failed for row in rows)


@pytest.mark.parametrize("compiler", ["C", "none"])
def test_load_works_with_and_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    if compiler == "none":
        monkeypatch.setattr(load, "_compile", lambda _: None)
    elif shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    threads = {
        number: make_growing_thread(f"{number}", 4_000, 3, streams=number == 1)
        for number in range(2)
    }
    with load.serve_at_once() as upstream:
        result = load.send_requests(threads, [upstream, upstream])
    assert [len(answers) for answers in result.answers] == [6, 6]
    for answer in result.answers[0]:
        assert 0 < answer.first_byte <= answer.last_byte <= 1_000 * result.seconds


def test_growing_threads_add_two_messages_and_move_their_marks() -> None:
    bodies = [json.loads(body) for body in make_growing_thread("one", 20_000, 3)]
    lengths = [len(body["messages"]) for body in bodies]
    assert lengths == [lengths[0], lengths[0] + 2, lengths[0] + 4]
    for body in bodies:
        marked = [
            index
            for index, message in enumerate(body["messages"])
            if any("cache_control" in block for block in message["content"])
        ]
        assert marked == [len(body["messages"]) - 3, len(body["messages"]) - 1]
    answer = bodies[1]["messages"][lengths[0]]
    assert answer["content"] == [{"type": "text", "text": ANSWER_TEXT}]
