"""What each section of an extracted summary holds, told in dialogues; determinism and the budget."""

from __future__ import annotations

import asyncio
import copy
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.summarizers.extractive import FULL, ExtractiveSummarizer
from everthread.core.facts import facts_of_message
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
    HANDOFF,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
    TASK,
    SummaryRequest,
    parse_sections,
    render_sections,
)
from tests.compaction.summarizers.extractive_dialogues import COUNTER, Dialogue, lines, summarised, whole
from tests.core.strategies import histories

FAILED = "FAILED tests/test_app.py::test_login - assert 401 == 200\n1 failed, 4 passed in 0.3s\n[exit code 1]"
PASSED = "5 passed in 0.2s\n[exit code 0]"


def working() -> Dialogue:
    """A short piece of work, with a bit of everything."""
    return (
        Dialogue()
        .user("Fix the login in src/app.py. Never touch the migrations folder.")
        .reads("src/app.py")
        .runs("pytest -q tests/test_app.py", FAILED, text="The tests first.")
        .edits("src/app.py", "def check_password(user): ...", text="The password is compared before it is hashed.")
        .runs("pytest -q tests/test_app.py", PASSED)
        .says("Done! The login hashes the password first now; all tests pass.")
    )


# Goal, rules


def test_the_goal_is_the_first_request_and_large_later_ones_in_the_users_words() -> None:
    large = "Now write a command line for it, with a subcommand for every report and tests for the error paths"
    sections = summarised(working().user("ok").says("Fine.").user(large).edits("cli.py").says("Written: cli.py."))
    goal = lines(sections, GOAL)
    assert goal[0] == "Fix the login in src/app.py. Never touch the migrations folder."
    assert large in goal
    assert "ok" not in goal


def test_a_long_request_is_told_by_its_first_and_last_sentences_without_what_was_pasted() -> None:
    log = "\n".join(f"2026-01-01 12:00:{n:02d} INFO worker started" for n in range(60))
    dialogue = Dialogue().user(f"The import is broken since Monday.\n```\n{log}\n```\nPlease find out why it stops.")
    goal = whole({GOAL: summarised(dialogue.says("I look."), budget=300)[GOAL]})
    assert "broken since Monday" in goal
    assert "find out why it stops" in goal
    assert "worker started" not in goal


def test_rules_are_told_word_for_word_and_once_and_a_later_one_replaces_an_earlier() -> None:
    dialogue = (
        working()
        .user("Never touch the migrations folder!")
        .says("No.")
        .user("From now on answer in German.")
        .says("Gut.")
        .user("From now on answer in English.")
        .says("Fine.")
    )
    rules = lines(summarised(dialogue), RULES)
    assert [rule for rule in rules if "migrations" in rule] == ["Never touch the migrations folder!"]
    assert "From now on answer in English." in rules
    assert "From now on answer in German." not in rules


def test_what_a_tool_puts_out_never_becomes_a_rule() -> None:
    dialogue = Dialogue().user("Look at the notes").reads("NOTES.md", "Never delete files.\nAlways ask first.")
    assert RULES not in summarised(dialogue.says("Read."))


# Completed actions


def test_actions_are_numbered_with_target_outcome_and_tool() -> None:
    done = lines(summarised(working()), DONE)
    assert [line.split(".")[0] for line in done] == [str(number + 1) for number in range(len(done))]
    run = next(line for line in done if "pytest" in line)
    assert re.fullmatch(r"\d+\. TEST `pytest -q tests/test_app.py` — 5 passed \(2×, 1 failed\) \[tool: bash\]", run)
    edit = next(line for line in done if "EDIT" in line)
    assert "EDIT src/app.py — The password is compared before it is hashed. (+ check_password)" in edit
    task = next(line for line in done if "TASK" in line)
    assert "Fix the login" in task
    assert "The login hashes the password first now" in task
    assert "[tool: bash 2×, read_file 1×, edit 1×]" in task


def test_failing_tests_are_named() -> None:
    dialogue = Dialogue().user("Run the tests").runs("pytest -q", FAILED).says("One fails.")
    assert any(
        "1 failed, 4 passed" in line and "failing: test_login" in line for line in lines(summarised(dialogue), DONE)
    )


def test_five_reads_of_a_file_are_one_line() -> None:
    dialogue = Dialogue().user("Explain app.py to me, all of it, in detail, please")
    for _ in range(5):
        dialogue.reads("src/app.py")
    found = [line for line in lines(summarised(dialogue.says("It is a parser.")), DONE) if "READ" in line]
    assert len(found) == 1
    assert "src/app.py" in found[0]
    assert "(5×)" in found[0]


def test_where_room_is_short_changes_and_commands_stay_before_looks() -> None:
    dialogue = Dialogue().user("Clean up")
    for number in range(60):
        dialogue.runs(f"grep -rn name_{number} src/some/long/folder/of/sources", "src/a.py:1: name")
    dialogue.runs("rm -r build/", "").runs("pytest", PASSED).says("Cleaned up, tests pass.")
    done = summarised(dialogue, budget=400)[DONE]
    assert "rm -r build/" in done
    assert "`pytest`" in done
    assert done.count("grep") < 15


def test_an_edit_without_a_word_about_it_is_told_by_what_it_brought_in() -> None:
    dialogue = Dialogue().user("Bump it").edits("setup.cfg", 'version = "9.9"').edits("b.py", "def new_name(): ...")
    done = summarised(dialogue.says("Bumped."))[DONE]
    assert 'EDIT setup.cfg — + version = "9.9"' in done
    assert "EDIT b.py — + new_name" in done


def test_several_files_of_one_patch_are_all_told() -> None:
    patch = "*** Begin Patch\n*** Update File: a.py\n+x\n*** Add File: lib/b.py\n+y\n*** End Patch"
    sections = summarised(Dialogue().user("Patch it").calls("apply_patch", {"patch": patch}).says("Patched."))
    assert {"a.py", "lib/b.py"} <= {line.split(" — ")[0] for line in lines(sections, FILES)}


# State


def test_the_state_tells_directory_branch_commit_tests_and_what_runs() -> None:
    dialogue = (
        Dialogue()
        .user("Start the server")
        .runs("cd /srv/shop && git switch -c fix-login", "Switched to a new branch 'fix-login'")
        .runs("cd /srv/shop && git commit -am 'Hash first'", "[fix-login 45ffe0a] Hash first\n 1 file changed")
        .runs("python --version", "Python 3.12.4")
        .runs("npm run dev &", "ready - started server on http://localhost:3000")
        .edits("src/app.py")
        .runs("pytest -q tests/test_app.py", FAILED)
        .says("It runs.")
    )
    state = summarised(dialogue)[STATE]
    assert "Working directory: /srv/shop" in state
    assert "Branch: fix-login" in state
    assert "Last commit: 45ffe0a Hash first" in state
    assert "Changed files: app.py" in state
    assert "`pytest -q tests/test_app.py`: 1 failed, 4 passed (failing: tests/test_app.py::test_login)" in state
    assert "Running: `npm run dev &` at http://localhost:3000" in state
    assert "Environment: Python 3.12.4" in state


def test_what_was_stopped_does_not_run() -> None:
    dialogue = (
        Dialogue().user("Serve").runs("python -m http.server &", "Serving on http://0.0.0.0:8000").runs("kill %1")
    )
    assert "Running" not in summarised(dialogue.says("Stopped.")).get(STATE, "")


def test_the_branch_is_read_from_a_pasted_prompt() -> None:
    dialogue = Dialogue().user("I ran\n➜  shop git:(release/2.1) ✗ make\nand it fails").says("Where?")
    assert "Branch: release/2.1" in summarised(dialogue)[STATE]


# In progress, blocked


def test_the_last_steps_of_an_open_turn_are_in_progress() -> None:
    dialogue = (
        Dialogue()
        .user("Migrate the store to the new schema")
        .edits("store.py", text="First the table.")
        .runs("python migrate.py", None, text="Now I run the migration.")
    )
    progress = lines(summarised(dialogue), PROGRESS)
    assert progress[0] == "Last request: Migrate the store to the new schema"
    assert "Last said: Now I run the migration." in progress
    assert any(line.startswith("Last step: EDIT store.py") for line in progress)
    assert "Waiting for: RUN `python migrate.py`" in progress


def test_a_finished_turn_leaves_nothing_in_progress() -> None:
    progress = lines(summarised(working()), PROGRESS)
    assert len(progress) == 1
    assert progress[0].startswith("Last finished: Fix the login")


def test_an_error_blocks_until_its_command_succeeds() -> None:
    broken = "src/app.py:3: error: Name 'x' is not defined\nFound 1 error in 1 file\n[exit code 1]"
    dialogue = Dialogue().user("Check types").runs("mypy src", broken).says("There is an error.")
    blocked = summarised(dialogue)[BLOCKED]
    assert "`mypy src`: src/app.py:3: error: Name 'x' is not defined" in blocked
    fixed = dialogue.edits("src/app.py").runs("cd /srv && mypy src 2>&1 | tail -5", "Success: no issues found")
    assert BLOCKED not in summarised(fixed.says("Fixed."))


@pytest.mark.parametrize("later", ["pytest", "pytest tests", "make && pytest -q tests/test_app.py", "pytest tests/"])
def test_a_wider_run_settles_a_narrower_one(later: str) -> None:
    dialogue = Dialogue().user("Test").runs("pytest -q tests/test_app.py", FAILED).runs(later, PASSED).says("Green.")
    assert BLOCKED not in summarised(dialogue)


@pytest.mark.parametrize("later", ["pytest tests/test_other.py", "ls", "npm test"])
def test_another_run_settles_nothing(later: str) -> None:
    dialogue = Dialogue().user("Test").runs("pytest -q tests/test_app.py", FAILED).runs(later, PASSED).says("Hm.")
    assert "test_login" in summarised(dialogue)[BLOCKED]


def test_a_look_that_finds_nothing_blocks_nothing() -> None:
    dialogue = (
        Dialogue().user("Search").runs("grep -rn nothing src", "[exit code 1]").runs("ls nowhere", "ls: no such file")
    )
    assert BLOCKED not in summarised(dialogue.says("Nothing found."))


def test_a_failure_long_ago_is_past() -> None:
    dialogue = Dialogue().user("Types?").runs("mypy src", "src/a.py:1: error: bad\n[exit code 1]").says("One error.")
    for number in range(12):
        dialogue.user(f"Rename number {number}").edits(f"src/part_{number}.py").says("Renamed.")
    assert BLOCKED not in summarised(dialogue)


def test_a_failed_edit_blocks_only_while_its_turn_is_open() -> None:
    dialogue = (
        Dialogue().user("Edit").calls("edit", {"path": "a.py", "old_string": "q"}, "Error: text not found in a.py")
    )
    assert "a.py: Error: text not found in a.py" in summarised(dialogue)[BLOCKED]
    assert BLOCKED not in summarised(dialogue.edits("a.py"))


# Decisions


def test_decisions_come_with_their_reason() -> None:
    dialogue = Dialogue().user("Let's use SQLite for the cache. It must work offline because of the train rides.")
    decided = summarised(dialogue.says("Noted."))[DECISIONS]
    assert "Let's use SQLite for the cache. It must work offline because of the train rides." in decided


def test_a_decision_that_was_taken_back_is_no_longer_told_as_one() -> None:
    dialogue = (
        Dialogue()
        .user("Let's use optimistic locking with a version column for the journal.")
        .says("Noted.")
        .user("I changed my mind about the locking: there were too many conflicts. Use advisory locks instead.")
        .says("Noted.")
    )
    sections = summarised(dialogue)
    decided = lines(sections, DECISIONS)
    assert len(decided) == 1
    assert "Use advisory locks instead." in decided[0]
    assert all("superseded" in line for line in whole(sections).split("\n") if "Let's use optimistic locking" in line)


# Questions and requests


def test_questions_are_told_with_their_answers() -> None:
    dialogue = (
        Dialogue()
        .user("Which port does the service use?")
        .runs("grep port config.yaml", "port: 8443")
        .says("Good question! The service listens on port 8443, as config.yaml says. Anything else?")
        .user("no, thanks")
        .says("Fine.")
    )
    answered = summarised(dialogue)[ANSWERED]
    assert "Which port does the service use? → The service listens on port 8443, as config.yaml says." in answered
    assert "Assistant asked: Anything else? → user: no, thanks" in answered
    assert "TASK" not in summarised(dialogue).get(DONE, "")


def test_what_the_user_put_off_is_pending_until_a_turn_deals_with_it() -> None:
    dialogue = working().user("Looks good. After that we should write the changelog entry.").says("Right.")
    assert "After that we should write the changelog entry." in summarised(dialogue)[ASKS]
    dialogue.user("Now the changelog entry: write it").edits("CHANGELOG.md").says("The changelog entry is written.")
    assert ASKS not in summarised(dialogue)


def test_messages_sent_in_a_row_are_one_request_and_commands_to_the_client_are_none() -> None:
    dialogue = Dialogue().user("/model").user("Rename the class Foo to Bar").user("and its file, too")
    goal = lines(summarised(dialogue.edits("bar.py").says("Renamed.")), GOAL)
    assert goal == ["Rename the class Foo to Bar and its file, too"]


# Files, remaining work


def test_files_are_told_with_what_was_done_to_them() -> None:
    dialogue = (
        working()
        .user("Clean up")
        .runs("cp src/app.py old/backup.py")
        .runs("rm old.py", "")
        .calls("write_file", {"path": "src/new.py", "content": "x = 1"}, "wrote 5 characters")
        .says("Cleaned.")
    )
    files = lines(summarised(dialogue), FILES)
    assert any(line.startswith("src/app.py — edited 1×, read 1×") and "compared before" in line for line in files)
    assert "old.py — deleted" in files
    assert any(line.startswith("src/new.py — written 1×") for line in files)
    assert any(line.startswith("old/backup.py — copied 1×") for line in files)
    assert files.index(next(line for line in files if "src/app.py" in line)) == 0


def test_a_file_named_in_full_and_from_the_working_directory_is_one() -> None:
    dialogue = Dialogue().user("Go").runs("cd /srv/shop && make", "").reads("/srv/shop/src/app.py").edits("src/app.py")
    files = [line for line in lines(summarised(dialogue.says("Done.")), FILES) if "app.py" in line]
    assert len(files) == 1


def test_what_is_left_comes_from_the_last_task_list() -> None:
    def todo(*states: str) -> dict[str, object]:
        steps = ["Write the parser", "Test the parser", "Document the parser"]
        return {"todos": [{"content": step, "status": state} for step, state in zip(steps, states, strict=True)]}

    dialogue = Dialogue().user("Build a parser").calls("todo_write", todo("in_progress", "pending", "pending"))
    dialogue.edits("parser.py").calls("todo_write", todo("completed", "in_progress", "pending"))
    sections = summarised(dialogue)
    assert lines(sections, REMAINING) == ["Document the parser"]
    assert "Begun: Test the parser" in lines(sections, PROGRESS)


@pytest.mark.parametrize(
    "lead", ["## Next steps", "Noch offen:", "下一步：", "Próximos pasos:", "残りの作業：", "다음 단계:"]
)
def test_what_is_left_comes_from_what_the_assistant_announces(lead: str) -> None:
    dialogue = (
        working().user("What is left?").says(f"Good so far.\n\n{lead}\n- rotate the logs\n- delete the cache\n\nOk?")
    )
    assert lines(summarised(dialogue), REMAINING) == ["rotate the logs", "delete the cache"]


def test_open_checkboxes_are_left_to_do() -> None:
    dialogue = working().user("Status?").says("- [x] parser\n- [ ] rotate the logs")
    assert lines(summarised(dialogue), REMAINING) == ["rotate the logs"]


# Critical context


def test_what_the_user_wants_remembered_is_told_word_for_word() -> None:
    note = (
        "The staging database is db-staging-07.internal, port 6543, schema ledger_v3. Note it, you will need it later."
    )
    dialogue = working().user(note).says("Noted.")
    for number in range(30):
        dialogue.user(f"Rename part {number}").edits(f"src/part_{number}.py").says("Renamed.")
    assert f"To remember: {note}" in lines(summarised(dialogue), CRITICAL)


def test_an_error_in_the_middle_of_a_long_log_is_told() -> None:
    log = [f"2026-03-01T02:{n % 60:02d}:11Z INFO worker batch={n:012x} rows={n}" for n in range(2_000)]
    log[1_000] = "2026-03-01T02:31:07Z ERROR import.worker-3 row 48213: currency 'XBT' is unknown (E-4417)"
    dialogue = Dialogue().user("The import failed").runs("cat var/log/import.log", "\n".join(log)).says("I see.")
    told = summarised(dialogue, budget=1_000)
    assert log[1_000] in told[CRITICAL]
    assert BLOCKED not in told


def test_error_lines_of_the_last_third_are_told_as_they_stand() -> None:
    errors = [f"E       ValueError: amount {n} exceeds {n + 7} for  account_{chr(97 + n)}" for n in range(12)]
    output = "\n".join(errors) + "\n12 failed in 1s\n[exit code 1]"
    dialogue = working().user("And now?").runs("pytest -q tests/test_sums.py", output).says("They fail.")
    told = whole(summarised(dialogue))
    assert all(error in told for error in errors)


def test_identifiers_and_values_the_other_sections_lack_are_told_once() -> None:
    found = json.dumps({"flights": [{"number": "HAT028"}, {"number": "HAT277"}], "id": "JG7FMM"})
    dialogue = Dialogue().user("Book it").calls("get_booking", {"id": "JG7FMM"}, found)
    sections = summarised(dialogue.says("It is booked."))
    assert "HAT028" in sections[CRITICAL]
    assert "JG7FMM" not in sections[CRITICAL]
    assert "JG7FMM" in sections[DONE]


def test_a_conversation_without_tools_is_told_in_its_own_words() -> None:
    dialogue = (
        Dialogue()
        .user("My daughter Mia turned seven on Sunday and we went to the aquarium in Lisbon.")
        .says("How lovely! The aquarium in Lisbon has a huge central tank with sharks and rays.")
    )
    told = summarised(dialogue, budget=400)
    assert "My daughter Mia turned seven on Sunday" in whole(told)
    assert "huge central tank" in told[CRITICAL]


def test_it_says_that_it_is_extractive_and_how_many_messages_it_stands_for() -> None:
    dialogue = working()
    last = summarised(dialogue)[CRITICAL].split("\n")[-1]
    assert last == f"(Extracted without a model from {len(dialogue.messages)} messages.)"
    for number in range(200):
        dialogue.runs(f"grep -rn name_{number} src/some/long/folder/of/sources", "src/a.py:1: name")
    last = summarised(dialogue, budget=500)[CRITICAL].split("\n")[-1]
    assert re.fullmatch(
        r"\(Extracted without a model from 410 messages; [\d,]+ lesser lines left out for room\.\)", last
    )


def test_the_active_task_is_left_to_others() -> None:
    assert TASK not in summarised(working(), task="Fix the login")


# Focus


def test_a_topic_gets_most_of_the_room() -> None:
    dialogue = Dialogue().user("Start")
    for number in range(40):
        dialogue.user(f"The cache evicts entry {number} too early, look at the eviction of the cache")
        dialogue.edits(f"src/cache_{number}.py", text=f"Eviction step {number} compares the wrong clock in the cache.")
        dialogue.says(f"The cache keeps entry {number} now; eviction uses the monotonic clock.")
        dialogue.user(f"Translate page {number} of the handbook into Spanish")
        dialogue.edits(f"docs/page_{number}.md", text=f"Page {number} has two tables to translate.")
        dialogue.says(f"Page {number} is in Spanish now, tables included.")
    for budget in (1_000, 3_000):
        told = re.split(r"\n| \| |, ", whole(summarised(dialogue, budget=budget, focus="cache eviction")))
        about = [piece for piece in told if re.search(r"cache|eviction", piece, re.IGNORECASE)]
        other = [piece for piece in told if re.search(r"page|docs|Spanish", piece)]
        share = COUNTER.text("\n".join(about)) / COUNTER.text("\n".join(about + other))
        assert 0.55 <= share <= 0.75


def test_a_topic_nobody_spoke_about_changes_nothing() -> None:
    assert summarised(working(), focus="quantum chromodynamics") == summarised(working())
    assert summarised(working(), focus="the") == summarised(working())


# The whole


def test_it_writes_a_draft_of_known_sections() -> None:
    request = SummaryRequest(working().messages, [], 2_000)
    draft = asyncio.run(ExtractiveSummarizer(COUNTER).summarize(request))
    assert draft.author == ExtractiveSummarizer(COUNTER).name == "extractive"
    assert set(draft.sections) <= set(HANDOFF)
    assert parse_sections(render_sections(draft.sections)) == draft.sections


def test_it_takes_facts_that_are_known_already() -> None:
    messages = working().messages
    facts = [facts_of_message(message) for message in messages]
    given_facts = SummaryRequest(messages, messages, 2_000, facts=facts)
    assert "src/app.py" in whole(ExtractiveSummarizer(COUNTER).sections(given_facts))


def test_secrets_are_not_quoted() -> None:
    key = "sk-ant-api03-" + "Zx9" * 31 + "AA"
    dialogue = Dialogue().user(f"Remember: my key is {key}, use it for the upload").runs(f"export KEY={key}; ./up", key)
    assert key not in whole(summarised(dialogue.says("Done.")))


def test_the_same_summariser_says_the_same_again_and_changes_nothing() -> None:
    messages = working().messages
    before = copy.deepcopy(messages)
    summariser = ExtractiveSummarizer(COUNTER)
    request = SummaryRequest(messages, messages, 1_500)
    first = summariser.sections(request)
    assert summariser.sections(request) == first
    assert ExtractiveSummarizer(COUNTER).sections(SummaryRequest(before, before, 1_500)) == first
    assert messages == before


def test_a_result_is_read_anew_when_its_call_becomes_known() -> None:
    messages = working().messages
    summariser = ExtractiveSummarizer(COUNTER)
    summariser.sections(SummaryRequest(messages[2:], messages[2:], 1_500))
    assert summariser.sections(SummaryRequest(messages, messages, 1_500)) == summarised(messages, budget=1_500)


@pytest.mark.parametrize("budget", [100, 200, 300])
def test_a_small_budget_still_tells_the_essentials(budget: int) -> None:
    text = render_sections(summarised(working(), budget=budget), brief=True)
    assert "Fix the login" in text
    assert "Never touch the migrations folder" in text
    assert "Extracted without a model" in text


@pytest.mark.parametrize("budget", [-5, 0, 1, 10])
def test_where_nothing_fits_nothing_is_said(budget: int) -> None:
    assert summarised(working(), budget=budget) == {}


def test_nothing_to_tell() -> None:
    assert set(summarised([])) == {CRITICAL}


@given(histories(), st.integers(0, 3_000), st.sampled_from([None, "login", "测试"]))
def test_the_budget_is_never_exceeded(messages: list[Message], budget: int, focus: str | None) -> None:
    sections = summarised(messages, budget=budget, focus=focus)
    assert COUNTER.text(render_sections(sections, brief=budget < FULL)) <= max(budget, 0)
    assert set(sections) <= set(HANDOFF)


@given(st.lists(st.dictionaries(st.sampled_from(["role", "content", "tool_calls", "name"]), st.text(max_size=20))))
def test_garbage_does_no_harm(messages: list[Message]) -> None:
    summarised([*messages, None, 7], budget=500)  # type: ignore[list-item]  # what real files contain


def test_giant_messages_are_told_in_little() -> None:
    dialogue = Dialogue().user("x" * 2_000_000).runs("cat big", "y\n" * 1_000_000).says("z " * 500_000)
    assert COUNTER.text(whole(summarised(dialogue, budget=800))) <= 800


def test_anthropic_blocks_are_read_as_well() -> None:
    messages: list[Message] = [
        {"role": "user", "content": [{"type": "text", "text": "Where am I?"}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "pwd"}},
            {"type": "tool_use", "id": "b", "name": "edit", "input": {"path": "a.py", "old_string": "x"}},
            {"type": "tool_use", "id": "c", "name": "", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "/srv/shop"},
            {"type": "tool_result", "tool_use_id": "b", "content": "nothing replaced", "is_error": True},
        ]},
    ]  # fmt: skip
    sections = summarised(messages)
    assert "Working directory: /srv/shop" in sections[STATE]
    assert "a.py: nothing replaced" in sections[BLOCKED]
    assert "EDIT a.py" in sections[DONE]


def test_a_result_that_comes_after_the_user_broke_in_is_known() -> None:
    dialogue = Dialogue().user("Build").runs("make", None, text="I build.")
    call_id = dialogue.messages[-1]["tool_calls"][0]["id"]
    dialogue.user("How long will it take?")
    dialogue.messages.append({"role": "tool", "tool_call_id": call_id, "content": "built in 3s"})
    assert "RUN `make` — built in 3s" in summarised(dialogue.says("It is done."))[DONE]


def test_a_great_many_failures_are_followed_in_bounds() -> None:
    dialogue = Dialogue().user("Try everything")
    for number in range(70):
        dialogue.runs(f"pytest tests/test_{number}.py", FAILED)
    told = summarised(dialogue, budget=20_000)
    assert "tests/test_69.py" in told[BLOCKED]
    assert len(lines(told, BLOCKED)) == 50


def test_a_message_without_a_plan_under_its_heading_has_none() -> None:
    assert REMAINING not in summarised(working().user("And?").says("Next steps:\nnone, it is all done."))
    assert REMAINING not in summarised(working().user("And?").says("Nothing.\n\nNext steps:"))
