"""The section Blocked, and the choice of the last test run."""

from __future__ import annotations

import json

import pytest

from everthread.compaction.history.thread_state import build_state
from everthread.compaction.journal.journal_builder import build_journal_and_state
from everthread.compaction.summary.sections import (
    BLOCKED,
    DONE,
    STATE,
)
from everthread.compaction.summary.state_sections import render_open_errors
from everthread.core.messages import Message
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import (
    JOURNAL,
    build_journal,
    call_with_result,
    compact,
    make_turn,
    read_sections,
    run_command,
    tool_turns,
)

FAILS = "FAIL test_rates\nAssertionError: 3 != 4\n1 failed, 3 passed in 1.2s\nExit code: 1"


def blocked_lines(*turns: list[Message]) -> str:
    return render_open_errors(build_state([message for one in turns for message in one]))


@pytest.mark.parametrize(
    ("command", "output", "error"),
    [
        (
            "npx tsc --noEmit",
            "src/a.ts:4:7 - error TS2322: Type 'string' is not assignable to 'number'.\n\nFound 1 error.\nExit code: 2",
            "error TS2322",
        ),
        (
            "make",
            "cc -c a.c\nmake: *** [Makefile:3: all] Error 1\nExit code: 2",
            "exit 2",
        ),
        ("pytest -q", FAILS, "AssertionError: 3 != 4"),
        (
            "go build ./...",
            "./a.go:3:1: undefined: Rates\nExit code: 1",
            "undefined: Rates",
        ),
    ],
)
def test_a_run_that_just_failed_is_listed(command: str, output: str, error: str) -> None:
    assert error in blocked_lines(make_turn("Go.", run_command(command, output)))


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (
            "mix credo",
            "3 refactoring opportunities\n\nUse `mix credo explain` to explain issues.\nExit code: 1",
        ),
        (
            "ls -la src docs",
            "src:\ndrwxrwxr-x 2 ann ann 4096 Nov 17 a\ndrwxrwxr-x 2 ann ann 4096 Nov 17 b\nExit code: 2",
        ),
        ("diff -r a b", "Only in a: one.py\nOnly in b: two.py\nExit code: 1"),
        (
            "gh pr view 1558 --json body --jq .body",
            "## Review\n\nError: this fails for empty lists\n142 passed, 3 failed",
        ),
    ],
)
def test_help_texts_listings_and_reviews_are_not_problems(command: str, output: str) -> None:
    assert blocked_lines(make_turn("Go.", run_command(command, output))) == ""


def test_an_old_failure_is_listed_only_if_repeated() -> None:
    later = [
        make_turn(f"Turn {number}.", run_command(f"make part_{number}", "ok\nExit code: 0"))
        for number in range(3)
    ]
    assert (
        blocked_lines(
            make_turn(
                "Go.",
                run_command("fetch-rates", "Error: 429 too many requests\nExit code: 1"),
            ),
            *later,
        )
        == ""
    )
    twice = [
        run_command("deploy", "Error: no such host\nExit code: 1"),
        run_command("deploy", "Error: no such host\nExit code: 1"),
    ]
    assert "deploy` failed (message 1, 2 times): Error: no such host" in blocked_lines(
        make_turn("Go.", *twice), *later
    )


def test_a_failure_that_later_passed_is_not_listed() -> None:
    """A mutation makes one test fail; the whole run passes after it was taken back, under another command."""
    mutation = run_command(
        "go test ./rates -run TestRates",
        "--- FAIL: TestRates\nFAIL\n1 failed, 0 passed\nExit code: 1",
    )
    assert (
        blocked_lines(
            make_turn("Go.", mutation, run_command("mise run test", "12 passed\nExit code: 0"))
        )
        == ""
    )
    assert (
        blocked_lines(
            make_turn(
                "Go.",
                run_command("pytest", FAILS),
                run_command("pytest tests/test_one.py", "1 passed\nExit code: 0"),
            )
        )
        != ""
    )


def test_a_failed_call_is_not_listed_once_the_agent_continued() -> None:
    """A button of a page that is gone never passes; the agent clicked others since."""

    def click(ref: str, answer: str) -> list[Message]:
        return call_with_result("browser_click", {"ref": ref}, answer)

    failed = click("e12", "Error: Ref e12 not found in the current page snapshot.")
    assert "e12" in blocked_lines(make_turn("Go.", failed))
    assert blocked_lines(make_turn("Go.", failed, click("e14", "Clicked"))) == ""


def test_a_report_that_counts_only_tests_and_failures_is_read() -> None:
    test = build_state(
        make_turn(
            "Go.",
            run_command(
                "mix test 2>&1 | tail -5",
                "Finished in 3.2 seconds\n410 tests, 0 failures\n",
            ),
        )
    ).find_last_test()
    assert test is not None
    assert test[1].outcome == "410 tests"
    failing = make_turn(
        "Go.",
        run_command(
            "mix test",
            "1) test rates\n** (RuntimeError) no rates\n\n410 tests, 2 failures\nExit code: 2",
        ),
    )
    assert "2 failures" in blocked_lines(failing)


async def test_the_state_includes_the_tail() -> None:
    """The newest test run and a pass that resolves an error are in the tail."""
    conversation = [
        user_message("Begin."),
        assistant_message("Yes."),
        user_message("Go on."),
        *run_command("npm test", FAILS),
        *run_command("npm test", FAILS),
        *tool_turns(100, 60),
        *run_command("npm test", "9 passed\nExit code: 0"),
        assistant_message("It passes."),
        user_message("What now?"),
    ]
    sections = read_sections(await compact(conversation, window=16_000, summarizer=JOURNAL))
    assert "last test run: `npm test` → exit 0, 9 passed" in sections[STATE]
    assert BLOCKED not in sections


@pytest.mark.parametrize("failed", ["git add a.py && git commit -m", "git commit -m"])
def test_a_chain_that_ends_with_the_failed_step_resolves_it(failed: str) -> None:
    message = f'"$(cat <<EOF rates {"and more " * 60} EOF)"'
    refused = "ERROR: a.py is not formatted\nExit code: 1"
    done = run_command(f"git add a.py b.py && git commit -m {message}", "[main 64f1b9a] rates")
    failure = run_command(f"{failed} {message}", refused)
    assert "not formatted" in blocked_lines(make_turn("Commit.", failure))
    assert not blocked_lines(make_turn("Commit.", failure, done))


def test_a_step_that_passes_alone_does_not_resolve_the_chain() -> None:
    failure = run_command("make lint && git commit -m x", "ERROR: a.py:3 long line\nExit code: 1")
    later = run_command("git add b.py && git commit -m x", "[main 64f1b9a] x")
    assert "long line" in blocked_lines(make_turn("Commit.", failure, later))


def test_only_the_newest_outcome_of_a_command_is_open() -> None:
    """The same run fails differently, also from a folder that it names; then it passes."""
    runs = [
        run_command("pytest -q", "KeyError: 'a'\nExit code: 1"),
        run_command("cd /r && pytest -q", "TypeError: b is None\nExit code: 1"),
    ]
    failing = make_turn("Go.", *runs)
    text = blocked_lines(failing)
    assert "failed (message 1, 2 times): TypeError: b is None" in text
    assert "KeyError" not in text
    journal = build_journal(failing).render()
    assert "error: KeyError: 'a' (failed differently later)" in journal
    assert "error: TypeError: b is None\n" in journal
    passing = make_turn("Go.", *runs, run_command("pytest -q", "Exit code: 0"))
    fixed_journal, state = build_journal_and_state(passing)
    assert not state.errors
    assert "KeyError: 'a' (fixed later)" in fixed_journal.render()
    assert "TypeError: b is None (fixed later)" in fixed_journal.render()


async def test_a_failure_of_an_earlier_summary_is_marked_when_the_run_fails_differently() -> None:
    engine_input = [
        user_message("Begin."),
        *run_command("make", "Error: no rates\nExit code: 2"),
        *tool_turns(100, 60),
        user_message("Go on."),
    ]
    first = await compact(engine_input, window=16_000, summarizer=JOURNAL)
    assert read_sections(first)[DONE].endswith("error: Error: no rates")
    later = [
        *first.messages,
        assistant_message("Again."),
        user_message("Once more."),
        *run_command("make", "Error: no disk\nExit code: 2"),
        *tool_turns(200, 60),
        user_message("Next."),
    ]
    second = await compact(later, window=16_000, summarizer=JOURNAL)
    text = read_sections(second)[DONE]
    assert "Error: no rates (failed differently later)" in text
    assert text.endswith("error: Error: no disk")


def test_a_run_of_the_failed_test_resolves_it() -> None:
    failed = run_command(
        "mise run ci",
        "--- FAIL: TestRates (0.09s)\nFAIL\nFAIL\tapp/rates\t1s\nok  \tapp/a\t1s",
    )
    other = run_command("go test -run TestTaxes ./rates", "ok  \tapp/rates\t1s")
    same = run_command("go test -run TestRates ./rates", "ok  \tapp/rates\t1s")
    assert "TestRates" in blocked_lines(make_turn("Go.", failed, other))
    assert blocked_lines(make_turn("Go.", failed, other, same)) == ""


def test_packages_are_compared_with_packages() -> None:
    output = "--- FAIL: TestRates (0.09s)\nFAIL\nFAIL\tapp/rates\t1s\nok  \tapp/a\t1s"
    failed = run_command("mise run ci", output)
    assert "1, 2 packages): --- FAIL" in blocked_lines(make_turn("Go.", failed))
    assert blocked_lines(make_turn("Go.", failed, run_command("pytest", "9 passed"))) != ""
    passed = "ok  \tapp/rates\t1s\nok  \tapp/a\t1s"
    assert blocked_lines(make_turn("Go.", failed, run_command("go test ./...", passed))) == ""


def test_another_inline_program_resolves_a_failed_one() -> None:
    """Agents change such a program, so the same text may never pass."""
    failed = run_command("python3 - <<'E'\nprint(x)\nE", "NameError: x\nExit code: 1")
    assert "NameError" in blocked_lines(make_turn("Go.", failed, run_command("ls src", "a.py")))
    fixed = run_command("python3 - <<'E'\nprint(1)\nE", "1")
    assert blocked_lines(make_turn("Go.", failed, fixed)) == ""


def test_printed_exit_codes_are_not_the_commands_own() -> None:
    checks = run_command(
        'app --good; echo "exit=$?"; app --bad; echo "exit=$?"', "exit=0\nexit=154"
    )
    assert blocked_lines(make_turn("Go.", checks)) == ""
    one = run_command('make; echo "exit=$?"', "no rule\nexit=2")
    assert "make" in blocked_lines(make_turn("Go.", one))


STARTED = (
    "Command running in background with ID: b7636e2. Output is being written to: /t/b7636e2.output"
)


def start(command: str) -> list[Message]:
    return call_with_result(
        "Bash",
        {"command": command, "run_in_background": True},
        STARTED,
    )


def notice(status: str, task: str = "b7636e2") -> list[Message]:
    reason = " with exit code 1" if status == "failed" else ""
    return [
        user_message(
            f"<task-notification>\n<task-id>{task}</task-id>\n<status>{status}</status>\n"
            f'<summary>Background command "Check" {status}{reason}</summary>\n</task-notification>'
        )
    ]


def test_a_background_command_runs_until_its_end_is_reported() -> None:
    running = build_state(make_turn("Go.", start("make watch"))).processes
    assert running == ["make watch (session b7636e2)"]
    assert (
        build_state(make_turn("Go.", start("make watch"), notice("completed", "b1"))).processes
        == running
    )
    for end in (
        notice("completed"),
        notice("killed"),
        call_with_result("KillShell", '{"shell_id": "b7636e2"}', "ok"),
    ):
        state = build_state(make_turn("Go.", start("make watch"), end))
        assert state.processes == []
        assert not state.errors


def test_a_background_command_fails_with_its_report() -> None:
    failed = make_turn("Go.", start("make check"), notice("failed"))
    assert build_state(failed).processes == []
    assert "`make check` failed" in blocked_lines(failed)
    assert blocked_lines(failed, make_turn("Go.", run_command("make check", "Exit code: 0"))) == ""
    ask = json.dumps({"task_id": "b7636e2", "block": True})
    report = "<retrieval_status>success</retrieval_status>\n\n<task_id>b7636e2</task_id>\n\n<status>{}</status>\n\n{}"
    still = call_with_result("TaskOutput", ask, report.format("running", "…"))
    assert build_state(make_turn("Go.", start("make check"), still)).processes
    ended = call_with_result(
        "TaskOutput",
        ask,
        report.format("failed", "<exit_code>2</exit_code>\n<output>Error: no rates</output>"),
    )
    text = blocked_lines(make_turn("Go.", start("make check"), ended, notice("failed")))
    assert "`make check` failed (message 1): <output>Error: no rates" in text
    tests = call_with_result(
        "TaskOutput",
        ask,
        report.format("completed", "<exit_code>0</exit_code>\n12 passed"),
    )
    test = build_state(make_turn("Go.", start("pytest"), tests)).find_last_test()
    assert test is not None
    assert test[1].outcome == "exit 0, 12 passed"
