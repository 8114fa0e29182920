"""Journals of agents of many kinds, as the next agent reads them."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from everthread.compaction.history.thread_state import build_state
from everthread.compaction.history.tool_calls import CallFacts, describe_call
from everthread.compaction.journal.journal import parse_journal
from everthread.compaction.journal.journal_builder import build_journal_and_state
from everthread.compaction.journal.journal_writer import JournalWriter
from everthread.compaction.journal.one_line_text import split_note
from everthread.compaction.summary.sections import DONE, parse_sections
from everthread.compaction.summary.state_sections import (
    write_open_errors,
)
from everthread.core.messages import Call, Message, calls_of, text_of
from everthread.core.tokens import TokenCounter
from tests.compaction.histories import (
    assistant_message,
    call_with_result,
    make_engine,
    tool_turns,
    user_message,
)

NUMBERS = count(1)
COUNT = TokenCounter("gpt-4o").text


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


def open_errors(messages: list[Message]) -> str:
    return write_open_errors(build_state(messages))


def test_tests_that_log_errors_have_passed_also_when_only_their_line_is_left() -> None:
    asked, answer = run(
        "mix test 2>&1 | tail -20",
        f'10:01:02.227 [error] Error during the call. Reason: %ApiError{{type: "x"}}\n{"." * 300}\n'
        "14 doctests, 410 tests, 0 failures",
    )
    facts = CallFacts(Call("c1", "Bash", calls_of(asked)[0].arguments), text_of(answer))
    line = facts.describe()
    assert line is not None
    assert line.startswith("[Bash] ran `mix test 2>&1 | tail -20` -> 410 tests, ")
    assert facts.find_errors() == []
    pruned: Any = {**answer, "content": line}
    for messages in (
        turn("Test it.", [asked, answer]),
        turn("Test it.", [asked, pruned]),
    ):
        text = journal_text(messages)
        assert "→ 410 tests" in text
        assert "error:" not in text
        assert open_errors(messages) == ""


@pytest.mark.parametrize(
    "output", ["12 passed", "exit 0, 12 passed", "3 skipped, 12 passed"]
)
def test_a_pattern_with_a_pipe_sign_only_trims_the_output(output: str) -> None:
    failed = run(
        "mix test 2>&1", "Exit code 2\n** (Error) boom: no database", failed=True
    )
    passed = run('mix test 2>&1 | grep -E "(tests|passed)"', output)
    assert open_errors(turn("Test.", failed)) != ""
    assert open_errors(turn("Test.", failed, passed)) == ""


def test_the_figures_in_a_message_of_a_commit_are_no_test_run() -> None:
    failed = run(
        "pytest",
        "FAILED tests/test_a.py::test_b - assert 1 == 2\n1 failed, 3 passed",
        failed=True,
    )
    told = "Closed issue 7: The limits are checked. 397 tests pass."
    closing = run(
        'bd close 7 --reason="The limits are checked. 397 tests pass."',
        told + " " * 300,
    )
    messages = turn("Close it.", failed, closing)
    assert "→ Closed issue 7: The limits are checked." in journal_text(messages)
    assert "`pytest` failed" in open_errors(messages)


@pytest.mark.parametrize(
    "command",
    [
        "kubectl --context prod-eu -n shop get pods",
        "kubectl -n shop --context=prod-eu logs checkout-7 --previous",
        "helm --kube-context prod-eu -n shop history checkout",
        "git -C /r --git-dir /r/.git log --oneline",
        "gh -R a/b pr view 3",
        "docker --context remote ps -a",
    ],
)
def test_options_before_a_subcommand_do_not_make_it_act(command: str) -> None:
    output = "42  2026-11-03  failed  Upgrade failed: timed out waiting for the condition\nError: x"
    text = journal_text(turn("Why?", run(command, output)))
    assert "looked 1 time" in text
    assert "error:" not in text


@pytest.mark.parametrize(
    "command",
    [
        "kubectl --context prod-eu -n shop delete pod a",
        "helm -n get uninstall checkout",
        "docker -c ps rm a",
    ],
)
def test_the_value_of_an_option_is_no_subcommand(command: str) -> None:
    assert "ran `" in journal_text(turn("Do it.", run(command, "done")))


def test_a_column_of_a_table_is_no_count_of_tests() -> None:
    table = "REVISION\tUPDATED\tSTATUS\n42\tTue Nov 3 14:00:40 2026\tfailed\tcheckout-2.14.0"
    state = build_state(turn("Deploy.", run("./deploy.sh history", table)))
    assert "2026 failed" not in str(state.commands)


def test_a_placeholder_in_a_text_is_no_file() -> None:
    command = "cat > out/log.txt <<EOF\nIt is in runs/<exp>/<ts>/ and in sync-<id>/x.md now.\nEOF"
    assert list(build_state(turn("Write it.", run(command, ""))).files) == [
        "out/log.txt"
    ]


def test_every_step_of_a_chain_that_succeeded_has_passed() -> None:
    lint = run(
        "golangci-lint run ./...",
        "queue.go:40:2: ineffectual assignment to n (ineffassign)\n1 issues:",
        failed=True,
    )
    messages = turn("Lint.", lint)
    assert "queue.go:40:2: ineffectual assignment to n (ineffassign)" in open_errors(
        messages
    )
    chain = run("golangci-lint run ./... && go test ./...", "ok  \tapp/queue\t0.1s")
    assert open_errors([*messages, *turn("Again.", chain)]) == ""
    loose = run("golangci-lint run ./... ; go test ./...", "ok  \tapp/queue\t0.1s")
    assert open_errors([*messages, *turn("Again.", loose)]) != ""


def test_a_tool_that_reports_exit_codes_has_passed_without_one() -> None:
    command = "git commit -m 'Add the limit'"
    failed = run(
        command,
        "Exit code 1\n[DIALYZER] error: lib/a.ex:12: pattern can never match",
        failed=True,
    )
    passed = run(
        command,
        "[hooks] Error: retried once\n[main 64f1b9a] Add the limit\n 2 files changed",
    )
    assert open_errors(turn("Commit.", failed)) != ""
    assert open_errors(turn("Commit.", failed, passed)) == ""


def test_a_command_that_was_cut_is_known_again_from_its_beginning() -> None:
    command = f"git add a.py && git commit -m 'Add the limit {'and the reason ' * 40}'"
    cut = f"{command[:160]}… [cut: {len(command)} characters in all]"
    other = command.replace("the limit", "the timeout")
    failed = run(cut, "Exit code 1\nerror: hook declined: a.py", failed=True)
    for passed, is_open in ((command, False), (other, True)):
        messages = turn("Commit.", failed, run(passed, "[main 64f1b9a] Add"))
        assert bool(open_errors(messages)) == is_open
    make = run(
        f"make {'target ' * 30}… [cut: 400 characters in all]",
        "Exit code 2\nerror: no rule",
        failed=True,
    )
    messages = turn("Make.", make, run(f"make {'target ' * 50}", "built"))
    assert open_errors(messages) == ""


def test_the_reason_of_a_failed_go_test_is_not_what_it_logged_last() -> None:
    output = (
        "=== RUN   TestLeak\n    leak_test.go:58: found 14 goroutines, want 2\n"
        "    leak_test.go:59: goroutine 91 [chan receive]: readLoop(0xc000182000)\n--- FAIL: TestLeak (2.03s)\nFAIL"
    )
    text = journal_text(turn("Test.", run("go test -v ./...", output, failed=True)))
    assert "TestLeak (2.03s) leak_test.go:58: found 14 goroutines, want 2" in text


def test_the_error_of_an_assertion_library_is_the_reason() -> None:
    output = (
        "    flow_test.go:1412: \n        \tError Trace:\t/r/flow_test.go:1412\n"
        "        \tError:      \tShould be true\n        \tTest:       \tTestFlow\n"
        "    flow_test.go:1421: the flow completed\n--- FAIL: TestFlow (7.11s)\nFAIL"
    )
    text = journal_text(turn("Test.", run("go test -v ./...", output, failed=True)))
    assert "Error: Should be true" in text
    assert "the flow completed" not in text


def test_an_item_of_an_announced_list_of_errors_is_no_comment() -> None:
    output = (
        "Exit code 1\nError: Error making API request.\n\nURL: GET https://vault.corp:8200/v1/kv\nCode: 403. Errors:\n"
        "\n* permission denied\n"
    )
    assert "* permission denied" in open_errors(
        turn("Plan.", run("terraform plan", output, failed=True))
    )
    comment = (
        "Exit code 1\n/**\n * permission denied is thrown\n */\nerror: no such crate"
    )
    assert "thrown" not in open_errors(
        turn("Plan.", run("make all", comment, failed=True))
    )


def test_what_a_lookup_printed_before_its_last_heading_is_not_why_it_failed() -> None:
    output = "Exit code 1\nd6f93d27 push to the origin, not a made-up URL\n=== is the doc there? ===\n"
    messages = turn("Look.", run("make log; ls doc.md", output, failed=True))
    assert "made-up" not in journal_text(messages)


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        (
            "map.env: Modifying... [id=shop/env]\nApply complete! Resources: 0 added, 1 changed",
            "Apply complete! Resources: 0 added, 1 changed",
        ),
        ("[lint] $ golangci-lint run ./...\n0 issues.", "0 issues."),
        ("=== scripts ===\nlint", "lint"),
    ],
)
def test_an_outcome_is_no_announcement(output: str, outcome: str) -> None:
    assert f"→ {outcome}" in journal_text(turn("Do it.", run("make apply", output)))


def test_the_result_of_a_browser_is_the_page_and_not_the_code_that_ran() -> None:
    page = (
        "### Ran Playwright code\n```js\nawait page.getByRole('tab', { name: 'Payments' }).click();\n```\n\n"
        "### Page state\n- Page URL: https://portal.example/invoices/1009#payments\n- Page Title: Invoice\n"
    )
    text = journal_text(
        turn("Open it.", call("mcp__playwright__browser_click", {"ref": "e61"}, page))
    )
    assert "→ - Page URL: https://portal.example/invoices/1009#payments" in text


def test_the_report_of_a_subagent_is_told_by_a_finding() -> None:
    report = (
        "I have now enough context for a report.\n\n# Analysis\n\n"
        "The lock is taken twice: `drain` holds `q.mu` in queue.go:38.\n\nMore on request."
    )
    text = journal_text(turn("Why?", call("Task", {"description": "Find it"}, report)))
    assert "→ The lock is taken twice: `drain` holds `q.mu` in queue.go:38." in text


def test_tasks_that_are_created_one_by_one_are_the_todo_list() -> None:
    def create(number: int, subject: str) -> list[Message]:
        fields = {"subject": subject, "description": "As planned."}
        return call(
            "TaskCreate", fields, f"Task #{number} created successfully: {subject}"
        )

    def update(number: int, status: str) -> list[Message]:
        return call(
            "TaskUpdate",
            {"taskId": str(number), "status": status},
            f"Updated task #{number} status",
        )

    steps = [create(1, "Write tests"), create(2, "Wire it"), create(3, "Run all")]
    messages = turn(
        "Go.",
        *steps,
        update(1, "completed"),
        update(2, "in_progress"),
        update(9, "completed"),
    )
    state = build_state(messages)
    assert state.todo_items("completed") == ["#1 Write tests"]
    assert state.todo_items("in_progress") == ["#2 Wire it"]
    assert state.todo_items("pending") == ["#3 Run all"]
    assert "TaskUpdate" not in journal_text(messages)


def test_code_in_the_middle_of_a_long_note_does_not_become_prose() -> None:
    code = "\n".join(
        f"    if state.flag_{number} {{ return false }}" for number in range(60)
    )
    reasons = "\n".join(f"Reason {number} is as good as any." for number in range(35))
    note = (
        f"The flag is read too late.\n\n{reasons}\n\n```go\n{code}\n```\n\nSo `state.go:170` loses updates.\n\n"
        "Now on."
    )
    asked, answer = run("make all", "ok")
    noted: Any = {**asked, "content": note}
    text = journal_text(turn("Why?", [noted, answer]))
    assert "The flag is read too late." in text
    assert "So `state.go:170` loses updates." in text
    assert "return false" not in text


def test_an_opening_alone_is_no_note() -> None:
    asked, answer = call("read_file", {"path": "queue.py"}, "import os")
    noted: Any = {
        **asked,
        "content": "Good point there, subagents matter too. Let me look at how they write:",
    }
    assert "Good point" not in journal_text(turn("And now?", [noted, answer]))


def test_a_command_on_several_lines_is_one() -> None:
    text = journal_text(
        turn("Create it.", run('bd create "a" \\\n  --type epic \\\n  -l x', "av-raf"))
    )
    assert 'ran `bd create "a" --type epic -l x`' in text


@pytest.mark.parametrize(
    "command",
    [
        "npx prettier --check src/lib/money.ts",
        "npm run type-check",
        "cargo +1.74 check --workspace",
        "ruff check .",
    ],
)
def test_a_check_of_the_source_is_no_test_run(command: str) -> None:
    messages = turn("Check.", run("pytest", "3 passed"), run(command, "All good."))
    last_test = build_journal_and_state(messages)[1].last_test()
    assert last_test is not None
    assert last_test[0] == "pytest"


@pytest.mark.parametrize("command", ["node --test", "make check", "npm run check"])
def test_a_run_whose_name_is_a_check_is_a_test_run(command: str) -> None:
    messages = turn("Check.", run(command, "All good."))
    assert build_journal_and_state(messages)[1].last_test() is not None


def test_a_refused_command_did_not_run() -> None:
    refusal = "The user doesn't want to proceed with this tool use. The tool use was rejected."
    messages = turn(
        "Add it.",
        run("pnpm add limiter", refusal, failed=True),
        run("make all", "built"),
    )
    journal = build_journal_and_state(
        [*messages, *turn("And?", run("make x", "built " * 90))]
    )[0]
    counter = TokenCounter("gpt-4o").text
    entry = journal.entries[0]
    assert "ran 1 command\n" in entry.text
    assert entry.commands == ("make all",)
    text = journal.shorten_to(counter(journal.render()) - 6, counter).render()
    assert "limiter`," not in text


def test_every_answer_of_a_turn_that_the_client_continued_is_told() -> None:
    notice = user_message(
        "<task-notification>\n<task-id>b3</task-id>\n</task-notification>"
    )
    messages = [
        user_message("Limit the requests."),
        *run("make all", "built"),
        assistant_message("The limit is 100 per minute, in `limit.ts`."),
        notice,
        *run("make check", "ok"),
        assistant_message("The scan in the background failed with 407."),
    ]
    text = journal_text(messages)
    assert "The limit is 100 per minute, in `limit.ts`." in text
    assert "The scan in the background failed with 407." in text


def test_a_run_that_ended_by_itself_did_not_time_out() -> None:
    output = (
        "Exit code 1\n  1) [chromium] › a.spec.ts:40:5 › applies voucher\n\n"
        "    Error: Timed out 5000ms waiting for expect(locator).toHaveText(expected)\n\n"
        "  4 failed\n    [chromium] › a.spec.ts:40:5 › applies voucher\n  26 passed (1.9m)"
    )
    text = journal_text(turn("Test.", run("npx playwright test", output, failed=True)))
    assert "→ exit 1, 4 failed, 26 passed\n" in text
    stopped = "Exit code 143\nCommand timed out after 2m 0.0s"
    text = journal_text(turn("Test.", run("npx playwright test", stopped, failed=True)))
    assert "→ timed out, exit 143" in text


def test_a_total_of_tests_is_not_counted_twice() -> None:
    output = "14 tests completed, 1 failed\n\nBUILD FAILED in 58s\nExit Code: 1"
    messages = turn(
        "Test.",
        run(
            "./gradlew test",
            f"OrderIT > finds() FAILED\n    x.SqlError at A.java:61\n\n{output}",
            failed=True,
        ),
    )
    assert (
        "(message 1, 14 tests): OrderIT > finds() FAILED x.SqlError at A.java:61"
        in open_errors(messages)
    )


@pytest.mark.parametrize(
    ("command", "output", "reason"),
    [
        pytest.param(
            "./gradlew integrationTest",
            "RepoIT > findsOverdue() FAILED\n    org.h.SemanticException at RepoIT.java:61\n"
            "        Caused by: Could not interpret path 'invoice.dueDate'\n\n14 tests completed, 1 failed\n"
            "Error: (none)\nExit Code: 1\nSignal: (none)",
            "Caused by: Could not interpret path 'invoice.dueDate'",
            id="gradle",
        ),
        pytest.param(
            "dotnet test",
            "[xUnit.net 00:00:00.71]     A.VoucherTests.NeverBelowZero [FAIL]\n"
            "  Failed A.VoucherTests.NeverBelowZero [12 ms]\n"
            "  Error Message:\n   Assert.Equal() Failure: Values differ\nExpected: 0\nActual:   -4.50\n\n"
            "Failed!  - Failed:     1, Passed:     7, Skipped:     0, Total:     8, Duration: 84 ms - A.dll (net8.0)",
            "Error Message: Assert.Equal() Failure: Values differ",
            id="xunit",
        ),
        pytest.param(
            "pnpm test",
            "FAIL src/limit.test.ts\n  ● sliding window › blocks the 101st request\n\n"
            "    Expected: 429\n    Received: 200\n\n"
            "Tests:       1 failed, 4 passed, 5 total",
            "● sliding window › blocks the 101st request",
            id="jest",
        ),
    ],
)
def test_a_failed_run_is_told_by_its_reason_and_not_by_its_counts(
    command: str, output: str, reason: str
) -> None:
    lines = open_errors(turn("Test.", run(command, output, failed=True)))
    assert reason in lines
    for counts in ("(none)", "tests completed", "Failed!", "Tests:"):
        assert counts not in lines


def test_the_name_of_a_test_that_starts_is_no_error() -> None:
    output = (
        "=== RUN   TestBothFlagsError\n--- PASS: TestBothFlagsError (0.0s)\n"
        "--- FAIL: TestX (0.1s)\n    x_test.go:3: got 1, want 2\nFAIL"
    )
    text = journal_text(turn("Test.", run("go test -v ./...", output, failed=True)))
    assert "TestBothFlagsError" not in text
    assert "TestX (0.1s) x_test.go:3: got 1, want 2" in text


def test_an_entry_that_says_nothing_is_left_out_and_counted() -> None:
    quiet = [user_message("Wait."), assistant_message(""), user_message("Hm.")]
    history = [*quiet, *turn("Test it.", run("make", "ok"))]
    journal = build_journal_and_state(history)[0]
    text = journal.render()
    assert "[1" not in text
    assert "3 messages that changed nothing left out." in text
    assert "(Journal of 7 messages," in text
    assert parse_journal(text) == journal
    assert parse_journal(text).message_count == 7
    only_quiet = build_journal_and_state(quiet)[0].render()
    assert only_quiet.endswith("[1–2] 3 messages")


def test_a_range_names_its_files_and_its_last_outcome() -> None:
    history = [
        message
        for number in range(30)
        for message in [
            user_message(f"Step {number}."),
            *call("Edit", {"file_path": f"/r/src/part_{number}.py"}, "ok"),
            *run(f"make part_{number}", f"{number + 1} passed\nexit code: 0"),
        ]
    ]
    entry, *_ = build_journal_and_state(history)[0].shorten_to(600, COUNT).entries
    assert entry.last_turn > entry.first_turn
    assert entry.file_change_count == entry.last_turn
    number = entry.last_turn - 1
    assert entry.lines == (
        f"changed {', '.join(f'/r/src/part_{n}.py' for n in range(number - 2, number + 1))}",
        f"ran `make part_{number}` → exit 0, {number + 1} passed",
    )
