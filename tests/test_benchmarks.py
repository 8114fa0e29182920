"""The parts of the benchmarks that decide what a figure says."""

from __future__ import annotations

import ast
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chain, compactbench, scale, shape
from benchmarks.__main__ import _kept
from benchmarks.retained import labels as labelled
from benchmarks.retained.contenders import HEAD_TAIL
from benchmarks.retained.race import OURS, Contexts
from benchmarks.retained.recordings import THREADS
from benchmarks.shared import HALVES, half_of, shared


def test_no_contender_gets_more_room_than_we_use() -> None:
    contexts = Contexts(8_000, (), (HEAD_TAIL,))
    number = 0
    while not contexts.append([{"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} " * 60}]):
        number += 1
    assert contexts.compact()
    assert contexts.sizes()[OURS] == 1
    assert contexts.sizes()[HEAD_TAIL] <= 1


def test_every_label_stands_where_the_file_says() -> None:
    if shared("transcripts") is None:
        pytest.skip("the shared recordings are absent")
    found = labelled.labels(name for names in THREADS.values() for name in names)
    assert len(found) == len(labelled._FILE.read_text("utf-8").splitlines())
    assert all(label.kind in labelled.USER | labelled.MECHANICAL for label in found)


def test_a_recording_that_changed_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = {"in": "one", "message": 0, "at": [0, 5], "hash": "0" * 12, "kind": "rule", "question": "Which rule?"}
    file = tmp_path / "labels.jsonl"
    file.write_text(json.dumps(entry), "utf-8")
    monkeypatch.setattr(labelled, "_FILE", file)
    monkeypatch.setattr(labelled, "recording", lambda _name: [{"role": "user", "content": "Never push."}])
    with pytest.raises(ValueError, match="no longer there"):
        labelled.labels(["one"])


def test_words_are_compared_without_typography() -> None:
    assert labelled.normal("“Never”  push\nto `main`") == "'never' push to 'main'"


def test_order_is_asked_of_what_stands_there_once() -> None:
    assert chain._in_order(["first", "second"], "first … second")
    assert not chain._in_order(["first", "second"], "second … first")
    assert chain._in_order(["first", "twice"], "twice, first, twice")
    assert chain._unquoted("> # Goal\n\\[2] text") == "# Goal\n[2] text"


def _case(name: str, value: str) -> dict[str, Any]:
    checks = [
        {"key": "a", "type": "locked_decision_retention", "check": "contains_normalized", "value": value},
        {"key": "b", "type": "planning_soundness", "check": "forbidden_absent", "value": value},
    ]
    turns = [{"role": "user", "content": f"Never {value}."}]
    return {"template": name, "turns": turns, "rules": [value], "decisions": [], "checks": checks}


def test_only_positive_checks_are_made_and_a_rule_is_one_by_its_ground_truth() -> None:
    assert list(compactbench._checks(_case("t", "deploy"))) == [("rules", ["deploy"])]


def test_no_two_cases_of_a_chat_name_the_same_thing() -> None:
    cases = [_case("t", value) for value in ("a1", "a1", "b2", "c3", "d4", "a1")]
    (chats,) = compactbench._shared_out({"cases": cases})
    named = [[next(compactbench._values(case)) for case in chat] for chat in chats]
    assert named == [["a1", "b2", "c3", "d4"], ["a1"], ["a1"]]


@pytest.mark.parametrize(
    ("name", "verbal"),
    [("telling", True), ("Said", True), ("pricing", False), ("StreamKeepAlive", False), ("Answering", True)],
)
def test_gerunds_and_participles_are_told_from_nouns(name: str, verbal: bool) -> None:
    assert shape._is_verbal(name) is verbal


def test_a_protocol_with_one_implementation_is_named() -> None:
    text = "class P(Protocol):\n    def go(self): ...\nclass A:\n    def go(self): ...\n"
    found = list(shape._classes(shape.PACKAGE / "x.py", ast.parse(text)))
    (row,) = shape._protocols(found, {})
    assert row.figure == "1 (x.P)"
    again = [*found, *shape._classes(shape.PACKAGE / "y.py", ast.parse("class B(P): ..."))]
    (row,) = shape._protocols(again, {})
    assert row.met
    (row,) = shape._protocols(found, {shape.PACKAGE / "z.py": "def go(): ..."})
    assert row.met, "a module is one"


def test_a_database_serves_as_many_gateways_as_it_has_time_for() -> None:
    few, many = (scale.gateways_served(rate=100, service=0.002, cores=cores) for cores in (1, 8))
    assert 1 <= few <= 500 / 70
    assert 8 * few <= many <= 8 * 500 / 70
    assert scale.gateways_served(rate=100, service=1.0, cores=1) == 0


def test_halves_are_the_same_on_every_machine() -> None:
    halves = [half_of(str(number)) for number in range(8)]
    assert halves == [HALVES[sha256(str(number).encode()).digest()[0] % 2] for number in range(8)]
    assert set(halves) == set(HALVES)


def test_a_section_replaces_its_own_and_those_of_benchmarks_that_are_gone_go(tmp_path: Path) -> None:
    file = tmp_path / "benchmarks.md"
    file.write_text("# Benchmarks\n\n### gone\n\nold\n\n### tokens\n\nold\n\n### zebra\n\nstays\n", "utf-8")
    text = _kept(file, "tokens", "### tokens\n\nnew\n", ["tokens", "zebra"])
    assert "gone" not in text
    assert text.index("### tokens\n\nnew") < text.index("### zebra\n\nstays")
