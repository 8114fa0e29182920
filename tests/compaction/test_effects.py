"""Effects of a call, read from its shape: changes, outcome, and the failures a later pass resolves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.compaction.cutting.pruning import prune_messages
from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.history.thread_state import ThreadState, build_state
from everthread.compaction.history.tool_calls import CallFacts, Effect
from everthread.compaction.journal.journal import parse_journal
from everthread.compaction.journal.journal_builder import (
    JournalBuilder,
    build_journal_and_state,
)
from everthread.compaction.journal.steps import FIXED_NOTE
from everthread.core.messages import Call, Message
from tests.compaction.test_journal import call, says, user

FILLER = "\n".join(
    f"line {number} of an output that is long enough to be replaced"
    for number in range(20)
)


def effect_of(name: str, output: str, **arguments: Any) -> Effect:
    return CallFacts(Call("c", name, json.dumps(arguments)), output).effect()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Read", {"file_path": "a.py"}),
        ("mcp__files__read_file", {"path": "a.py"}),
        ("WebSearch", {"query": "q"}),
        ("codebase_search", {"query": "q"}),
        ("get_order_by_id", {"id": 1}),
        ("visit_webpage", {"url": "u"}),
        ("editor", {"command": "view", "path": "a.py"}),
        ("find_user_id_by_email", {"email": "e"}),
        ("http_get", {"url": "u"}),
        ("BashOutput", {"bash_id": "1"}),
        ("get_merge_request", {"id": 3}),
        ("find_in_files", {"query": "x"}),
        ("think", {"thought": "update the order"}),
        ("Grep", {"pattern": "update"}),
        ("WebSearch", {"query": "create react app"}),
        ("Bash", {"command": "git branch -a"}),
        ("Bash", {"command": "git remote -v"}),
    ],
)
def test_a_call_that_only_looks(name: str, arguments: dict[str, Any]) -> None:
    assert effect_of(name, "something", **arguments).kind == "looked"


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("run_sql", {"query": "DELETE FROM users"}),
        ("mcp__postgres__query", {"sql": "UPDATE t SET a = 1"}),
        ("graphql", {"query": "mutation { pay }"}),
        ("http_request", {"url": "u", "method": "POST"}),
        ("fetch", {"url": "u", "method": "DELETE"}),
        ("create_webhook", {"url": "u"}),
        ("delete_by_query", {"query": "q"}),
        ("get_or_create_user", {"name": "bob"}),
        ("check_out_cart", {"cart": 9}),
        ("fetch_and_merge", {"url": "u"}),
        ("load_data_into_table", {"table": "t"}),
        ("show_notification", {"text": "hi"}),
        ("open_ticket", {"id": 1}),
        ("browser_click", {"element": "Pay"}),
    ],
)
def test_a_call_that_may_change_something_is_named(
    name: str, arguments: dict[str, Any]
) -> None:
    journal, _ = build_journal_and_state(
        [user("Go."), *call(name, arguments, "done"), says("Ok.")]
    )
    assert journal.entries[0].look_count == 0
    assert f"called {name}" in journal.render()


@pytest.mark.parametrize(
    "command",
    [
        "git branch fix",
        "git branch -f main HEAD~1",
        "git remote prune origin",
        "awk '{print > \"f\"}' a.txt",
    ],
)
def test_a_command_that_shows_things_may_write_too(command: str) -> None:
    assert effect_of("Bash", "", command=command).kind == "ran"


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
        state["errors"][key]["lines"] = [
            line[:20] for line in state["errors"][key]["lines"]
        ]
    return state


@pytest.mark.parametrize(
    "number", range(len(WORK)), ids=lambda number: str(WORK[number][1])[:30]
)
def test_a_call_is_read_alike_from_its_output_and_from_the_line_in_its_place(
    number: int,
) -> None:
    name, arguments, output = WORK[number]
    history = [user("Go."), *call(name, arguments, output), says("Ok.")]
    slim = prune_messages(history, protect_from=len(history))
    assert len(str(slim)) < len(str(history))
    assert dump_state(slim) == dump_state(history)
    (once,), (again,) = (
        build_journal_and_state(history)[0].entries,
        build_journal_and_state(slim)[0].entries,
    )
    assert (
        again.command_count,
        again.look_count,
        again.other_call_count,
        again.failed_count,
    ) == (
        once.command_count,
        once.look_count,
        once.other_call_count,
        once.failed_count,
    )


def test_the_files_of_a_long_patch_are_known_after_it_was_cut() -> None:
    patch = (
        "*** Begin Patch\n*** Update File: src/a.py\n"
        + "+ x\n" * 90
        + "*** Add File: src/b.py\n+ y\n*** End Patch"
    )
    history = [
        user("Go."),
        *call("apply_patch", {"input": patch}, "Success."),
        says("Ok."),
    ]
    slim = prune_messages(history, protect_from=len(history))
    assert len(str(slim)) < len(str(history))
    assert list(build_state(slim).files) == ["src/a.py", "src/b.py"]
    assert prune_messages(slim, protect_from=len(slim)) == slim


def run(command: str, output: str, key: str, **more: Any) -> list[Message]:
    return call("Bash", {"command": command, **more}, output, key=key)


@pytest.mark.parametrize(
    ("failing", "passing", "is_fixed"),
    [
        ("npm test", "npm test", True),
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
        user("Go."),
        *run(failing, "fatal: no port\nexit code: 1", "a"),
        *run(passing, "exit code: 0", "b"),
    ]
    journal, state = build_journal_and_state(history)
    assert (FIXED_NOTE in journal.render()) is is_fixed
    assert bool(state.errors) is not is_fixed


def test_a_folder_may_be_given_as_an_argument() -> None:
    history = [
        user("Go."),
        *run("npm test", "fatal: no port\nexit code: 1", "a", workdir="/r/api"),
        *run("npm test", "exit code: 0", "b", workdir="/r/web"),
    ]
    assert FIXED_NOTE not in build_journal_and_state(history)[0].render()


def test_a_pass_that_states_errors_is_none() -> None:
    """A pipe gives the exit code of its last program."""
    bad = "src/a.ts(3,1): error TS2305: no member\n"
    history = [user("Go."), *run("npm run check", f"{bad}exit code: 2", "a")]
    for command in (
        "npm run check 2>&1 | tail -5",
        "npm run check 2>&1 | grep error | head -3",
    ):
        journal, state = build_journal_and_state(
            [*history, *run(command, bad, "b"), says("Ok.")]
        )
        assert journal.entries[0].failed_count == 2
        assert FIXED_NOTE not in journal.render()
        assert state.errors
    journal, state = build_journal_and_state(
        [*history, *run("npm run check 2>&1 | tail -5", "done\n", "b")]
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
def test_output_behind_a_pipe_that_is_not_a_failure(command: str, output: str) -> None:
    assert not effect_of("Bash", output, command=command).failed


def test_errors_of_npm_fail_behind_a_pipe_too() -> None:
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
        user("Go."),
        *run("npm test", "FAIL a | TypeError: q\nexit code: 1", "a"),
    ]
    for again in (run("npm test", output, "b", **more), run("npm test", "", "b")[:1]):
        journal, state = build_journal_and_state([*failure, *again])
        assert FIXED_NOTE not in journal.render()
        assert state.errors


def test_an_edit_without_a_result_changed_nothing() -> None:
    edit = call(
        "Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}, "ok"
    )[:1]
    journal, state = build_journal_and_state([user("Go."), *edit])
    assert not state.files
    assert journal.entries[0].changed_file_count == 0


def test_the_end_of_a_session_is_the_end_of_its_command() -> None:
    head = "Chunk ID: 1\nWall time: 1 s\nProcess running with session ID 5\nOutput:\n"
    end = "Chunk ID: 2\nWall time: 1 s\nProcess exited with code 1\nOutput:\nError: expected 1\n1 failed, 3 passed"
    history = [user("Go."), *call("exec_command", {"cmd": "npm test"}, head, key="a")]
    history += call("write_stdin", {"session_id": 5, "chars": ""}, end, key="b")
    journal, state = build_journal_and_state(history)
    assert list(state.errors) == ["npm test"]
    assert state.commands["npm test"].is_test
    assert FIXED_NOTE not in journal.render()
    assert not build_state(
        [*history, *call("exec_command", {"cmd": "npm test"}, "exit code: 0", key="c")]
    ).errors


def test_a_step_that_passes_alone_does_not_answer_the_steps_before_it() -> None:
    history = [
        user("Go."),
        *run(
            "npm run lint && npm test",
            "src/a.ts(1,1): error TS1: bad\nexit code: 1",
            "a",
        ),
    ]
    assert build_state(
        [*history, *run("npm test", "4 passed\nexit code: 0", "b")]
    ).errors


def test_an_earlier_entry_is_marked_fixed_for_the_whole_error_only() -> None:
    first = [
        user("Go."),
        *run("make one", "Error: missing header\nexit code: 2", "a"),
        *run("make two", "Error: missing header file foo.h of two\nexit code: 2", "b"),
    ]
    journal, state = build_journal_and_state(first)
    parsed = parse_journal(journal.render())
    facts = [MessageFacts(message) for message in run("make one", "exit code: 0", "c")]
    lines = (
        JournalBuilder(parsed, state)
        .extend(facts, [1] * len(facts))
        .build_journal()
        .render()
        .split("\n")
    )
    assert [line for line in lines if FIXED_NOTE in line] == [
        f"- error: Error: missing header {FIXED_NOTE}"
    ]


def test_a_failed_run_with_figures_only_is_open() -> None:
    assert build_state(
        [user("Go."), *run("pytest", "2 failed, 5 passed\nexit code: 1", "a")]
    ).errors


def test_an_error_is_not_fixed_because_there_were_many() -> None:
    many = [
        message
        for number in range(60)
        for message in run(
            f"make -C pkg{number}",
            f"fatal: no header h{number}.h\nexit code: 2",
            f"k{number}",
        )
    ]
    journal, state = build_journal_and_state([user("Build all."), *many])
    assert len(state.errors) < 60
    assert FIXED_NOTE not in journal.render()


def test_an_error_that_another_call_still_states_is_not_fixed() -> None:
    bad = "src/a.ts(3,1): error TS2305: no member\nexit code: 2"
    history = [
        user("Go."),
        *run("npm run check", bad, "a"),
        *run("npx tsc", bad, "b"),
        *run("npm run check", "exit code: 0", "c"),
    ]
    journal, state = build_journal_and_state(history)
    assert list(state.errors) == ["npx tsc"]
    assert FIXED_NOTE not in journal.render()


def test_a_file_that_could_not_be_read_blocks_nothing_and_one_that_was_written_is_no_error() -> (
    None
):
    history = [
        user("Go."),
        *call("Read", {"file_path": "no.py"}, "Error: no such file", key="a"),
        *call(
            "Edit",
            {"file_path": "a.py", "old_string": "x", "new_string": "y"},
            "Error: no match",
            key="b",
        ),
    ]
    assert [error.source for error in build_state(history).errors.values()] == [
        "Edit a.py"
    ]
    history += call(
        "Write", {"file_path": "a.py", "content": "y"}, "Wrote it.", key="c"
    )
    assert not build_state(history).errors


def test_the_name_of_a_created_object_is_read_from_the_answer() -> None:
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


def test_edits_written_into_an_answer_are_changes() -> None:
    text = "I set it.\n\nsrc/pay.py\n```python\n<<<<<<< SEARCH\na=1\n=======\na=2\n>>>>>>> REPLACE\n```"
    journal, state = build_journal_and_state(
        [user("Set a."), says(text), user("Thanks."), says("Ok.")]
    )
    assert list(state.files) == ["src/pay.py"]
    assert journal.entries[0].changed_file_count == 1
    assert "changed src/pay.py" in journal.render()


def test_a_running_process_is_listed_until_it_ends() -> None:
    head = "Chunk ID: 7a1\nWall time: 1 seconds\nProcess running with session ID 31\nOutput:\nready"
    history = [
        user("Serve."),
        *call("exec_command", {"cmd": "npm run dev"}, head, key="a"),
    ]
    journal, state = build_journal_and_state(history)
    assert state.processes == ["npm run dev (session 31)"]
    assert "Chunk ID" not in journal.render()
    end = (
        "Chunk ID: 7a2\nWall time: 1 seconds\nProcess exited with code 0\nOutput:\nbye"
    )
    assert (
        build_state(
            [
                *history,
                *call("write_stdin", {"session_id": 31, "chars": ""}, end, key="b"),
            ]
        ).processes
        == []
    )


def test_a_note_may_be_a_message_of_its_own() -> None:
    history = [
        user("Go."),
        says("The port is taken."),
        *run("make port", "exit code: 0", "a"),
        says("Done."),
    ]
    assert (
        "The port is taken. — ran `make port`"
        in build_journal_and_state(history)[0].render()
    )
    journal = build_journal_and_state(
        [user("Go."), *run("make port", "exit code: 0", "a"), says("Done.")]
    )[0]
    assert journal.render().count("Done.") == 1


def test_a_removed_file_is_not_listed_as_changed() -> None:
    history = [
        user("Go."),
        *call("Write", {"file_path": "/r/a.json", "content": "{}"}, "ok", key="a"),
        *call("Write", {"file_path": "/r/b.json", "content": "{}"}, "ok", key="b"),
        *run("cd /r && rm -f a.json", "", "c"),
    ]
    assert list(build_state(history).files) == ["/r/b.json"]


def test_a_to_do_list_is_told_with_the_state() -> None:
    todo = {"todos": [{"content": "Write docs", "status": "in_progress"}]}
    journal, state = build_journal_and_state(
        [user("Go."), *call("TodoWrite", todo, "Todos were changed."), says("Ok.")]
    )
    assert "TodoWrite" not in journal.render()
    assert state.todo_items("in_progress") == ["Write docs"]


def test_a_checked_out_file_is_not_a_branch() -> None:
    assert effect_of("Bash", "", command="git checkout src/a.ts").branch == ""
    assert (
        effect_of("Bash", "", command="git checkout feature/port").branch
        == "feature/port"
    )


def test_code_is_told_by_the_comment_it_begins_with_or_its_first_statement() -> None:
    assert (
        effect_of("python", "", code="# Count the rows\nprint(1)").target
        == "Count the rows"
    )
    assert (
        effect_of(
            "python", "", code='import os\nx = f(1)\nprint("""\n# Header\n""")'
        ).target
        == "x = f(1)"
    )


def test_an_old_state_without_new_fields_is_read() -> None:
    assert ThreadState.load({"files": {}, "errors": {}, "todo": []}) == ThreadState()
