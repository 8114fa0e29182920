"""The section Blocked, and the choice of the last test run."""

from __future__ import annotations

import json
from itertools import count

import pytest

from everthread.compaction.compressor import ContextCompressor
from everthread.compaction.engine import Services
from everthread.compaction.history.thread_facts import build_state
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.summary.sections import BLOCKED, STATE, parse_sections
from everthread.compaction.summary.state_sections import write_open_errors
from everthread.core.messages import Message
from everthread.core.tokens import TokenCounter
from everthread.core.tokens.budget import Budget
from tests.compaction.histories import (
    assistant_message,
    call_with_result,
    tool_turns,
    user_message,
)

COUNTER = TokenCounter("gpt-4o")
NUMBERS = count(1)
FAILS = (
    "FAIL test_rates\nAssertionError: 3 != 4\n1 failed, 3 passed in 1.2s\nExit code: 1"
)


def run(command: str, output: str) -> list[Message]:
    return call_with_result(
        next(NUMBERS), "bash", json.dumps({"command": command}), output
    )


def turn(text: str, *steps: list[Message]) -> list[Message]:
    return [
        user_message(text),
        *(message for step in steps for message in step),
        assistant_message("Done."),
    ]


def blocked_lines(*turns: list[Message]) -> str:
    return write_open_errors(build_state([message for one in turns for message in one]))


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
def test_a_run_that_failed_just_now_is_listed(
    command: str, output: str, error: str
) -> None:
    assert error in blocked_lines(turn("Go.", run(command, output)))


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
def test_help_texts_listings_and_reviews_are_not_problems(
    command: str, output: str
) -> None:
    assert blocked_lines(turn("Go.", run(command, output))) == ""


def test_an_old_problem_is_listed_only_if_it_came_repeatedly() -> None:
    later = [
        turn(f"Turn {number}.", run(f"make part_{number}", "ok\nExit code: 0"))
        for number in range(3)
    ]
    assert (
        blocked_lines(
            turn(
                "Go.", run("fetch-rates", "Error: 429 too many requests\nExit code: 1")
            ),
            *later,
        )
        == ""
    )
    twice = [
        run("deploy", "Error: no such host\nExit code: 1"),
        run("deploy", "Error: no such host\nExit code: 1"),
    ]
    assert "deploy` failed (message 1, 2 times): Error: no such host" in blocked_lines(
        turn("Go.", *twice), *later
    )


def test_a_deliberate_failure_that_later_passed_is_not_listed() -> None:
    """A mutation makes one test fail; the whole run passes after it was taken back, under another command."""
    mutation = run(
        "go test ./rates -run TestRates",
        "--- FAIL: TestRates\nFAIL\n1 failed, 0 passed\nExit code: 1",
    )
    assert (
        blocked_lines(
            turn("Go.", mutation, run("mise run test", "12 passed\nExit code: 0"))
        )
        == ""
    )
    assert (
        blocked_lines(
            turn(
                "Go.",
                run("pytest", FAILS),
                run("pytest tests/test_one.py", "1 passed\nExit code: 0"),
            )
        )
        != ""
    )


def test_a_failed_call_that_the_agent_moved_on_from_is_not_listed() -> None:
    """A button of a page that is gone never passes; the agent clicked others since."""

    def click(ref: str, answer: str) -> list[Message]:
        return call_with_result(
            next(NUMBERS), "browser_click", json.dumps({"ref": ref}), answer
        )

    failed = click("e12", "Error: Ref e12 not found in the current page snapshot.")
    assert "e12" in blocked_lines(turn("Go.", failed))
    assert blocked_lines(turn("Go.", failed, click("e14", "Clicked"))) == ""


def test_the_last_test_run_is_a_run_of_a_test_command() -> None:
    conversation = turn(
        "Go.",
        run("pytest -q", "12 passed in 2s\nExit code: 0"),
        run("gh pr view 1558 --json body --jq .body", "All good: 142 passed"),
        run("./report.sh", "40 passed this month"),
    )
    test = build_state(conversation).last_test()
    assert test is not None
    assert test[0] == "pytest -q"


def test_a_report_that_counts_only_tests_and_failures_is_read() -> None:
    test = build_state(
        turn(
            "Go.",
            run(
                "mix test 2>&1 | tail -5",
                "Finished in 3.2 seconds\n410 tests, 0 failures\n",
            ),
        )
    ).last_test()
    assert test is not None
    assert test[1].outcome == "410 tests"
    failing = turn(
        "Go.",
        run(
            "mix test",
            "1) test rates\n** (RuntimeError) no rates\n\n410 tests, 2 failures\nExit code: 2",
        ),
    )
    assert "2 failures" in blocked_lines(failing)


async def test_the_state_counts_the_tail_too() -> None:
    """The newest test run and a pass that resolves an error are in the tail."""
    conversation = [
        user_message("Begin."),
        assistant_message("Yes."),
        user_message("Go on."),
        *run("npm test", FAILS),
        *run("npm test", FAILS),
        *tool_turns(100, 60),
        *run("npm test", "9 passed\nExit code: 0"),
        assistant_message("It passes."),
        user_message("What now?"),
    ]
    services = Services(
        JournalWriter(COUNTER), COUNTER, Budget.for_window(16_000), lambda: 0.0
    )
    told = parse_sections(
        (await ContextCompressor(services).compress(conversation)).summary
    )
    assert "last test run: `npm test` → exit 0, 9 passed" in told[STATE]
    assert BLOCKED not in told


@pytest.mark.parametrize("failed", ["git add a.py && git commit -m", "git commit -m"])
def test_a_chain_that_ends_with_the_failed_step_resolves_it(failed: str) -> None:
    message = f'"$(cat <<EOF rates {"and more " * 60} EOF)"'
    refused = "ERROR: a.py is not formatted\nExit code: 1"
    done = run(f"git add a.py b.py && git commit -m {message}", "[main 64f1b9a] rates")
    failure = run(f"{failed} {message}", refused)
    assert "not formatted" in blocked_lines(turn("Commit.", failure))
    assert not blocked_lines(turn("Commit.", failure, done))


def test_a_step_that_passes_alone_does_not_resolve_the_chain_before_it() -> None:
    failure = run(
        "make lint && git commit -m x", "ERROR: a.py:3 long line\nExit code: 1"
    )
    later = run("git add b.py && git commit -m x", "[main 64f1b9a] x")
    assert "long line" in blocked_lines(turn("Commit.", failure, later))
