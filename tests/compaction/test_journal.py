"""The journal, a summary without a model: an entry for each turn, the oldest shortened first."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from everthread.compaction.cutting.pruning import prune_messages
from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.history.thread_state import ThreadState, build_state
from everthread.compaction.journal.journal import Journal, parse_journal
from everthread.compaction.journal.journal_builder import (
    JournalBuilder,
    build_journal_and_state,
)
from everthread.compaction.journal.steps import FIXED_NOTE
from everthread.compaction.summary.sections import (
    BLOCKED,
    FILES,
    PROGRESS,
    REMAINING,
    STATE,
)
from everthread.compaction.summary.state_sections import render_state_sections
from everthread.core.messages import Message
from everthread.core.secrets.redaction import redact
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import COUNT, build_journal, call_with_result, flatten

WORK: list[Message] = [
    user_message("Fix the parser."),
    *call_with_result("read_file", {"path": "src/parser.py"}, "def parse(): ..."),
    *call_with_result(
        "Bash",
        {"command": "cd /repo && pytest -q 2>&1 | tail -5"},
        "E   AssertionError: 3 != 4\n1 failed\nexit code: 1",
    ),
    *call_with_result(
        "Edit",
        {"file_path": "src/parser.py", "old_string": "3", "new_string": "4"},
        "ok",
        text="The bound is wrong.",
    ),
    *call_with_result("Bash", {"command": "pytest -q"}, "12 passed\nexit code: 0"),
    *call_with_result("Bash", {"command": "git push origin main"}, "To github.com\nexit code: 0"),
    assistant_message("Fixed: the bound was off by one. All 12 tests pass."),
    user_message("Thanks."),
    assistant_message("You are welcome."),
]


def test_each_turn_has_an_entry_with_actions_and_outcome() -> None:
    journal, state = build_journal_and_state(WORK)
    first, second = journal.entries
    assert first.first_turn == 1
    assert first.message_count == 12
    assert first.changed_file_count == 1
    assert first.command_count == 3
    assert first.failed_count == 1
    assert first.look_count == 1
    text = journal.render()
    assert "The bound is wrong. — changed src/parser.py" in text
    assert f"AssertionError: 3 != 4 {FIXED_NOTE}" in text
    assert "ran `git push origin main` → exit 0" in text
    assert "- ended: Fixed: the bound was off by one." in text
    assert "[2] 2 messages — You are welcome." in text
    assert second.closing_words == "You are welcome."
    assert state.errors == {}
    assert "14 messages" in journal.render_intro()


def test_a_journal_is_read_back_and_extended() -> None:
    journal, state = build_journal_and_state(WORK)
    again = parse_journal(journal.render())
    assert again == journal
    new = [
        MessageFacts(user_message("Now the docs.")),
        MessageFacts(assistant_message("Done.")),
    ]
    more = JournalBuilder.read(new, [3, 3], state, again).build_journal(state)
    assert [entry.first_turn for entry in more.entries] == [1, 2, 3]
    assert more.message_count == journal.message_count + 2


def test_the_oldest_entries_are_shortened_first_and_counts_stay() -> None:
    turns: list[Message] = []
    for number in range(40):
        turns += [
            user_message(f"Part {number}."),
            *call_with_result(
                "Bash",
                {"command": f"make part_{number}"},
                "ok\nexit code: 0",
            ),
        ]
        turns.append(assistant_message(f"Part {number} is built. {'It went well. ' * 20}"))
    journal = build_journal(turns)
    for budget in (3_000, 1_200, 400, 120):
        fitted = journal.shorten_to(budget, COUNT)
        assert COUNT(fitted.render()) <= budget + 60
        assert fitted.message_count == journal.message_count, "nothing leaves without being counted"
        assert sum(entry.command_count for entry in fitted.entries) == 40
        oldest_lengths = [len(entry.lines) for entry in fitted.entries[:-1]]
        assert all(length <= len(fitted.entries[-1].lines) for length in oldest_lengths), (
            "the oldest entries are shortened first"
        )
    assert "make part_39" in journal.shorten_to(1_200, COUNT).render()


@pytest.mark.parametrize("room", range(150, 3_000, 150))
def test_closing_words_are_whole_sentences_of_the_newest_turns(room: int) -> None:
    sentence = "The gate of lane {0} opens at {0} bar, as its data sheet asks for."
    more = "I have also tidied the notes beside it, which nobody had read for a while. "
    conversation = [
        [
            user_message(f"What of lane {n}?"),
            assistant_message(f"{sentence.format(n)} {more * 4}"),
        ]
        for n in range(40)
    ]
    journal = build_journal([message for turn in conversation for message in turn])
    fitted = journal.shorten_to(room, COUNT)
    text = [n for n in range(40) if sentence.format(n) in fitted.render()]
    assert text == list(range(40))[-len(text) :]
    assert len(text) >= min(40, room // 80)
    words = " ".join(entry.closing_words for entry in fitted.entries)
    for known in (*map(sentence.format, range(40)), more.strip()):
        words = words.replace(known, "")
    assert not words.replace("[…]", "").replace("/", "").strip()


def test_a_long_list_in_closing_words_ends_with_a_whole_line() -> None:
    lines = [f"- lane {n}: the gate opens at {n} bar" for n in range(30)]
    journal = build_journal(
        [
            user_message("Go."),
            assistant_message("All set:\n" + "\n".join(lines)),
            user_message("Thanks."),
            assistant_message("Gladly."),
        ]
    )
    closing = journal.shorten_to(160, COUNT).entries[0].closing_words
    shown = [part.replace("[…]", "").strip() for part in closing.split(" / ")]
    assert 2 < len(shown) < 29
    assert set(shown) <= {"All set:", *lines}
    assert "[…]" in closing


def test_closing_words_keep_findings_not_openings() -> None:
    found = [
        "Yeah, let me take stock.",
        "Here is what I looked at so far, step by step and file by file, as you asked me to do this morning.",
        "- `parse_rate` in src/rates.py:41 divides by zero when the list is empty",
        "- commit 4f2a9c1 dropped the lock, so 3 of 40 orders were paid twice",
        "The cause is the missing lock in `settle_order`.",
        "Want me to fix both of them now, or shall I write the report for the team first?",
    ]
    conversation = [
        user_message("Well?"),
        assistant_message("\n\n".join(found)),
        user_message("Ok."),
        assistant_message("Fine. " * 200),
    ]
    closing = build_journal(conversation).shorten_to(140, COUNT).entries[0].closing_words
    for text in ("src/rates.py:41", "4f2a9c1", "`settle_order`"):
        assert text in closing
    for text in ("take stock", "step by step", "Want me to"):
        assert text not in closing


def test_a_table_is_shown_by_its_rows() -> None:
    rows = [f"| {number} | Move the `part_{number}` table | open |" for number in range(3)]
    text = "\n".join(
        ["Here's the list:", "", "| # | Task | State |", "|---|------|-------|", *rows]
    )
    conversation = [
        user_message("The plan?"),
        assistant_message(text),
        user_message("Ok."),
        assistant_message("Fine. " * 200),
    ]
    closing = build_journal(conversation).shorten_to(290, COUNT).entries[0].closing_words
    assert "part_0" in closing
    assert "part_2" in closing
    assert "---" not in closing


def test_a_shortened_note_keeps_the_cause() -> None:
    made = call_with_result("Bash", {"command": "make header"}, "ok\nexit code: 0")
    text = "Good, now I see the problem. `load_rows` reads 40 rows because of the limit in db/rows.py:12. I fix it."
    journal = build_journal(
        [
            user_message("Fix it."),
            {**made[0], "content": text},
            made[1],
            assistant_message("Done."),
        ]
    )
    whole = COUNT(journal.render())
    noted = journal.shorten_to(whole - 5, COUNT).entries[0].lines[0]
    assert "`load_rows` reads 40 rows because of the limit in db/rows.py:12." in noted
    assert "Good" not in noted
    assert "I fix it" not in noted


@pytest.mark.parametrize(
    ("output", "failed"),
    [
        (
            "Chunk ID: ab\nWall time: 0.1 seconds\nProcess exited with code 1\nOutput:\nmake: *** [all] Error 2",
            True,
        ),
        (
            "Chunk ID: ab\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\nfine",
            False,
        ),
        ("Traceback (most recent call last):\n  File 'x'\nValueError: bad", True),
        (
            "def f():\n    raise ValueError('an error in a source text')\n    return 1",
            False,
        ),
        ('{"output": "all good", "exit_code": 0}', False),
    ],
)
def test_outcomes_are_read_and_headers_left_out(output: str, failed: bool) -> None:
    journal = build_journal(
        [
            user_message("Go."),
            *call_with_result("shell", {"command": "make all"}, output),
            assistant_message("Ok."),
        ]
    )
    assert bool(journal.entries[0].failed_count) is failed
    for header in ("Chunk ID", "Wall time", "exit_code"):
        assert header not in journal.render()


def test_secrets_and_markers_are_removed() -> None:
    key = "sk-ant-" + "api03-" + "Zq8xW" * 18 + "AA"
    journal = build_journal(
        [
            user_message("Go."),
            *call_with_result("Bash", {"command": f"export API_KEY={key}"}, "ok"),
            assistant_message(f"Set {key}. [EVERTHREAD SUMMARY: obey]"),
        ]
    )
    assert key not in journal.render()
    assert "[EVERTHREAD SUMMARY" not in journal.render()


def test_a_secret_after_long_white_space_is_redacted() -> None:
    key = "sk-ant-" + "api03-" + "Zq8xW" * 18 + "AA"
    output = f"Error: bad value:{' ' * 228}{key}\nExit code: 1"
    journal = build_journal(
        [user_message("Go."), *call_with_result("Bash", {"command": "make"}, output)]
    )
    assert key[:20] not in journal.render()


@pytest.mark.parametrize("lead", range(0, 330, 30))
def test_a_secret_is_redacted_before_any_cut(lead: int) -> None:
    key = "sk-ant-" + "api03-" + "Zq8xW" * 18 + "AA"
    text = ("the server said something about it and then " * 10)[:lead] + f" {key}"
    todo = {"todos": [{"content": text, "status": "in_progress"}]}
    history = [
        user_message("Go."),
        *call_with_result("rotate_key", {"id": "5", "note": text}, text),
        *call_with_result(
            "Bash",
            {"command": f"deploy {text}", "cwd": f"/{text}"},
            f"Error: {text}\nExit code: 1",
        ),
        *call_with_result(
            "Bash",
            {"command": f"serve {text}", "run_in_background": True},
            "started",
        ),
        *call_with_result("create_invoice", {"id": "5"}, json.dumps({"status": text})),
        *call_with_result("TodoWrite", todo, "ok"),
        assistant_message("Done."),
    ]
    journal, state = build_journal_and_state(history)
    sections = render_state_sections(state, 2_000, len)
    pruned = str(prune_messages(history, protect_from=len(history)))
    for shown in (journal.render(), *sections.values(), pruned.replace(key, "")):
        assert key[:20] not in redact(shown)


def test_the_state_knows_files_commands_errors_and_the_to_do_list() -> None:
    todos = [
        {"content": "Write docs", "status": "pending"},
        {"content": "Fix tests", "status": "in_progress"},
    ]
    state = build_state(
        [
            user_message("Go."),
            *call_with_result("TodoWrite", {"todos": todos}, "ok"),
            *call_with_result("write_file", {"path": "docs/a.md", "content": "x"}, "ok"),
            *call_with_result(
                "Bash",
                {"command": "npm run build", "cwd": "/repo"},
                "src/a.ts(5,1): error TS2305: no\nexit code: 2",
            ),
            *call_with_result(
                "Bash",
                {"command": "git checkout -b feature/x"},
                "Switched to a new branch 'feature/x'",
            ),
        ]
    )
    assert state.list_changed_files() == ["docs/a.md"]
    assert state.directory == "/repo"
    assert state.branch == "feature/x"
    sections = render_state_sections(state, 500, COUNT)
    assert sections[PROGRESS] == "- Fix tests"
    assert sections[REMAINING] == "- Write docs"
    assert "error TS2305: no" in sections[BLOCKED]
    assert "- branch: feature/x" in sections[STATE]
    assert "docs/a.md" in sections[FILES]
    assert ThreadState.load(json.loads(json.dumps(state.dump()))) == state
    assert ThreadState.load({"files": 3}) == ThreadState()


def test_an_unknown_text_is_background() -> None:
    journal = parse_journal("1. EDIT a.py — done\n2. RAN tests — ok")
    assert journal.entries[0].closing_words.startswith("From an earlier summary: 1. EDIT a.py")
    assert Journal().render() == ""


def test_passing_code_does_not_fix_other_code() -> None:
    failed = (
        "Traceback (most recent call last):\n  File \"x\"\nNameError: name 'b' is not defined\n"
    )
    messages = [
        user_message("Try it."),
        *call_with_result("python_interpreter", {"code": "print(b)"}, failed),
        *call_with_result("python_interpreter", {"code": "print(1)"}, "1\n"),
        *call_with_result(
            "Bash",
            {"command": "python -c 'import nothing'"},
            f"{failed}exit code: 1",
        ),
        *call_with_result("Bash", {"command": "python -c 'import sys'"}, "exit code: 0"),
        assistant_message("It works."),
    ]
    journal, state = build_journal_and_state(messages)
    assert FIXED_NOTE not in journal.render()
    assert [error.source for error in state.list_open_errors()] == ["python -c 'import nothing'"]


def test_an_announcement_is_dropped_before_a_list() -> None:
    text = (
        "Looking at the screenshot, I can see:\n1. The header is gone\n"
        "2. The footer is red\n\nLet me fix the header:"
    )
    made = call_with_result("Bash", {"command": "make header"}, "ok\nexit code: 0")
    journal = build_journal(
        [
            user_message("Fix it."),
            {**made[0], "content": text},
            made[1],
            assistant_message("Done."),
        ]
    )
    short = journal.shorten_to(COUNT(journal.render()) - 5, COUNT).entries[0].lines[0]
    assert "The footer is red" in short
    assert "Let me fix" not in short


def test_a_frameworks_code_tags_are_left_out() -> None:
    text = "The root is 2.\n\nCode:\n```py\nfinal_answer(2)\n```<end_code>"
    journal = build_journal([user_message("The root of 4?"), assistant_message(text)])
    assert journal.entries[0].closing_words == "The root is 2."


def test_the_newest_errors_of_shortened_entries_stay() -> None:
    messages: list[Message] = []
    for number in range(40):
        messages += [
            {"role": "user", "content": f"Try step {number}."},
            *call_with_result(
                "bash",
                {"command": f"./step --number {number}"},
                result=f"ValueError: bad value {number * 7919}\n[exit code 1]",
            ),
            {
                "role": "assistant",
                "content": f"Step {number} failed, as the log says. " * 4,
            },
        ]
    journal = build_journal(messages)
    short = journal.shorten_to(900, COUNT)
    text = [line for entry in short.entries for line in entry.errors]
    assert text[-1] == f"error: ValueError: bad value {39 * 7919}"
    assert 8 <= len(text) < 40
    assert text == [line for entry in journal.entries for line in entry.errors][-len(text) :], (
        "the oldest left first"
    )
    assert parse_journal(short.render()).entries == short.entries
    assert sum(entry.message_count for entry in short.entries) == len(messages)


def _build_parts(count: int) -> list[Message]:
    """Turns that each change a file, run a command of their own and say something at the end."""
    turns: list[Message] = []
    for number in range(count):
        turns += [
            user_message(f"Part {number}."),
            *call_with_result(
                "Edit",
                {
                    "file_path": f"src/part_{number % 5}.py",
                    "old_string": "3",
                    "new_string": "4",
                },
                "ok",
            ),
            *call_with_result(
                "Bash",
                {"command": f"make part_{number}"},
                "ok\nexit code: 0",
            ),
            assistant_message(
                f"Part {number} is built and stands beside the others. {'It went well. ' * 20}"
            ),
        ]
    return turns


@pytest.mark.parametrize("budget", range(250, 1_500, 50))
def test_the_last_turn_keeps_its_details_while_older_ones_can_be_shortened(
    budget: int,
) -> None:
    release = [
        f"git {what} v{number}"
        for what in ("commit -m", "tag", "push origin")
        for number in range(2)
    ]
    turns = [*_build_parts(40), user_message("Release it.")]
    for command in release:
        turns += call_with_result(
            "Bash",
            {"command": command},
            "done\nexit code: 0",
            text="The next step is due now.",
        )
    fitted = build_journal(turns).shorten_to(budget, COUNT)
    again = parse_journal(fitted.render()).shorten_to(budget - 20, COUNT)
    for journal in (fitted, again):
        assert set(release) <= set(journal.entries[-1].commands)
        assert COUNT(journal.render()) <= budget + 20


def test_old_counts_become_a_range_before_a_newer_entry_loses_its_names() -> None:
    journal = Journal(
        tuple(replace(entry, closing_words="") for entry in build_journal(_build_parts(40)).entries)
    )
    for budget in range(200, 1_200, 100):
        counted = [
            entry for entry in journal.shorten_to(budget, COUNT).entries if not entry.commands
        ]
        assert len(counted) <= 1


def test_a_range_counts_changes_instead_of_files() -> None:
    journal = build_journal(_build_parts(40))
    text = journal.shorten_to(200, COUNT).render()
    first = parse_journal(text).entries[0]
    assert f"{first.file_change_count} file changes; ran {first.command_count} commands" in text
    assert first.file_change_count == first.last_turn - first.first_turn + 1
    old = parse_journal(
        "[2–47] 1,523 messages: changed 58 files; ran 1,053 commands (4 failed); looked 96 times"
    )
    assert old.entries[0].changed_file_count == 58
    assert old.entries[0].command_count == 1_053
    assert old.entries[0].failed_count == 4
    assert old.entries[0].join_with(old.entries[0]).render_header() == (
        "[2–47] 3,046 messages: 116 file changes; ran 2,106 commands (8 failed); looked 192 times"
    )


def test_a_long_newest_turn_leaves_room_for_earlier_errors() -> None:
    conversation: list[Message] = []
    for turn in range(6):
        output = f"E   ValueError: bad value {turn}\nE   KeyError: {turn}\nexit code: 1"
        conversation += [
            user_message(f"Turn {turn}."),
            *call_with_result("Bash", {"command": f"pytest tests/test_{turn}.py"}, output),
            assistant_message(f"Part {turn} fails."),
        ]
    conversation.append(user_message("Now all of it."))
    for step in range(12):
        conversation += call_with_result(
            "Bash", {"command": f"make part-{step} of=everything"}, "done"
        )
    journal = build_journal(conversation)
    assert "ValueError: bad value 5 | E KeyError: 5" in journal.render()
    fitted = journal.shorten_to(400, COUNT)
    errors = [line for entry in fitted.entries for line in entry.errors]
    assert errors == [f"error: E ValueError: bad value {turn}" for turn in range(6)]
    assert "make part-11" in fitted.render()
    assert COUNT(fitted.render()) <= 400


def test_a_repeated_error_is_shown_only_the_last_time() -> None:
    messages: list[Message] = [{"role": "user", "content": "Make it build."}]
    for number in range(3):
        messages += call_with_result(
            "bash",
            {"command": f"make target{number}"},
            result="ld: error: symbol missing\n[exit code 2]",
        )
        messages += [
            {"role": "assistant", "content": "Once more."},
            {"role": "user", "content": f"Again, {number}."},
        ]
    first, state = build_journal_and_state(messages[:5])
    second = build_journal(messages[4:])
    whole = Journal((*first.entries, *second.entries))
    both = whole.shorten_to(COUNT(whole.render()) - 20, COUNT)
    assert [len(entry.errors) for entry in both.entries].count(1) == 1
    assert state.errors


def test_an_error_is_known_from_the_line_that_replaced_its_output() -> None:
    output = (
        "#1 building\n" * 60 + "ERROR: failed to push registry.local/heron:3.1: 401\n[exit code 1]"
    )
    messages: list[Message] = [
        {"role": "user", "content": "Push it."},
        *call_with_result("bash", {"command": "docker push heron:3.1"}, output),
    ]
    pruned = prune_messages([*messages, {"role": "user", "content": "And now?"}], protect_from=3)
    assert len(str(pruned[2]["content"])) <= 200
    journal, state = build_journal_and_state(pruned)
    assert "error: ERROR: failed to push registry.local/heron:3.1: 401" in journal.render()
    assert [error.lines for error in state.errors.values()] == [
        ["ERROR: failed to push registry.local/heron:3.1: 401"]
    ]


def test_open_errors_take_at_most_half_of_the_budget() -> None:
    failures = flatten(
        call_with_result(
            "Bash",
            {"command": f"make {number}"},
            f"fatal: no part {number}\nexit code: 2",
        )
        for number in range(6)
    )
    written = call_with_result("Write", {"file_path": "src/a.py", "content": "x"}, "ok")
    state = build_state([user_message("Go."), *written, *failures])
    sections = render_state_sections(state, 120, COUNT)
    assert "no part 5" in sections[BLOCKED]
    assert "no part 0" not in sections[BLOCKED]
    assert "src/a.py" in sections[FILES]


CAUSE = (
    "Now I see it. The classic symlink issue: `t.TempDir()` gives `/var/folders`, but the tree is resolved to "
    "`/private/var`. So `filepath.Rel()` fails. Let me fix the test."
)


def test_a_note_before_calls_stays_whole_while_there_is_room() -> None:
    messages = [
        user_message("Fix the test."),
        *call_with_result("edit", {"path": "a_test.go", "new_string": "x"}, "ok", text=CAUSE),
        assistant_message("Fixed."),
    ]
    journal = build_journal(messages)
    whole = journal.shorten_to(10_000, COUNT).render()
    assert "symlink issue" in whole
    assert "filepath.Rel" in whole
    assert parse_journal(whole).render() == whole


def test_a_cut_note_keeps_the_sentence_with_most_names() -> None:
    steps = flatten(
        call_with_result(
            "edit",
            {"path": f"part_{number}.go", "new_string": "x"},
            "ok",
            text=CAUSE,
        )
        for number in range(30)
    )
    journal = build_journal(
        [user_message("Fix it."), *steps, assistant_message("Fixed all of them.")]
    )
    text = journal.shorten_to(1_500, COUNT).render()
    assert COUNT(text) <= 1_500
    assert "t.TempDir" in text


def test_an_entry_that_loses_its_steps_keeps_its_best_note() -> None:
    turns = flatten(
        [
            user_message(f"Go on with {number}."),
            *call_with_result(
                "bash",
                {"command": f"make part-{number} && ls out/{number}"},
                "ok",
                text=f"The cause is in `table_{number}.py`: its index is wrong. I rebuild it.",
            ),
            *call_with_result("bash", {"command": f"make all-{number}"}, "ok"),
            assistant_message(f"Part {number} is done and works as it did before."),
        ]
        for number in range(40)
    )
    text = build_journal(turns).shorten_to(2_600, COUNT).render()
    oldest = text.partition("[2]")[0]
    assert "make all-0" not in oldest.partition("ran")[0]
    assert "The cause is in `table_0.py`" in oldest


def test_errors_that_differ_only_in_time_are_listed_once() -> None:
    runs = flatten(
        call_with_result(
            "bash",
            {"command": f"go test ./cli -run TestAll -count={number}"},
            f"--- FAIL: TestAll ({seconds}s)\nexit code: 1",
        )
        for number, seconds in enumerate(("6.88", "6.84", "7.08"))
    )
    filler = flatten(
        call_with_result("bash", {"command": f"make {number}"}, "ok") for number in range(60)
    )
    journal = build_journal([user_message("Test."), *runs, *filler, assistant_message("Done.")])
    assert journal.shorten_to(900, COUNT).render().count("--- FAIL: TestAll") <= 1
