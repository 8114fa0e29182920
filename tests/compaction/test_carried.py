"""Facts that later summaries must not lose."""

from __future__ import annotations

from everthread.compaction.compressor.carried import AGED, MOST, Carried, carry
from everthread.core.facts import COMMAND, DECISION, FIGURE, Fact
from everthread.core.mentions import ERROR, IDENTIFIER, PATH, VALUE


def carried(new: list[Fact], known: Carried | None = None, spoken: list[tuple[int, str]] | None = None) -> Carried:
    before = known or Carried((), ())
    return carry(before.facts, new, spoken or [], before.gone, 100)


def values(result: Carried) -> list[str]:
    return [fact.value for fact in result.facts]


def test_what_is_held_on_to() -> None:
    new = [
        Fact(DECISION, "We go with Vue.", by_user=True),
        Fact(DECISION, "I chose Vue because the team knows it."),
        Fact(DECISION, "Good, we go with Vue."),
        Fact(IDENTIFIER, "named_by_user", by_user=True),
        Fact(IDENTIFIER, "only_seen"),
        Fact(IDENTIFIER, "A1B2C3", held=True),
        Fact(PATH, "conf/a.yaml", by_user=True),
        Fact(VALUE, "3 rows"),
        Fact(COMMAND, "make all"),
        Fact(FIGURE, "3 rows done"),
    ]
    assert set(values(carried(new))) == {
        "We go with Vue.",
        "I chose Vue because the team knows it.",
        "named_by_user",
        "A1B2C3",
        "conf/a.yaml",
        "make all",
        "3 rows done",
    }


def test_of_an_outputs_errors_the_most_telling_is_kept_while_it_is_recent() -> None:
    new = [
        Fact(ERROR, "2 failed, 3 passed", where=80),
        Fact(ERROR, "KeyError: the key is missing", where=80),
        Fact(ERROR, "ValueError: long ago and past", where=10),
    ]
    assert values(carried(new)) == ["KeyError: the key is missing"]


def test_facts_age_and_the_weightiest_come_first() -> None:
    first = carried([Fact(IDENTIFIER, "old_name", 4.0, by_user=True)])
    second = carried([Fact(IDENTIFIER, "new_name", 3.9, by_user=True)], first)
    assert [(fact.value, fact.weight) for fact in second.facts] == [("new_name", 3.9), ("old_name", 4.0 * AGED)]


def test_a_name_the_user_told_apart_weighs_more() -> None:
    new = [Fact(IDENTIFIER, "plain_one", 4.0, by_user=True), Fact(IDENTIFIER, "grey_one", 4.0, by_user=True, held=True)]
    assert values(carried(new)) == ["grey_one", "plain_one"]


def test_of_figures_in_the_same_words_the_last_counts_and_weighs_less() -> None:
    first = carried([Fact(FIGURE, "12 of 40 done", 2.0)])
    second = carried([Fact(FIGURE, "31 of 40 done", 2.0), Fact(FIGURE, "disk at 97%", 2.0)], first)
    assert [(fact.value, fact.weight) for fact in second.facts] == [("disk at 97%", 2.0), ("31 of 40 done", 1.0)]
    assert carried([Fact(FIGURE, "31 of 40 done", 2.0)], second).facts[0].weight == 2.0, "the same again is no news"


def test_there_is_a_limit_for_each_kind() -> None:
    new = [Fact(COMMAND, f"make {n}", float(n)) for n in range(MOST[COMMAND] + 9)]
    kept = values(carried([*new, Fact(DECISION, "We go with Vue.", 0.1, by_user=True)]))
    assert len(kept) == MOST[COMMAND] + 1
    assert "make 0" not in kept
    assert "We go with Vue." in kept


def test_a_decision_is_gone_once_the_user_takes_it_back() -> None:
    old = Fact(DECISION, "We go with Vue for the shop.", 9.0, 10, by_user=True)
    first = carried([old])
    later = "I changed my mind about the shop: Vue is too slow there. Use Svelte instead."
    second = carried([], first, [(50, later)])
    assert second.gone == ("We go with Vue for the shop.",)
    assert values(second) == [later], "what replaced it is held on to"
    assert values(carried([], Carried((old, *second.facts), second.gone))) == [later], "and it does not come back"
    assert old.value in values(carried([old], second)), "unless the user says so again"


def test_what_only_revises_is_a_decision_where_it_takes_one_back() -> None:
    first = carried([Fact(DECISION, "The retention stays at 30 days.", 9.0, 10, by_user=True)])
    later = "The retention is raised to 90 days."
    assert values(carried([], first, [(50, later)])) == [later]
    assert values(carried([], None, [(50, later)])) == []
    seen_again = carried([], carried([], first, [(50, later)]), [(60, later)])
    assert values(seen_again) == [later]


def test_what_was_said_before_a_decision_does_not_take_it_back() -> None:
    first = carried([Fact(DECISION, "We go with Vue for the shop.", 9.0, 60, by_user=True)])
    early = "Forget Vue for the shop."
    assert "We go with Vue for the shop." in values(carried([], first, [(20, early)]))
