"""A summary of a summary: what holds stays, numbers go on, what is finished moves, nothing grows without bound."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.core.messages import Message
from everthread.core.summary import (
    ANSWERED,
    ASKS,
    BLOCKED,
    CRITICAL,
    DECISIONS,
    DONE,
    FILES,
    GOAL,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
    Sections,
    parse_sections,
    render_sections,
)
from everthread.core.transcript import spans
from tests.compaction.summarizers.extractive_dialogues import COUNTER, Dialogue, lines, summarised, whole
from tests.core.strategies import histories

FAILED = "FAILED tests/test_app.py::test_login - assert 401 == 200\n1 failed, 4 passed in 0.3s\n[exit code 1]"
PASSED = "5 passed in 0.2s\n[exit code 0]"


def again(sections: Sections) -> Sections:
    """The sections as the next compaction gets them: read back from the text."""
    return parse_sections(render_sections(sections))


def first() -> Sections:
    dialogue = (
        Dialogue()
        .user("Build the shop. Never touch the migrations folder. Note: the staging host is db-07.internal, port 6543.")
        .edits("src/app.py", text="The cart comes first.")
        .runs("cd /srv/shop && pytest -q tests/test_app.py", FAILED)
        .says("The cart is there; one test fails.")
        .user("Let's use SQLite for the cache because it works offline.")
        .says("Noted.")
    )
    return again(summarised(dialogue))


def test_numbers_go_on_and_old_actions_stay() -> None:
    before = lines(first(), DONE)
    after = lines(summarised(Dialogue().user("Next").edits("src/new.py").says("Done."), previous=first()), DONE)
    assert [line for line in after if line in before] == [
        line for line in before if "pytest" not in line or line in after
    ]
    numbers = [int(line.split(".")[0]) for line in after]
    assert numbers == list(range(1, len(numbers) + 1))
    assert after[: len(before)] == before


def test_an_action_done_again_is_told_once_with_its_count() -> None:
    dialogue = Dialogue().user("Again").runs("cd /srv/shop && pytest -q tests/test_app.py", PASSED).says("Green.")
    done = [line for line in lines(summarised(dialogue, previous=first()), DONE) if "pytest" in line]
    assert len(done) == 1
    assert "5 passed (2×)" in done[0]


def test_an_error_stays_until_its_command_succeeds() -> None:
    assert "test_login" in first()[BLOCKED]
    other = again(summarised(Dialogue().user("Docs").edits("README.md").says("Written."), previous=first()))
    assert "test_login" in other[BLOCKED]
    fixed = Dialogue().user("Fix it").runs("pytest -q tests/test_app.py", PASSED).says("Fixed.")
    assert BLOCKED not in summarised(fixed, previous=other)


def test_state_is_brought_up_to_date() -> None:
    state = first()[STATE]
    assert "Working directory: /srv/shop" in state
    assert "1 failed, 4 passed" in state
    dialogue = (
        Dialogue().user("Go on").runs("cd /srv/cart && pytest -q tests/test_app.py", PASSED).edits("b.py").says("Ok.")
    )
    state = summarised(dialogue, previous=first())[STATE]
    assert "Working directory: /srv/cart" in state
    assert "/srv/shop`" not in state
    assert "5 passed" in state
    assert "1 failed" not in state
    assert "Changed files: b.py, app.py" in state


def test_counts_of_files_add_up() -> None:
    dialogue = (
        Dialogue().user("More").edits("src/app.py", text="The cart gets a total.").reads("src/app.py").says("Ok.")
    )
    files = lines(summarised(dialogue, previous=first()), FILES)
    assert "src/app.py — edited 2×, read 1×; last: The cart gets a total." in files


def test_a_decision_can_be_taken_back_later() -> None:
    assert "SQLite" in first()[DECISIONS]
    dialogue = Dialogue().user("I changed my mind about the cache: use Redis instead of SQLite.").says("Noted.")
    decided = lines(summarised(dialogue, previous=first()), DECISIONS)
    assert len(decided) == 1
    assert "Redis" in decided[0]


def test_a_rule_can_be_replaced_later_and_otherwise_stays() -> None:
    previous = first() | {RULES: first()[RULES] + "\n- From now on answer in German."}
    rules = lines(summarised(Dialogue().user("From now on answer in English.").says("Ok."), previous=previous), RULES)
    assert "Never touch the migrations folder." in rules
    assert "From now on answer in English." in rules
    assert "From now on answer in German." not in rules


def test_what_was_asked_is_settled_by_the_turn_that_answers_it() -> None:
    previous: Sections = {ASKS: "- Write the changelog entry for the release\n- Translate the handbook into Spanish"}
    dialogue = Dialogue().user("Now the changelog entry").edits("CHANGELOG.md")
    dialogue.says("The changelog entry for the release is written.")
    assert lines(summarised(dialogue, previous=previous), ASKS) == ["Translate the handbook into Spanish"]


def test_what_was_being_worked_on_is_settled_by_the_answer_that_comes_first() -> None:
    previous: Sections = {ASKS: "- Rename everything", PROGRESS: "- Renaming the last module"}
    dialogue = Dialogue().edits("a.py").says("It is all renamed.")
    sections = summarised(dialogue, previous=previous)
    assert ASKS not in sections
    assert lines(sections, PROGRESS) == ["Last finished: It is all renamed."]


def test_work_in_progress_stays_while_nothing_is_finished() -> None:
    previous: Sections = {PROGRESS: "- Renaming the last module\n- Last said: I rename."}
    progress = lines(summarised(Dialogue().edits("a.py"), previous=previous), PROGRESS)
    assert progress[0] == "Renaming the last module"
    assert "Last said: I rename." not in progress
    assert lines(summarised([], previous=previous), PROGRESS) == ["Renaming the last module", "Last said: I rename."]


def test_remaining_work_stays_until_it_is_done_or_a_new_list_is_made() -> None:
    previous: Sections = {REMAINING: "- rotate the old logs\n- delete the stale cache"}
    dialogue = Dialogue().user("The logs").runs("logrotate -f x").says("Done: the old logs rotate every night now.")
    assert lines(summarised(dialogue, previous=previous), REMAINING) == ["delete the stale cache"]
    listed = dialogue.calls("update_plan", {"plan": [{"step": "write docs", "status": "pending"}]})
    assert lines(summarised(listed, previous=previous), REMAINING) == ["write docs"]


def test_what_another_author_wrote_is_kept() -> None:
    previous: Sections = {
        GOAL: "Ship version 2 of the shop.",
        DONE: "1. Wrote the parser\n2. Fixed `src/lexer.py`",
        FILES: "- `src/lexer.py`: the tokens\n- the file lib/tree.py holds the tree",
        STATE: "- Node 22 is installed",
        ANSWERED: "- Q: which port? A: 8443",
        CRITICAL: "- The API key is in the vault\n  under shop/key",
        REMAINING: "None.",
    }
    sections = summarised(Dialogue().user("Go on").edits("src/lexer.py").says("Done."), previous=previous)
    assert lines(sections, GOAL)[0] == "Ship version 2 of the shop."
    assert lines(sections, DONE)[:2] == ["1. Wrote the parser", "2. Fixed `src/lexer.py`"]
    assert lines(sections, DONE)[2].startswith("3. ")
    assert any(line.startswith("src/lexer.py — edited 1×") for line in lines(sections, FILES))
    assert any("lib/tree.py" in line for line in lines(sections, FILES))
    assert "Node 22 is installed" in lines(sections, STATE)
    assert "Q: which port? A: 8443" in lines(sections, ANSWERED)
    assert "The API key is in the vault under shop/key" in lines(sections, CRITICAL)
    assert REMAINING not in sections
    assert "from 4 messages and an earlier summary" in sections[CRITICAL]


def test_what_the_pipeline_added_is_understood() -> None:
    previous: Sections = {
        RULES: "The user's standing rules, word for word:\n- Never push to main.",
        FILES: "- also touched: a/b.py, c/d.py",
        CRITICAL: "- identifier: getUser, shop_id (unverified)\n- value: took 30s, then 40s, as always on Mondays\n"
        "- error: E1: bad (from bash: make)\n\nQuoted from earlier messages:\n> #12 user: The port is 8443.",
    }
    sections = summarised(Dialogue().user("Go on").edits("x.py").says("Done."), previous=previous)
    assert lines(sections, RULES) == ["Never push to main."]
    assert "a/b.py" in sections[FILES]
    context = sections[CRITICAL]
    assert "identifier: getUser, shop_id" in context
    assert "value: took 30s, then 40s, as always on Mondays" in context
    assert "User: The port is 8443." in context
    assert "Quoted from" not in context
    assert "unverified" not in context


def test_it_counts_all_messages_it_stands_for() -> None:
    sections = summarised(Dialogue().user("Go on").says("Done."), previous=first())
    assert "from 10 messages" in sections[CRITICAL].split("\n")[-1]
    assert sections[CRITICAL].count("Extracted without a model") == 1


# Chains

TURNS = 10


def part(number: int) -> Dialogue:
    """New turns, with something of their own."""
    dialogue = Dialogue()
    for step in range(4):
        name = f"module_{number}_{step}"
        dialogue.user(f"Rework {name}: it must not lose entries when the disk is full")
        dialogue.reads(f"src/{name}.py").edits(
            f"src/{name}.py", f"def keep_{name}(): ...", text=f"{name} flushes too late."
        )
        dialogue.runs(f"pytest -q tests/test_{name}.py", FAILED if step == 1 else PASSED)
        dialogue.runs(f"pytest -q tests/test_{name}.py", PASSED).says(f"{name} keeps its entries now.")
    return dialogue


@pytest.mark.parametrize("budget", [1_500, 4_000])
def test_ten_in_a_row_neither_grow_nor_forget_nor_repeat(budget: int) -> None:
    sections = first()
    for number in range(TURNS):
        sections = again(summarised(part(number), budget=budget, previous=sections))
        assert COUNTER.text(whole(sections)) <= budget
        told = [line for line in whole(sections).split("\n") if line.strip() not in ("", "None.")]
        assert [line for line in told if told.count(line) > 1] == []
    text = whole(sections)
    for fact in ("Never touch the migrations folder.", "db-07.internal, port 6543", "SQLite", "Build the shop."):
        assert fact in text
    assert "module_9_3" in text
    names = [f"src/module_{number}_{step}.py" for number in range(TURNS) for step in range(4)]
    kept = sum(name in text for name in names)
    assert kept >= (len(names) if budget > 2_000 else len(names) // 2)
    assert all("tests/test_app.py" in line for line in lines(sections, BLOCKED)), "what was settled is not blocked"


def test_numbers_never_go_back() -> None:
    sections = first()
    last = 0
    for number in range(4):
        sections = again(summarised(part(number), budget=1_200, previous=sections))
        numbers = [int(line.split(".")[0]) for line in lines(sections, DONE) if line[0].isdigit()]
        assert numbers == sorted(set(numbers))
        assert numbers[-1] > last
        last = numbers[-1]


def test_summarising_nothing_new_keeps_what_there_is() -> None:
    sections = first()
    for _ in range(5):
        sections = again(summarised([], budget=3_000, previous=sections))
    assert {name: set(lines(sections, name)) for name in sections} == {
        name: set(lines(first(), name)) for name in first()
    }


@given(st.lists(histories(), min_size=2, max_size=4), st.integers(200, 1_500))
def test_no_chain_exceeds_the_budget(parts: list[list[Message]], budget: int) -> None:
    sections: Sections = {}
    for messages in parts:
        sections = again(summarised(messages, budget=budget, previous=sections))
        assert COUNTER.text(render_sections(sections)) <= budget


# The session that comes with the project

PLANTED = (
    "db-staging-07.internal", "port 6543", "ledger_v3", "E-4417", "row 48213", "0x4C45_4447", "7 attempts",
    "minor units", "never touch the migrations folder", "always run `make check`", "从现在起,提交说明请用中文写",
    "var/log/import-nightly.log",
)  # fmt: skip


def session() -> list[Message]:
    path = Path(__file__).parents[3] / "examples" / "long_session.json"
    messages: list[Message] = json.loads(path.read_text("utf-8"))["messages"]
    return messages[1:]


@pytest.mark.parametrize("times", [1, 10])
def test_what_was_planted_in_a_long_session_survives(times: int) -> None:
    messages = session()
    starts = [span.start for span in spans(messages)]
    cuts = [starts[len(starts) * place // times] for place in range(times)] + [len(messages)]
    sections: Sections = {}
    for start, end in pairwise(cuts):
        sections = again(summarised(messages[start:end], budget=10_000, previous=sections))
    text = whole(sections)
    assert COUNTER.text(text) <= 10_000
    assert [fact for fact in PLANTED if fact not in text] == []
    assert any("advisory locks" in line for line in lines(sections, DECISIONS))
    assert not any("Let's use optimistic locking" in line for line in lines(sections, DECISIONS))
    paths: set[str] = {arguments["path"] for arguments in calls(messages) if arguments.get("path", "").endswith(".py")}
    commands: set[str] = {arguments["command"] for arguments in calls(messages) if "command" in arguments}
    assert [path for path in paths if path not in text] == []
    assert [command for command in commands if command not in text] == []


def calls(messages: list[Message]) -> list[dict[str, Any]]:
    return [json.loads(call["function"]["arguments"]) for message in messages for call in message.get("tool_calls", [])]


def test_what_runs_and_where_it_runs_is_carried_on_until_it_is_stopped() -> None:
    previous: Sections = {STATE: "- Running: `npm run dev &` at http://localhost:3000\n- Environment: Python 3.12.4"}
    state = lines(summarised(Dialogue().user("Go on").edits("a.py").says("Ok."), previous=previous), STATE)
    assert "Running: `npm run dev &` at http://localhost:3000" in state
    assert "Environment: Python 3.12.4" in state
    stopped = summarised(Dialogue().user("Stop").runs("pkill node").says("Ok."), previous=previous)
    assert "Running" not in stopped[STATE]


def test_a_remark_about_no_file_in_particular_is_kept() -> None:
    previous: Sections = {FILES: "- all tests live beside their modules"}
    files = lines(summarised(Dialogue().user("Go on").edits("a.py").says("Ok."), previous=previous), FILES)
    assert "all tests live beside their modules" in files


def test_an_assistant_does_not_take_back_what_the_user_decided() -> None:
    dialogue = Dialogue().user("Faster").says("We'll use Redis for the cache instead of SQLite because it is faster.")
    assert any("Let's use SQLite" in line for line in lines(summarised(dialogue, previous=first()), DECISIONS))
