"""What the user wants remembered."""

from __future__ import annotations

import pytest

from everthread.core.facts import facts_of_message
from everthread.core.notes import MOST, notes


@pytest.mark.parametrize(
    "said",
    [
        "Remember the page sandbox.shop.test, merchant 771201.",
        "FYI: the proxy is on 10.0.0.7.",
        "Merk dir: die Testdatenbank ist db-9.intern.",
        "Recuerda que el puerto es 6001.",
        "请记住：端口是 6001。",
        "覚えておいて：ポートは 6001 です。",
        "기억해 주세요: 포트는 6001 입니다.",
    ],
)
def test_a_note_is_the_sentence(said: str) -> None:
    assert notes(f"Good.\n{said}\nNow fix the login.") == [said]
    facts = facts_of_message({"role": "user", "content": said}).facts
    assert [(fact.value, fact.by_user) for fact in facts if fact.kind == "note"] == [(said, True)]


def test_a_note_that_points_back_takes_in_what_it_points_at() -> None:
    said = "The host listens on port 6001. You will need that later."
    assert notes(f"{said} Go on.") == [said]
    assert notes("You will need that later.") == ["You will need that later."]


@pytest.mark.parametrize("said", ["Fix the login.", "Do you remember the port?", 'It says "remember 7".'])
def test_other_words_are_none(said: str) -> None:
    assert notes(said) == []


def test_a_note_is_cut() -> None:
    assert len(notes("Remember 1 " + "x" * 2 * MOST)[0]) == MOST
