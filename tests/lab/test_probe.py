"""Probes: evidence is looked for where the model would find it, and questions that cannot be asked are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everthread.core.messages import Message
from everthread.errors import EverthreadError
from everthread.lab.logs.base import Said
from everthread.lab.probe import Case, Evidence, Question, probe, read_cases
from everthread.lab.probe.result import together
from tests.lab.replayed import PLAIN, talk
from tests.shared_data import shared

CITY = "The aviary of the zoo at Quilmesbury holds forty-one toucans."


def _told(turns: int) -> list[Message]:
    """A talk whose third turn tells something that nothing else speaks of."""
    messages = talk(turns, words=150)
    messages[11]["content"] = f"I looked it up. {CITY}"
    return messages


def _case(turns: int = 16) -> Case:
    messages = _told(turns)
    old, late = str(messages[11]["content"]), str(messages[-1]["content"])
    return Case(
        "made up",
        [Said(message) for message in messages],
        [
            Question("How many toucans live in Quilmesbury?", (Evidence(old, whole=True),), "old"),
            Question("How many toucans live in Quilmesbury?", (Evidence("forty-one toucans"),), "old"),
            Question("Why does the last part fail?", (Evidence(late, whole=True), Evidence("no such words")), "new"),
        ],
    )


def test_evidence_is_in_the_context_or_in_recall_or_lost() -> None:
    whole = probe(_case(), window=400_000, options=PLAIN)
    assert whole.compactions == []
    assert (whole.in_context("old"), whole.in_context("new")) == (1.0, 0.5)
    assert whole.context == pytest.approx(whole.whole, rel=0.02)
    done: list[tuple[int, int]] = []
    left = probe(_case(), chain=3, options=PLAIN, firsts=(10, 1), progress=lambda *step: done.append(step))
    assert len(left.compactions) == 3
    assert left.context < left.whole / 2
    assert all(made.tokens_after < made.tokens_before for made in left.compactions)
    # The last turn is in view, with one of its two pieces; the old one is found by asking for it.
    assert left.in_context("new") == left.within(10, "new") == 0.5
    assert left.within(1, "old") == 1.0
    assert left.cost(1) <= left.cost(10)
    assert done[-1] == (67, 67)
    assert done == sorted(done)
    figures = left.as_dict()
    assert figures["categories"]["new"]["lost"] == 0.5
    assert list(figures["categories"]["old"]["within"]) == ["1", "10"]
    json.dumps(figures)


def test_what_an_engine_drops_is_only_found_by_recall(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERTHREAD_HOME", str(_forgetful(tmp_path)))
    left = probe(_case(), engine="recent_turns", engine_options={"keep_turns": 2}, window=9_000, options=PLAIN)
    assert len(left.compactions) > 1
    assert left.in_context("old") == 0.0
    assert left.within(5, "old") == 1.0
    both = together([left, left])
    assert (len(both.asked), both.within(5), both.whole) == (6, left.within(5), 2 * left.whole)


def _forgetful(home: Path) -> Path:
    """A home with the engine that keeps the last turns alone."""
    plugins = home / "plugins" / "context_engine"
    plugins.mkdir(parents=True)
    source = Path(__file__).parents[2] / "examples" / "engine_plugin" / "recent_turns"
    (plugins / "recent_turns").symlink_to(source)
    return home


def test_dialogues_are_read_with_their_turns_and_times(tmp_path: Path) -> None:
    talk_: dict[str, Any] = {"speaker_a": "Ann", "speaker_b": "Bo"}
    for number, day in ((1, "8"), (2, "19")):
        talk_[f"session_{number}_date_time"] = f"1:56 pm on {day} May, 2023"
        talk_[f"session_{number}"] = [
            {"speaker": "Ann", "dia_id": f"D{number}:1", "text": f"I went to Oslo by train number {number}."},
            {"speaker": "Bo", "dia_id": f"D{number}:2", "text": "Nice!", "blip_caption": "a red train"},
        ]
    asked = [
        {"question": "Where did Ann go?", "evidence": ["D1:1; D2:1"], "category": 1},
        {"question": "What is red?", "evidence": ["D2:2", "D2:2"], "category": 4},
        {"question": "And then?", "evidence": [], "category": 5},
    ]
    path = tmp_path / "dialogues.json"
    path.write_text(json.dumps([{"sample_id": "one", "conversation": talk_, "qa": asked}]), "utf-8")
    [case] = read_cases(str(path))
    assert case.source.endswith("dialogues.json: one")
    assert [entry.message["role"] for entry in case.said] == ["user", "assistant"] * 2
    first, last = case.said[0].at, case.said[2].at
    assert first is not None
    assert last is not None
    assert last - first == 11 * 86_400
    assert [(question.kind, len(question.evidence)) for question in case.questions] == [
        ("several turns", 2),
        ("one turn", 1),
    ]
    assert case.questions[1].evidence[0].text == "Bo: Nice! [a red train]"
    assert case.notes == ("1 of 3 questions name no turn of the dialogue; left out",)
    assert probe(case).in_context() == 1.0


def test_real_dialogues_are_found_again() -> None:
    case = read_cases(str(shared("memory", "locomo-first5.json")))[1]
    few = Case(case.source, case.said[:120], case.questions[:12])
    told = probe(few, window=6_000)
    assert told.compactions
    assert told.within(10) > told.in_context()


def test_a_transcript_brings_its_questions_or_is_asked_for_its_facts(tmp_path: Path) -> None:
    talked = tmp_path / "talk.json"
    asked = [{"question": "How many toucans?", "evidence": ["forty-one toucans", 11], "category": "birds"}]
    talked.write_text(json.dumps({"messages": _told(4), "questions": asked}), "utf-8")
    [case] = read_cases(str(talked))
    assert [(piece.whole, len(piece.parts)) for piece in case.questions[0].evidence] == [(False, 1), (True, 2)]
    assert case.questions[0].kind == "birds"
    lines = tmp_path / "questions.jsonl"
    lines.write_text('{"question": "Which?", "evidence": 11}\n\n{"question": "Who?", "evidence": "toucans"}\n', "utf-8")
    assert [question.text for question in read_cases(str(talked), str(lines))[0].questions] == ["Which?", "Who?"]
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(_told(4)), "utf-8")
    [facts] = read_cases(str(bare))
    assert {question.kind for question in facts.questions} == {"latest request", "commands"}
    assert "asked for, each by its own words" in facts.notes[-1]


@pytest.mark.parametrize(
    ("questions", "told"),
    [
        (
            '[{"question": "Which?", "evidence": ["never said"]}]',
            "quotes what nobody says there: 'never said'",
        ),
        ('[{"question": "Which?", "evidence": [99]}]', "the index of a message, 0 to 15, or words"),
        ('[{"question": "Which?"}]', "question 1 has no `evidence`"),
        ('[{"evidence": [1]}]', "question 1 is no object with a text `question`"),
        ("[]", "questions are a list of objects"),
        ("{half", "is neither JSON nor a JSON object a line"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused(questions: str, told: str, tmp_path: Path) -> None:
    talked, asked = tmp_path / "talk.json", tmp_path / "asked.json"
    talked.write_text(json.dumps(_told(4)), "utf-8")
    asked.write_text(questions, "utf-8")
    with pytest.raises(EverthreadError, match=r"asked\.json") as caught:
        read_cases(str(talked), str(asked))
    assert told in str(caught.value)
