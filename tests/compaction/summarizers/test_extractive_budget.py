"""How lines find room: shares, what flows from one section to another, names in place of lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.summarizers.extract_budget import SHARES, Page, choose, rooms, wants
from everthread.compaction.summarizers.extract_lines import Line
from everthread.core.summary import CRITICAL, DONE, FILES, GOAL, RULES, STATE

SECTIONS = st.dictionaries(
    st.sampled_from(list(SHARES)),
    st.lists(st.builds(Line, st.text("ab ", min_size=1, max_size=200), st.floats(0.1, 9)), min_size=1, max_size=20),
)


def count(text: str) -> int:
    return len(text) // 4 + 1


def many(number: int, text: str = "a line of some length about something", *, brief: str = "") -> list[Line]:
    return [
        Line(f"{text} {place}", 1 + place / 100, place, brief and f"{brief}{place}", brief and "also")
        for place in range(number)
    ]


@given(SECTIONS, st.integers(0, 5_000))
def test_rooms_are_within_the_budget(drafts: dict[str, list[Line]], budget: int) -> None:
    assert sum(rooms(drafts, budget).values()) <= budget


def test_what_a_section_does_not_want_goes_to_the_others() -> None:
    alone = rooms({GOAL: many(200), STATE: many(200)}, 1_000)
    beside = rooms({GOAL: many(200), STATE: many(1)}, 1_000)
    assert beside[GOAL] > alone[GOAL]
    assert beside[STATE] == wants(many(1))


def test_rules_and_the_names_of_files_come_first() -> None:
    found = rooms({RULES: many(20), FILES: many(40, brief="f"), DONE: many(900), CRITICAL: many(900)}, 2_000)
    assert found[RULES] == wants(many(20))
    assert found[FILES] >= 40 * 2


def test_where_room_is_very_short_the_less_important_sections_go_without() -> None:
    drafts = {name: many(20) for name in SHARES}
    assert set(rooms(drafts, 130)) < set(rooms(drafts, 5_000)) == set(SHARES)


def test_the_weightiest_lines_are_chosen_and_shown_in_order() -> None:
    lines = [Line("early", 2.0, 1), Line("worthless " * 9, 0.1, 2), Line("late", 3.0, 3)]
    chosen, left = choose(lines, 12, count)
    assert chosen.texts() == ["early", "late"]
    assert left < 12


def test_lines_that_do_not_fit_leave_their_names() -> None:
    chosen, _ = choose(many(30, brief="n"), 150, count)
    assert chosen.lines
    assert chosen.texts()[-1].startswith("also: n")
    assert len(chosen.lines) + len(chosen.names) > 15
    everything, _ = choose(many(30, brief="n"), 1_000, count)
    assert len(everything.lines) == 30


def test_rather_than_nothing_the_beginning_of_a_line_is_told() -> None:
    chosen, _ = choose([Line("word " * 100, 1.0)], 20, count)
    assert chosen.texts()[0].endswith("…")
    assert choose([Line("word " * 100, 1.0)], 10, count)[0].texts() == []


def test_no_kind_of_name_crowds_out_the_others() -> None:
    tasks = [Line("x" * 400, 4.0, place, "task " * 5 + str(place), "tasks") for place in range(50)]
    commands = [Line("x" * 400, 1.0, place, "command " * 5 + str(place), "commands") for place in range(50)]
    chosen, _ = choose([*tasks, *commands], 1_000, count)
    kinds = [line.kind for line in chosen.names]
    assert kinds.count("tasks") > kinds.count("commands") > 0


def test_a_page_says_nothing_twice_and_can_be_made_smaller() -> None:
    drafts = {GOAL: [Line("the port is 8443", 5.0)], CRITICAL: [Line("value: 8443", 1.0, value="8443"), *many(9)]}
    page = Page(count)
    page.fill(drafts, 200)
    assert page.text.count("8443") == 1
    assert page.left_out(drafts) == 0
    before = len(page.text.split("\n"))
    assert page.drop(10)
    assert len(page.text.split("\n")) == before - 1
    assert "8443" in page.text
    assert page.drop(10_000)
    assert not page.drop(1)
