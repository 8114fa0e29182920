"""Effects of a call, read from its shape: changes, outcome, and the failures a later pass resolves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.compaction.cutting.pruning import prune_messages
from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.history.thread_state import build_state
from everthread.compaction.history.tool_calls import CallEffect, CallWithOutput
from everthread.compaction.journal.journal import parse_journal
from everthread.compaction.journal.journal_builder import (
    JournalBuilder,
    build_journal_and_state,
)
from everthread.compaction.journal.steps import FIXED_NOTE
from everthread.core.messages import Message, ToolCall
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import build_journal, call_with_result, flatten, run_command

FILLER = "\n".join(
    f"line {number} of an output that is long enough to be replaced" for number in range(20)
)


def effect_of(name: str, output: str, **arguments: Any) -> CallEffect:
    return CallWithOutput(ToolCall("c", name, json.dumps(arguments)), output).read_effect()


WORK: list[tuple[str, dict[str, Any], str]] = [
    (
        "Bash",
        {"command": "git checkout -b fix/port", "cwd": "/repo"},
        f"Switched to a new branch 'fix/port'\n{FILLER}",
    ),
    (
        "Bash",
        {"command": "pytest -q"},
        f"{FILLER}\n2 failed, 5 passed in 3s\nexit code: 1",
    ),
    (
        "Bash",
        {"command": "make all"},
        f"{FILLER}\nmain.c:3: error: expected ';'\nexit code: 2",
    ),
    (
        "Bash",
        {"command": "npm run check 2>&1 | tail -30"},
        f"{FILLER}\nsrc/a.ts(3,1): error TS2305: no member\n",
    ),
    ("Bash", {"command": "sed -n 1,99p a.py"}, FILLER),
    ("Bash", {"command": "make docs > docs.log"}, f"{FILLER}\nexit code: 0"),
    ("get_account", {"id": 7}, FILLER),
    (
        "cancel_reservation",
        {"id": "R1"},
        json.dumps({"status": "cancelled", "history": FILLER}),
    ),
    (
        "TodoWrite",
        {"todos": [{"content": "Write docs", "status": "pending"}]},
        f"Todos were changed.\n{FILLER}",
    ),
    (
        "Edit",
        {"file_path": "a.py", "old_string": "x", "new_string": "y"},
        f"Error: no match for x\n{FILLER}",
    ),
    ("Write", {"file_path": "b.py", "content": "x"}, f"Wrote it.\n{FILLER}"),
]


def dump_state(history: list[Message]) -> dict[str, Any]:
    state = build_state(history).dump()
    for key in state["errors"]:  # a line has less room for them
        state["errors"][key]["lines"] = [line[:20] for line in state["errors"][key]["lines"]]
    return state


@pytest.mark.parametrize("number", range(len(WORK)), ids=lambda number: str(WORK[number][1])[:30])
def test_an_output_and_its_replacement_line_are_read_alike(
    number: int,
) -> None:
    name, arguments, output = WORK[number]
    history = [
        user_message("Go."),
        *call_with_result(name, arguments, output),
        assistant_message("Ok."),
    ]
    slim = prune_messages(history, protect_from=len(history))
    assert len(str(slim)) < len(str(history))
    assert dump_state(slim) == dump_state(history)
    entry = build_journal(history).entries[0]
    slim_entry = build_journal(slim).entries[0]
    for name in ("command_count", "look_count", "other_call_count", "failed_count"):
        assert getattr(slim_entry, name) == getattr(entry, name)


def test_the_files_of_a_long_patch_are_known_after_it_was_cut() -> None:
    patch = (
        "*** Begin Patch\n*** Update File: src/a.py\n"
        + "+ x\n" * 90
        + "*** Add File: src/b.py\n+ y\n*** End Patch"
    )
    history = [
        user_message("Go."),
        *call_with_result("apply_patch", {"input": patch}, "Success."),
        assistant_message("Ok."),
    ]
    slim = prune_messages(history, protect_from=len(history))
    assert len(str(slim)) < len(str(history))
    assert list(build_state(slim).files) == ["src/a.py", "src/b.py"]
    assert prune_messages(slim, protect_from=len(slim)) == slim


@pytest.mark.parametrize(
    ("failing", "passing", "is_fixed"),
    [
        ("npm test", "npm test", True),
        ("npm run check", "cd /a && CI=1 npm run check 2>&1 | grep x | tail -3", True),
        ("npm test -- --grep port", "npm test", True),
        ("cd api && npm test", "npm test", True),
        ("npm test", "cd api && npm test", True),
        ("cd api && npm test", "cd api/ && npm test", True),
        ("cd api && npm test", "cd web && npm test", False),
        ("pytest a.py b.py", "pytest b.py", False),
        ("pytest a.py b.py", "pytest a.py b.py -q", True),
        ("pytest a.py b.py", "pytest a.py b.py -k x", False),
        ("cd api && npm test", "cd api && npm test && npm run lint", True),
        ("make lint && make test", "make fmt && make lint && make test", True),
        ("make lint && make test", "make lint && make fmt; make test", False),
        ("go build ./cmd/x", "go build ./...", True),
        ("go build ./...", "go build ./cmd/x", False),
        ("go vet ./cmd/x", "go vet ./api/...", False),
        ("go vet ./cmd/x", "go vet .", False),
        ("pytest tests/a.py::test_x", "pytest tests/a.py", True),
        ("pytest tests/a.py -x", "pytest tests/", True),
        ("pytest tests/a.py -x", "pytest -q", True),
        ("make lint", "make -q", False),
        ("./gradlew :app:test --tests A", "./gradlew test", True),
        ("./gradlew :app:test", "./gradlew :app:lint", False),
        ("make all", "make docs", False),
    ],
)
def test_a_pass_resolves_only_the_failure_of_the_same_run(
    failing: str, passing: str, is_fixed: bool
) -> None:
    history = [
        user_message("Go."),
        *run_command(failing, "fatal: no port\nexit code: 1"),
        *run_command(passing, "exit code: 0"),
    ]
    journal, state = build_journal_and_state(history)
    assert (FIXED_NOTE in journal.render()) is is_fixed
    assert bool(state.errors) is not is_fixed


def test_a_folder_may_be_given_as_an_argument() -> None:
    history = [
        user_message("Go."),
        *run_command("npm test", "fatal: no port\nexit code: 1", workdir="/r/api"),
        *run_command("npm test", "exit code: 0", workdir="/r/web"),
    ]
    assert FIXED_NOTE not in build_journal(history).render()


def test_a_run_that_states_errors_has_not_passed() -> None:
    """A pipe gives the exit code of its last program."""
    bad = "src/a.ts(3,1): error TS2305: no member\n"
    history = [user_message("Go."), *run_command("npm run check", f"{bad}exit code: 2")]
    for command in (
        "npm run check 2>&1 | tail -5",
        "npm run check 2>&1 | grep error | head -3",
    ):
        journal, state = build_journal_and_state(
            [*history, *run_command(command, bad), assistant_message("Ok.")]
        )
        assert journal.entries[0].failed_count == 2
        assert FIXED_NOTE not in journal.render()
        assert state.errors
    journal, state = build_journal_and_state(
        [*history, *run_command("npm run check 2>&1 | tail -5", "done\n")]
    )
    assert FIXED_NOTE in journal.render()
    assert not state.errors


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (
            "npm test 2>&1 | tail -20",
            "Error: simulated network failure\nTests: 12 passed, 12 total",
        ),
        ("kubectl logs pod/x | grep ERROR", "2024-01-01 ERROR: connection lost"),
        ("make 2>&1 | tail -3", "done"),
    ],
)
def test_trimmed_output_without_an_error_is_not_a_failure(command: str, output: str) -> None:
    assert not effect_of("Bash", output, command=command).failed


def test_npm_errors_fail_a_trimmed_run() -> None:
    failed = effect_of(
        "Bash",
        "> build\nnpm error code 2\nnpm error path /r\nWaiting...",
        command="npm run build | tail",
    )
    assert failed.failed
    assert failed.errors == ("npm error code 2",)


@pytest.mark.parametrize(
    ("output", "more"),
    [
        (
            "Chunk ID: 1\nWall time: 1 s\nProcess running with session ID 5\nOutput:\n",
            {},
        ),
        ("Command running in background with ID: 1", {"run_in_background": True}),
        ("exec_command failed for `npm test`: Rejected", {}),
        (
            "The user doesn't want to proceed with this tool use. The tool use was rejected.",
            {},
        ),
    ],
)
def test_an_unfinished_run_resolves_nothing(output: str, more: dict[str, Any]) -> None:
    failure = [
        user_message("Go."),
        *run_command("npm test", "FAIL a | TypeError: q\nexit code: 1"),
    ]
    for again in (
        run_command("npm test", output, **more),
        run_command("npm test", "")[:1],
    ):
        journal, state = build_journal_and_state([*failure, *again])
        assert FIXED_NOTE not in journal.render()
        assert state.errors


def test_an_edit_without_a_result_changed_nothing() -> None:
    edit = call_with_result(
        "Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, "ok"
    )[:1]
    journal, state = build_journal_and_state([user_message("Go."), *edit])
    assert not state.files
    assert journal.entries[0].changed_file_count == 0


def test_the_end_of_a_session_ends_its_command() -> None:
    head = "Chunk ID: 1\nWall time: 1 s\nProcess running with session ID 5\nOutput:\n"
    end = "Chunk ID: 2\nWall time: 1 s\nProcess exited with code 1\nOutput:\nError: expected 1\n1 failed, 3 passed"
    history = [
        user_message("Go."),
        *call_with_result("exec_command", {"cmd": "npm test"}, head),
    ]
    history += call_with_result("write_stdin", {"session_id": 5, "chars": ""}, end)
    journal, state = build_journal_and_state(history)
    assert list(state.errors) == ["npm test"]
    assert state.commands["npm test"].is_test
    assert FIXED_NOTE not in journal.render()
    assert not build_state(
        [
            *history,
            *call_with_result("exec_command", {"cmd": "npm test"}, "exit code: 0"),
        ]
    ).errors


def test_an_earlier_entry_is_marked_fixed_for_the_whole_error_only() -> None:
    first = [
        user_message("Go."),
        *run_command("make one", "Error: missing header\nexit code: 2"),
        *run_command("make two", "Error: missing header file foo.h of two\nexit code: 2"),
    ]
    journal, state = build_journal_and_state(first)
    parsed = parse_journal(journal.render())
    facts = [MessageFacts(message) for message in run_command("make one", "exit code: 0")]
    builder = JournalBuilder.read(facts, [1] * len(facts), state, parsed)
    lines = builder.build_journal(state).render().split("\n")
    assert [line for line in lines if FIXED_NOTE in line] == [
        f"- error: Error: missing header {FIXED_NOTE}"
    ]


def test_a_failed_run_with_figures_only_is_open() -> None:
    assert build_state(
        [
            user_message("Go."),
            *run_command("pytest", "2 failed, 5 passed\nexit code: 1"),
        ]
    ).errors


def test_a_forgotten_error_is_not_marked_as_fixed() -> None:
    many = flatten(
        run_command(
            f"make -C pkg{number}",
            f"fatal: no header h{number}.h\nexit code: 2",
        )
        for number in range(60)
    )
    journal, state = build_journal_and_state([user_message("Build all."), *many])
    assert len(state.errors) < 60
    assert FIXED_NOTE not in journal.render()


def test_an_error_that_another_call_still_states_is_not_fixed() -> None:
    bad = "src/a.ts(3,1): error TS2305: no member\nexit code: 2"
    history = [
        user_message("Go."),
        *run_command("npm run check", bad),
        *run_command("npx tsc", bad),
        *run_command("npm run check", "exit code: 0"),
    ]
    journal, state = build_journal_and_state(history)
    assert list(state.errors) == ["npx tsc"]
    assert FIXED_NOTE not in journal.render()


def test_a_failed_read_is_not_an_open_error_and_a_write_resolves_a_failed_edit() -> None:
    history = [
        user_message("Go."),
        *call_with_result("Read", {"file_path": "no.py"}, "Error: no such file"),
        *call_with_result(
            "Edit",
            {"file_path": "a.py", "old_string": "x", "new_string": "y"},
            "Error: no match",
        ),
    ]
    assert [error.source for error in build_state(history).errors.values()] == ["Edit a.py"]
    history += call_with_result("Write", {"file_path": "a.py", "content": "y"}, "Wrote it.")
    assert not build_state(history).errors


def test_the_outcome_names_a_created_object() -> None:
    assert effect_of(
        "Bash",
        "[main 1a2b3c4] Fix the port\n 2 files changed",
        command="git commit -m x",
    ).outcome == ("[main 1a2b3c4] Fix the port")
    made = {"status": "created", "id": 77, "html_url": "https://hub/77"}
    assert (
        effect_of("create_issue", json.dumps(made), title="x").outcome
        == "created, html_url https://hub/77"
    )
    assert effect_of("Bash", FILLER, command="make all").outcome == ""


def test_edit_blocks_in_an_answer_are_changes() -> None:
    text = "I set it.\n\nsrc/pay.py\n```python\n<<<<<<< SEARCH\na=1\n=======\na=2\n>>>>>>> REPLACE\n```"
    journal, state = build_journal_and_state(
        [
            user_message("Set a."),
            assistant_message(text),
            user_message("Thanks."),
            assistant_message("Ok."),
        ]
    )
    assert list(state.files) == ["src/pay.py"]
    assert journal.entries[0].changed_file_count == 1
    assert "changed src/pay.py" in journal.render()


def test_a_running_process_is_listed_until_it_ends() -> None:
    head = "Chunk ID: 7a1\nWall time: 1 seconds\nProcess running with session ID 31\nOutput:\nready"
    history = [
        user_message("Serve."),
        *call_with_result("exec_command", {"cmd": "npm run dev"}, head),
    ]
    journal, state = build_journal_and_state(history)
    assert state.processes == ["npm run dev (session 31)"]
    assert "Chunk ID" not in journal.render()
    end = "Chunk ID: 7a2\nWall time: 1 seconds\nProcess exited with code 0\nOutput:\nbye"
    assert (
        build_state(
            [
                *history,
                *call_with_result("write_stdin", {"session_id": 31, "chars": ""}, end),
            ]
        ).processes
        == []
    )


def test_a_removed_file_is_not_listed_as_changed() -> None:
    history = [
        user_message("Go."),
        *call_with_result("Write", {"file_path": "/r/a.json", "content": "{}"}, "ok"),
        *call_with_result("Write", {"file_path": "/r/b.json", "content": "{}"}, "ok"),
        *run_command("cd /r && rm -f a.json", ""),
    ]
    assert list(build_state(history).files) == ["/r/b.json"]


def test_a_checked_out_file_is_not_a_branch() -> None:
    assert effect_of("Bash", "", command="git checkout src/a.ts").branch == ""
    assert effect_of("Bash", "", command="git checkout feature/port").branch == "feature/port"


def test_code_is_described_by_its_comment_or_first_statement() -> None:
    assert effect_of("python", "", code="# Count the rows\nprint(1)").target == "Count the rows"
    assert (
        effect_of("python", "", code='import os\nx = f(1)\nprint("""\n# Header\n""")').target
        == "x = f(1)"
    )
