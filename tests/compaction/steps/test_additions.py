"""Facts that are added to a summary."""

from __future__ import annotations

from everthread.compaction.steps.additions import LONGEST_ERROR, Additions
from everthread.core.facts import COMMAND, DECISION, FIGURE, Fact
from everthread.core.mentions import ERROR, IDENTIFIER, VALUE


def words(text: str) -> int:
    return len(text.split())


def added(facts: list[Fact], room: int = 1_000) -> Additions:
    more = Additions(room, words)
    more.share_out(facts)
    return more


def test_decisions_stand_apart_and_names_share_a_line() -> None:
    more = added(
        [
            Fact(DECISION, "We go with Vue."),
            Fact(IDENTIFIER, "load_all"),
            Fact(IDENTIFIER, "load_one"),
            Fact(ERROR, "E   KeyError: x"),
            Fact(ERROR, "y" * 400),
            Fact(FIGURE, "12 of 40 done"),
            Fact(VALUE, "port 80", quote="The host listens on port 80."),
            Fact(COMMAND, "cd app &&\n  make all"),
        ]
    )
    assert more.decisions == ["- We go with Vue."]
    assert set(more.lines) == {
        "- 12 of 40 done",
        "- The host listens on port 80.",
        f"- errors: KeyError: x | {'y' * LONGEST_ERROR}",
        "- command: cd app && make all",
        "- identifier: load_all, load_one",
    }
    assert more.added == 8


def test_what_is_told_by_now_is_not_told_again() -> None:
    more = added([Fact(DECISION, "We go with Vue on port 80."), Fact(VALUE, "port 80", quote="Vue on port 80")])
    assert more.added == 1


def test_every_group_gets_its_share_of_a_short_room() -> None:
    groups = {
        DECISION: [Fact(DECISION, f"We chose number {n}.") for n in range(40)],
        ERROR: [Fact(ERROR, f"KeyError: number {n}") for n in range(40)],
        FIGURE: [Fact(FIGURE, f"{n} of 400 done") for n in range(40)],
        IDENTIFIER: [Fact(IDENTIFIER, f"name_{n}", by_user=True) for n in range(40)],
        COMMAND: [Fact(COMMAND, f"make target_{n} now") for n in range(40)],
    }
    more = added([fact for facts in groups.values() for fact in facts], room=160)
    text = "\n".join((*more.decisions, *more.lines))
    assert words(text) <= 160
    counts = {kind: sum(fact.value in text for fact in facts) for kind, facts in groups.items()}
    assert all(counts.values())
    assert counts[ERROR] >= counts[COMMAND]
    assert groups[ERROR][0].value in text, "the first come first"


def test_without_room_nothing_is_added() -> None:
    assert added([Fact(IDENTIFIER, "load_all")], room=3).lines == []
