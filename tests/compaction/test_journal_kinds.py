"""Journals of agents of many kinds, as the next agent reads them."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from everthread.compaction.history.thread_facts import build_state
from everthread.compaction.history.tool_calls import describe_call
from everthread.compaction.journal.journal_builder import build_journal_and_state
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.journal.one_line_text import split_note
from everthread.compaction.summary.sections import DONE, parse_sections
from everthread.compaction.summary.state_sections import write_open_errors
from everthread.core.messages import Call, Message
from everthread.core.tokens import TokenCounter
from tests.compaction.histories import (
    assistant_message,
    call_with_result,
    make_engine,
    tool_turns,
    user_message,
)

NUMBERS = count(1)


def call(name: str, arguments: dict[str, Any], result: str) -> list[Message]:
    return call_with_result(next(NUMBERS), name, json.dumps(arguments), result)


def run(command: str, output: str, *, failed: bool = False) -> list[Message]:
    asked, answer = call("Bash", {"command": command}, output)
    failure: Any = {**answer, "is_error": True}
    return [asked, failure if failed else answer]


def turn(text: str, *steps: list[Message]) -> list[Message]:
    done = [message for step in steps for message in step]
    return [user_message(text), *done, assistant_message("Done.")]


def journal_text(messages: list[Message]) -> str:
    return build_journal_and_state(messages)[0].render()


@pytest.mark.parametrize(
    ("command", "output", "reason"),
    [
        pytest.param(
            "cargo test",
            "---- config::rejects stdout ----\nthread 'config::rejects' panicked at src/config.rs:88:9:\n"
            "assertion failed: is_unknown(err)\n\ntest result: FAILED. 23 passed; 1 failed; 0 ignored",
            "src/config.rs:88:9: assertion failed: is_unknown(err)",
            id="rust",
        ),
        pytest.param(
            "go test -race ./worker/",
            "--- FAIL: TestNoLeak (0.51s)\n    testing.go:1465: race detected during execution of test\n"
            "FAIL\nFAIL\tapp/worker\t1.204s",
            "TestNoLeak (0.51s) testing.go:1465: race detected",
            id="go",
        ),
        pytest.param(
            "npx eslint .",
            "/w/a.js\n  3:1  error  'x' is not defined  no-undef\n\n✖ 1 problem (1 error, 0 warnings)",
            "'x' is not defined",
            id="typescript",
        ),
        pytest.param(
            "mvn -q verify",
            "[ERROR] Failures: \n[ERROR]   OrderIT.creates:33 expected: <201> but was: <500>\n"
            "[ERROR] Tests run: 6, Failures: 1, Errors: 0, Skipped: 0",
            "OrderIT.creates:33 expected: <201> but was: <500>",
            id="java",
        ),
    ],
)
def test_a_failed_run_is_listed_with_its_reason_once(
    command: str, output: str, reason: str
) -> None:
    history = turn("Go on.", run(command, output, failed=True))
    assert write_open_errors(build_state(history)).count(reason) == 1
    assert journal_text(history).count(reason) == 1


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (
            "kubectl logs -n api api-6d5f7 --tail=20",
            "2026-11-01T10:02:11Z FATAL dial tcp 10.0.3.7:5432: connect: connection refused",
        ),
        (
            "ssh db1 'systemctl status postgresql'",
            "postgresql.service\n  Active: failed (Result: oom-kill) since Sat 2026-11-01",
        ),
        ("journalctl -u api | tail -5", "api[81]: ERROR: worker exited with code 137"),
        ("docker logs web", "Error: listen EADDRINUSE: address already in use :::80"),
    ],
)
def test_errors_in_the_logs_that_an_operator_reads_are_no_problem_of_the_agent(
    command: str, output: str
) -> None:
    history = turn("What happened?", run(command, output))
    assert write_open_errors(build_state(history)) == ""
    assert "error:" not in journal_text(history)


def test_a_restart_on_another_machine_is_an_action() -> None:
    history = turn("Restart it.", run("ssh db1 'sudo systemctl restart pg'", ""))
    assert "ran `ssh db1 'sudo systemctl restart pg'`" in journal_text(history)


def test_the_report_of_a_subagent_is_told_by_its_first_statement() -> None:
    report = "## Findings\n\n1. HIGH: session.py:88 compares tokens with ==\n2. LOW"
    history = turn("Review it.", call("Task", {"description": "review"}, report))
    assert "→ 1. HIGH: session.py:88 compares tokens with ==" in journal_text(history)


async def test_a_command_in_pieces_is_read_like_one_in_a_line() -> None:
    """Codex sends the words of a command as a list."""
    lint = {"command": ["bash", "-lc", "npm run lint --prefix web-client"]}
    failed = json.dumps(
        {
            "output": "3:1  error  'x' is not defined",
            "metadata": {"exit_code": 1},
        }
    )
    history = [
        *turn("Fix the lint errors.", call("shell", lint, failed)),
        *turn("Read on.", tool_turns(500, 20)),
        user_message("Next."),
    ]
    result = await make_engine(16_000, JournalWriter(TokenCounter("gpt-4o"))).compress(
        history
    )
    done = parse_sections(result.summary)[DONE]
    assert "ran `npm run lint --prefix web-client` → exit 1" in done


async def test_an_error_that_the_tail_shows_to_be_fixed_is_marked() -> None:
    failed = "FAILED tests/test_api.py::test_token - KeyError: 'token'\n1 failed in 1s"
    history = [
        *turn("Read.", tool_turns(600, 20)),
        *turn("Fix the API.", run("pytest -q", failed, failed=True)),
        *turn("Read on.", tool_turns(700, 20)),
        *turn("Again.", run("pytest -q", "1 passed in 1s")),
        user_message("Next."),
    ]
    result = await make_engine(16_000, JournalWriter(TokenCounter("gpt-4o"))).compress(
        history
    )
    assert all(index < len(history) - 4 for index in result.covered)
    done = parse_sections(result.summary)[DONE]
    assert "KeyError: 'token' (fixed later)" in done


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            turn(
                "Does the test catch a wrong rate?",
                run(
                    "sed -i 's/19/20/' rates.py && pytest tests/test_rates.py -q; git checkout rates.py",
                    "FAILED tests/test_rates.py::test_vat - assert 20 == 19\n1 failed, 3 passed in 0.4s",
                ),
                run("pytest tests/test_rates.py -q", "4 passed in 0.41s"),
            ),
            id="a deliberate failure",
        ),
        pytest.param(
            turn(
                "Apply the change.",
                run(
                    "terraform apply p",
                    "│ Error: creating EC2 Subnet: InvalidSubnet.Conflict",
                    failed=True,
                ),
                run("terraform apply p", "Apply complete! Resources: 2 added"),
            ),
            id="an operator",
        ),
        pytest.param(
            turn(
                "予約して",
                call("browser_click", {"ref": "e12"}, "Error: Ref e12 not found"),
                call("browser_click", {"ref": "e31"}, "ok"),
            ),
            id="a browser",
        ),
        pytest.param(
            turn(
                "哪个地区下降最多？",
                call("python", {"code": "df.revenue"}, "AttributeError: no 'revenue'"),
                call("python", {"code": "df.net_revenue.sum()"}, "310022.1"),
            ),
            id="data analysis",
        ),
        pytest.param(
            turn(
                "Compare them.",
                call("fetch", {"url": "https://a.example"}, "HTTP 429 Too Many"),
                call("fetch", {"url": "https://b.example"}, "Hybrid search."),
            ),
            id="research",
        ),
        pytest.param(
            turn(
                "Review it.",
                call("Task", {"prompt": "Review"}, "Fine. 2 failed tries reverted."),
            ),
            id="a subagent",
        ),
    ],
)
def test_a_problem_that_is_over_is_not_listed(history: list[Message]) -> None:
    assert write_open_errors(build_state(history)) == ""


def test_the_reason_of_a_failed_go_test_is_its_own() -> None:
    output = (
        "=== RUN   TestOne\n    one_test.go:12: Phase 1: begin\n    one_test.go:19: got 3, want 4\n"
        "--- FAIL: TestOne (0.04s)\n=== RUN   TestTwo\n--- FAIL: TestTwo (0.02s)\nFAIL\nFAIL\tapp/one\t0.1s"
    )
    text = journal_text(turn("Test it.", run("go test -v ./one/", output, failed=True)))
    assert "--- FAIL: TestOne (0.04s) one_test.go:19: got 3, want 4" in text
    assert "=== RUN" not in text
    assert "(0.02s) FAIL" not in text


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("python", {"code": "# Search for test files\nprint(find('test'))"}),
        ("Bash", {"command": "go test -c ./cmd/... 2>&1 | head -20"}),
        ("Bash", {"command": "cargo test --no-run"}),
    ],
)
def test_a_call_that_runs_no_test_is_no_test_run(
    tool: str, arguments: dict[str, Any]
) -> None:
    messages = turn("Look.", run("pytest", "3 passed"), call(tool, arguments, ""))
    last_test = build_journal_and_state(messages)[1].last_test()
    assert last_test is not None
    assert last_test[0] == "pytest"


def test_the_report_of_a_subagent_is_no_test_run() -> None:
    report = "The plan is ready.\nIt has 7 tests passed on to the next agent."
    result = describe_call(Call("c1", "Task", '{"description": "Design"}'), report)
    assert result is not None
    assert "The plan is ready." in result
    assert "7 tests" not in result


def test_a_failed_edit_is_no_conclusion() -> None:
    asked, answer = call(
        "Edit", {"file_path": "a.py", "new_string": "x"}, "File has not been read yet."
    )
    failure: Any = {**answer, "is_error": True}
    text = journal_text(turn("Mend it.", [asked, failure]))
    assert "called Edit (a.py) → failed" in text
    note, action = split_note("called Edit (a.py) → failed")
    assert (note, action) == ("", "called Edit (a.py) → failed")


def test_a_text_before_calls_does_not_end_the_turn() -> None:
    messages = [
        user_message("Find it."),
        assistant_message("I will search the folder."),
        *run("make index", "ok"),
    ]
    text = journal_text(messages)
    assert "I will search the folder. — ran `make index`" in text
    assert "ended:" not in text


def test_commands_that_look_alike_when_cut_are_named_once() -> None:
    long_command = (
        "curl --request POST https://example.org/api/v2/projects/alpha/items/"
    )
    steps = [run(f"{long_command}{number}", "done " * 80) for number in range(3)]
    messages = [
        *turn("Send them.", *steps),
        *turn("And then?", run("make all", "built " * 300)),
    ]
    journal = build_journal_and_state(messages)[0]
    counter = TokenCounter("gpt-4o").text
    text = journal.shorten_to(counter(journal.render()) - 30, counter).render()
    assert text.count("curl --request POST") == 1


def test_the_announcement_of_calls_that_only_read_is_left_out() -> None:
    path = {"path": "queue.py"}
    asked, answer = call("read_file", path, "import os")
    only: Any = {**asked, "content": "Let me check the queue:"}
    asked_too, answer_too = call("read_file", path, "import os")
    both: Any = {
        **asked_too,
        "content": "The queue is never emptied by `worker_7`. Let me read on:",
    }
    text = journal_text(turn("Why?", [only, answer], [both, answer_too]))
    assert "Let me" not in text
    assert "The queue is never emptied by `worker_7`. […]" in text
