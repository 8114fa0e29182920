"""Read a question (word forms, stop words, dates), and rank the texts that answer it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.search.dates import find_dates
from everthread.core.search.query import (
    IDENTIFIER_WEIGHT,
    MAX_SEARCH_WORDS,
    read_question,
)
from everthread.core.search.relevance import (
    CONVERSATION_SCORE_WEIGHT,
    NEIGHBOUR_SHARES,
    borrow_words,
    compute_length_penalty,
    compute_rarity,
    is_distinctive,
    rate_closeness,
    rate_conversations,
    weigh_question,
)
from everthread.core.search.word_forms import choose_stop_words, list_word_forms

NOW = datetime(2023, 6, 15, 12, tzinfo=UTC).timestamp()


def noon_of(day: str) -> float:
    return datetime.fromisoformat(f"{day}T12:00+00:00").timestamp()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("paint", "painting"),
        ("painted", "paints"),
        ("went", "go"),
        ("go", "went"),
        ("planning", "plan"),
        ("plan", "planned"),
        ("cities", "city"),
        ("city", "cities"),
        ("adopt", "adoption"),
        ("making", "made"),
        ("children", "child"),
        ("move", "moving"),
        ("moving", "moved"),
        ("classes", "class"),
        ("class", "classes"),
        ("migration", "migrate"),
        ("deploy", "deployment"),
        ("quickly", "quick"),
        ("studied", "study"),
        ("filter", "filtered"),
        ("colour", "colors"),
        ("organize", "organised"),
        ("center", "centre"),
    ],
)
def test_finds_other_forms_of_a_word(asked: str, said: str) -> None:
    assert list_word_forms(asked)[0] == asked
    assert said in list_word_forms(asked)


@pytest.mark.parametrize(
    ("asked", "other"),
    [
        ("port", "porter's"),
        ("art", "party"),
        ("car", "caroline"),
        ("one", "only"),
        ("four", "for"),
    ],
)
def test_words_with_the_same_beginning_are_not_forms(asked: str, other: str) -> None:
    assert other not in list_word_forms(asked)


@given(st.text(max_size=40))
def test_every_word_has_few_forms(word: str) -> None:
    assert list_word_forms(word)[0] == word
    assert len(list_word_forms(word)) < 150


def test_recognizes_the_language_of_stop_words() -> None:
    assert "die" in choose_stop_words(["was", "hat", "er", "mit", "den", "Akten", "gemacht", "die"])
    assert "die" not in choose_stop_words(["where", "did", "the", "dog", "die"])
    sought = {
        item.forms[0] for item in read_question("Wo liegen die Akten des Kunden?", NOW).search_words
    }
    assert sought == {"liegen", "akten", "kunden"}
    assert not read_question("What is it, and where was that?", NOW).search_words
    common = read_question("Where was that?", NOW, use_stop_words=True)
    assert [item.forms for item in common.search_words] == [
        ("where",),
        ("that",),
        ("was",),
    ]
    assert read_question("Where was the key?", NOW, use_stop_words=True).search_words == (
        read_question("Where was the key?", NOW).search_words
    )


def test_identifiers_come_first_and_weigh_more() -> None:
    question = read_question(
        "word " * 50 + "why does src/billing/tax.py fail in round_half_up", NOW
    )
    assert [item.forms for item in question.search_words if item.weight == IDENTIFIER_WEIGHT] == [
        ("src/billing/tax.py",),
        ("round_half_up",),
    ]
    many = read_question(
        " ".join(f"word{number} " for number in range(900)) + "tests/test_tax.py", NOW
    )
    assert len(many.search_words) == MAX_SEARCH_WORDS
    assert many.search_words[0].forms == ("tests/test_tax.py",)


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("on May 23, 2023", "2023-05-23", "2023-05-26"),
        ("on the 3rd of March 2022", "2022-03-03", "2022-03-07"),
        ("am 3. März 2022", "2022-03-03", "2022-03-07"),
        ("el 3 de marzo de 2022", "2022-03-03", "2022-03-07"),
        ("the log of 2023-02-28", "2023-02-28", "2023-02-20"),
        ("in January 2023", "2023-01-30", "2023-03-01"),
        ("what I said yesterday", "2023-06-14", "2023-06-01"),
        ("last week", "2023-06-07", "2023-05-01"),
        ("three weeks ago", "2023-05-25", "2023-06-14"),
        ("shared on December 1,2022", "2022-12-01", "2022-12-05"),
        ("the log of 2023/2/28", "2023-02-28", "2023-02-20"),
        ("2023年2月28日", "2023-02-28", "2023-02-20"),
        ("how often in 2022?", "2022-07-01", "2023-02-01"),
        ("what was decided last Tuesday", "2023-06-13", "2023-06-09"),
        ("on Thursday", "2023-06-08", "2023-06-13"),
        ("last weekend", "2023-06-10", "2023-05-30"),
        ("a few weekends ago", "2023-05-25", "2023-06-12"),
        ("a couple of months back", "2023-04-16", "2023-06-12"),
        ("in the last ten days", "2023-06-07", "2023-06-01"),
        ("the day before yesterday", "2023-06-13", "2023-06-09"),
        ("during the summer of 2022", "2022-07-15", "2022-11-01"),
        ("at 2023-02-28T10:00:00Z", "2023-02-28", "2023-02-20"),
    ],
)
def test_reads_dates_as_spans(text: str, inside: str, outside: str) -> None:
    (span,) = find_dates(text, NOW)
    assert noon_of(inside) in span
    assert noon_of(outside) not in span


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        (
            "camping in June",
            ["2022-06-10", "2021-06-10"],
            ["2022-09-01", "2010-06-10"],
        ),
        ("on May 3", ["2022-05-03"], ["2022-05-20"]),
        ("am 3. März", ["2022-03-03"], ["2022-03-20"]),
        (
            "on 3/4/2022",
            ["2022-03-04", "2022-04-03"],
            ["2022-06-01"],
        ),
        ("on 23/4/2022", ["2022-04-23"], ["2022-06-01"]),
        ("on 4.4.2022", ["2022-04-04"], ["2022-06-01"]),
    ],
)
def test_ambiguous_date_gives_several_spans(
    text: str, inside: list[str], outside: list[str]
) -> None:
    spans = find_dates(text, NOW)
    assert all(any(noon_of(day) in span for span in spans) for day in inside)
    assert not any(noon_of(day) in span for day in outside for span in spans)


def test_words_of_dates_are_not_counted() -> None:
    assert not find_dates(
        "2023-13-45, February 31, 2023, you may 12 times, march on, in winter 0000", NOW
    )
    question = read_question("Who sang on May 23, 2023?", NOW)
    assert {item.forms[0]: item.is_counted for item in question.search_words} == {
        "sang": True,
        "may": False,
        "23": False,
        "2023": False,
    }


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("what does rule 3 say about the harbour?", ("rule", "3")),
        ("tell me again what rule number 3 is about", ("rule", "number", "3")),
        ("tell me again what rule number 3 is about", ("rule", "3")),
        ("what did we write as rule no. 3 of the harbour?", ("rule", "3")),
        ("did we go for plan B in the end, after all?", ("plan", "b")),
    ],
)
def test_phrase_of_a_number_includes_its_noun(text: str, phrase: tuple[str, ...]) -> None:
    assert phrase in read_question(text, NOW).phrases


def test_longest_phrase_comes_first() -> None:
    phrases = read_question("rule number 3", NOW).phrases
    assert phrases == (
        ("rule", "number", "3"),
        ("number", "3"),
        ("rule", "3"),
    )
    assert read_question("in the 3", NOW).phrases == (("in", "the", "3"),)


@given(st.text(max_size=300))
def test_reads_any_text(text: str) -> None:
    question = read_question(text, NOW)
    assert all(form for item in question.search_words for form in item.forms)


def test_rare_words_weigh_more_and_long_texts_less() -> None:
    assert compute_rarity(1, 1_000) > compute_rarity(100, 1_000) > compute_rarity(900, 1_000) > 0
    assert compute_rarity(5, 0) > 0, "a count that is behind"
    assert is_distinctive(10, 100)
    assert not is_distinctive(60, 100)
    assert is_distinctive(2, 2), "of two texts one cannot tell"
    assert (
        compute_length_penalty(100) < compute_length_penalty(1_000) < compute_length_penalty(8_000)
    )


def test_messages_borrow_words_within_a_conversation() -> None:
    before = NEIGHBOUR_SHARES[-1]
    after = NEIGHBOUR_SHARES[1]
    assert borrow_words([{}, {7: 4.0}, {}, {}], [1, 1, 1, 2]) == [
        {7: 4 * after},
        {},
        {7: 4 * before},
        {},
    ]
    twice = borrow_words([{7: 1.0}, {7: 4.0}, {}], [1, 1, 1])
    assert twice[2] == {7: 4 * before}, "a word of two neighbours counts once"
    better_first = borrow_words([{7: 4.0}, {}, {7: 1.0}], [1, 1, 1])
    assert better_first[1] == {7: 4 * before}, "at its best, in any order"
    assert borrow_words([], []) == []


def test_conversation_adds_a_share_of_its_best_scores() -> None:
    added = rate_conversations([1.0, 4.0, 2.0, 0.0], [1, 1, 1, 2])
    assert added == {1: CONVERSATION_SCORE_WEIGHT * 3.0, 2: 0.0}
    assert rate_conversations([], []) == {}


def test_closeness_is_the_answered_share() -> None:
    assert rate_closeness(4.0, weigh_question([3.0, 1.0, 4.0])) == 0.5
    assert rate_closeness(0.0, weigh_question([3.0])) == 0.0
    assert rate_closeness(0.0, weigh_question([])) == 0.0
    assert rate_closeness(12.0, weigh_question([2.0] * 24)) == 1.0, (
        "the six rarest words of a long message are enough"
    )
