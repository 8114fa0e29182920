"""Journals of agents of many kinds, as the next agent reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.compaction.history.thread_state import build_state
from everthread.compaction.history.tool_calls import CallWithOutput, describe_call
from everthread.compaction.journal.journal import parse_journal
from everthread.compaction.journal.one_line_text import split_note
from everthread.compaction.summary.sections import DONE
from everthread.compaction.summary.state_sections import (
    render_open_errors,
)
from everthread.core.messages import Message, ToolCall, calls_of, text_of
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import (
    COUNT,
    JOURNAL,
    build_journal,
    call_with_result,
    compact,
    flatten,
    make_turn,
    read_sections,
    run_command,
    tool_turns,
)


def journal_text(messages: list[Message]) -> str:
    return build_journal(messages).render()


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
    history = make_turn("Go on.", run_command(command, output, is_error=True))
    assert render_open_errors(build_state(history)).count(reason) == 1
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
def test_errors_in_logs_are_not_the_agents_problems(command: str, output: str) -> None:
    history = make_turn("What happened?", run_command(command, output))
    assert render_open_errors(build_state(history)) == ""
    assert "error:" not in journal_text(history)


def test_a_restart_on_another_machine_is_an_action() -> None:
    history = make_turn("Restart it.", run_command("ssh db1 'sudo systemctl restart pg'", ""))
    assert "ran `ssh db1 'sudo systemctl restart pg'`" in journal_text(history)


def test_a_subagents_report_is_shown_by_its_first_statement() -> None:
    report = "## Findings\n\n1. HIGH: session.py:88 compares tokens with ==\n2. LOW"
    history = make_turn("Review it.", call_with_result("Task", {"description": "review"}, report))
    assert "→ 1. HIGH: session.py:88 compares tokens with ==" in journal_text(history)


async def test_a_command_sent_as_a_list_is_read_like_a_line() -> None:
    """Codex sends the words of a command as a list."""
    lint = {"command": ["bash", "-lc", "npm run lint --prefix web-client"]}
    failed = json.dumps(
        {
            "output": "3:1  error  'x' is not defined",
            "metadata": {"exit_code": 1},
        }
    )
    history = [
        *make_turn("Fix the lint errors.", call_with_result("shell", lint, failed)),
        *make_turn("Read on.", tool_turns(500, 20)),
        user_message("Next."),
    ]
    result = await compact(history, window=16_000, summarizer=JOURNAL)
    done = read_sections(result)[DONE]
    assert "ran `npm run lint --prefix web-client` → exit 1" in done


async def test_an_error_fixed_in_the_tail_is_marked() -> None:
    failed = "FAILED tests/test_api.py::test_token - KeyError: 'token'\n1 failed in 1s"
    history = [
        *make_turn("Read.", tool_turns(600, 20)),
        *make_turn("Fix the API.", run_command("pytest -q", failed, is_error=True)),
        *make_turn("Read on.", tool_turns(700, 20)),
        *make_turn("Again.", run_command("pytest -q", "1 passed in 1s")),
        user_message("Next."),
    ]
    result = await compact(history, window=16_000, summarizer=JOURNAL)
    assert all(index < len(history) - 4 for index in result.covered)
    done = read_sections(result)[DONE]
    assert "KeyError: 'token' (fixed later)" in done


@pytest.mark.parametrize(
    "history",
    [
        pytest.param(
            make_turn(
                "Does the test catch a wrong rate?",
                run_command(
                    "sed -i 's/19/20/' rates.py && pytest tests/test_rates.py -q; git checkout rates.py",
                    "FAILED tests/test_rates.py::test_vat - assert 20 == 19\n1 failed, 3 passed in 0.4s",
                ),
                run_command("pytest tests/test_rates.py -q", "4 passed in 0.41s"),
            ),
            id="a deliberate failure",
        ),
        pytest.param(
            make_turn(
                "Apply the change.",
                run_command(
                    "terraform apply p",
                    "│ Error: creating EC2 Subnet: InvalidSubnet.Conflict",
                    is_error=True,
                ),
                run_command("terraform apply p", "Apply complete! Resources: 2 added"),
            ),
            id="an operator",
        ),
        pytest.param(
            make_turn(
                "予約して",
                call_with_result("browser_click", {"ref": "e12"}, "Error: Ref e12 not found"),
                call_with_result("browser_click", {"ref": "e31"}, "ok"),
            ),
            id="a browser",
        ),
        pytest.param(
            make_turn(
                "哪个地区下降最多？",
                call_with_result("python", {"code": "df.revenue"}, "AttributeError: no 'revenue'"),
                call_with_result("python", {"code": "df.net_revenue.sum()"}, "310022.1"),
            ),
            id="data analysis",
        ),
        pytest.param(
            make_turn(
                "Compare them.",
                call_with_result("fetch", {"url": "https://a.example"}, "HTTP 429 Too Many"),
                call_with_result("fetch", {"url": "https://b.example"}, "Hybrid search."),
            ),
            id="research",
        ),
        pytest.param(
            make_turn(
                "Review it.",
                call_with_result("Task", {"prompt": "Review"}, "Fine. 2 failed tries reverted."),
            ),
            id="a subagent",
        ),
    ],
)
def test_a_problem_that_is_over_is_not_listed(history: list[Message]) -> None:
    assert render_open_errors(build_state(history)) == ""


def test_the_reason_of_a_failed_go_test_is_its_own() -> None:
    output = (
        "=== RUN   TestOne\n    one_test.go:12: Phase 1: begin\n    one_test.go:19: got 3, want 4\n"
        "--- FAIL: TestOne (0.04s)\n=== RUN   TestTwo\n--- FAIL: TestTwo (0.02s)\nFAIL\nFAIL\tapp/one\t0.1s"
    )
    text = journal_text(
        make_turn("Test it.", run_command("go test -v ./one/", output, is_error=True))
    )
    assert "--- FAIL: TestOne (0.04s) one_test.go:19: got 3, want 4" in text
    assert "=== RUN" not in text
    assert "(0.02s) FAIL" not in text


def test_a_subagents_report_is_not_a_test_run() -> None:
    report = "The plan is ready.\nIt has 7 tests passed on to the next agent."
    result = describe_call(ToolCall("c1", "Task", '{"description": "Design"}'), report)
    assert result is not None
    assert "The plan is ready." in result
    assert "7 tests" not in result


def test_a_failed_edit_is_not_a_conclusion() -> None:
    asked, answer = call_with_result(
        "Edit", {"file_path": "a.py", "new_string": "x"}, "File has not been read yet."
    )
    failure: Any = {**answer, "is_error": True}
    text = journal_text(make_turn("Mend it.", [asked, failure]))
    assert "called Edit (a.py) → failed" in text
    note, action = split_note("called Edit (a.py) → failed")
    assert note == ""
    assert action == "called Edit (a.py) → failed"


def test_a_text_before_calls_does_not_end_the_turn() -> None:
    messages = [
        user_message("Find it."),
        assistant_message("I will search the folder."),
        *run_command("make index", "ok"),
    ]
    text = journal_text(messages)
    assert "I will search the folder. — ran `make index`" in text
    assert "ended:" not in text


def test_commands_that_look_alike_when_cut_are_named_once() -> None:
    long_command = "curl --request POST https://example.org/api/v2/projects/alpha/items/"
    steps = [run_command(f"{long_command}{number}", "done " * 80) for number in range(3)]
    messages = [
        *make_turn("Send them.", *steps),
        *make_turn("And then?", run_command("make all", "built " * 300)),
    ]
    journal = build_journal(messages)
    text = journal.shorten_to(COUNT(journal.render()) - 30, COUNT).render()
    assert text.count("curl --request POST") == 1


def test_the_announcement_of_calls_that_only_read_is_left_out() -> None:
    path = {"path": "queue.py"}
    asked, answer = call_with_result("read_file", path, "import os")
    only: Any = {**asked, "content": "Let me check the queue:"}
    asked_too, answer_too = call_with_result("read_file", path, "import os")
    both: Any = {
        **asked_too,
        "content": "The queue is never emptied by `worker_7`. Let me read on:",
    }
    text = journal_text(make_turn("Why?", [only, answer], [both, answer_too]))
    assert "Let me" not in text
    assert "The queue is never emptied by `worker_7`. […]" in text


def open_errors(messages: list[Message]) -> str:
    return render_open_errors(build_state(messages))


def test_passing_tests_may_log_errors() -> None:
    asked, answer = run_command(
        "mix test 2>&1 | tail -20",
        f'10:01:02.227 [error] Error during the call. Reason: %ApiError{{type: "x"}}\n{"." * 300}\n'
        "14 doctests, 410 tests, 0 failures",
    )
    facts = CallWithOutput(ToolCall("c1", "Bash", calls_of(asked)[0].arguments), text_of(answer))
    line = facts.describe()
    assert line is not None
    assert line.startswith("[Bash] ran `mix test 2>&1 | tail -20` -> 410 tests, ")
    assert facts.find_errors() == []
    pruned: Any = {**answer, "content": line}
    for messages in (
        make_turn("Test it.", [asked, answer]),
        make_turn("Test it.", [asked, pruned]),
    ):
        text = journal_text(messages)
        assert "→ 410 tests" in text
        assert "error:" not in text
        assert open_errors(messages) == ""


@pytest.mark.parametrize("output", ["12 passed", "exit 0, 12 passed", "3 skipped, 12 passed"])
def test_a_pattern_with_a_pipe_sign_only_trims_the_output(output: str) -> None:
    failed = run_command(
        "mix test 2>&1", "Exit code 2\n** (Error) boom: no database", is_error=True
    )
    passed = run_command('mix test 2>&1 | grep -E "(tests|passed)"', output)
    assert open_errors(make_turn("Test.", failed)) != ""
    assert open_errors(make_turn("Test.", failed, passed)) == ""


def test_figures_in_a_commit_message_are_not_a_test_run() -> None:
    failed = run_command(
        "pytest",
        "FAILED tests/test_a.py::test_b - assert 1 == 2\n1 failed, 3 passed",
        is_error=True,
    )
    told = "Closed issue 7: The limits are checked. 397 tests pass."
    closing = run_command(
        'bd close 7 --reason="The limits are checked. 397 tests pass."',
        told + " " * 300,
    )
    messages = make_turn("Close it.", failed, closing)
    assert "→ Closed issue 7: The limits are checked." in journal_text(messages)
    assert "`pytest` failed" in open_errors(messages)


def test_an_error_in_a_listing_is_not_an_error_of_the_call() -> None:
    output = "42  2026-11-03  failed  Upgrade failed: timed out waiting for the condition\nError: x"
    text = journal_text(make_turn("Why?", run_command("docker --context remote ps -a", output)))
    assert "looked 1 time" in text
    assert "error:" not in text


def test_a_column_of_a_table_is_not_a_test_count() -> None:
    table = "REVISION\tUPDATED\tSTATUS\n42\tTue Nov 3 14:00:40 2026\tfailed\tcheckout-2.14.0"
    state = build_state(make_turn("Deploy.", run_command("./deploy.sh history", table)))
    assert "2026 failed" not in str(state.commands)


def test_a_placeholder_in_a_text_is_not_a_file() -> None:
    command = "cat > out/log.txt <<EOF\nIt is in runs/<exp>/<ts>/ and in sync-<id>/x.md now.\nEOF"
    assert list(build_state(make_turn("Write it.", run_command(command, ""))).files) == [
        "out/log.txt"
    ]


def test_a_successful_chain_resolves_each_of_its_steps() -> None:
    lint = run_command(
        "golangci-lint run ./...",
        "queue.go:40:2: ineffectual assignment to n (ineffassign)\n1 issues:",
        is_error=True,
    )
    messages = make_turn("Lint.", lint)
    assert "queue.go:40:2: ineffectual assignment to n (ineffassign)" in open_errors(messages)
    chain = run_command("golangci-lint run ./... && go test ./...", "ok  \tapp/queue\t0.1s")
    assert open_errors([*messages, *make_turn("Again.", chain)]) == ""
    loose = run_command("golangci-lint run ./... ; go test ./...", "ok  \tapp/queue\t0.1s")
    assert open_errors([*messages, *make_turn("Again.", loose)]) != ""


def test_a_tool_that_reports_exit_codes_has_passed_without_one() -> None:
    command = "git commit -m 'Add the limit'"
    failed = run_command(
        command,
        "Exit code 1\n[DIALYZER] error: lib/a.ex:12: pattern can never match",
        is_error=True,
    )
    passed = run_command(
        command,
        "[hooks] Error: retried once\n[main 64f1b9a] Add the limit\n 2 files changed",
    )
    assert open_errors(make_turn("Commit.", failed)) != ""
    assert open_errors(make_turn("Commit.", failed, passed)) == ""


def test_a_cut_command_is_matched_by_its_beginning() -> None:
    command = f"git add a.py && git commit -m 'Add the limit {'and the reason ' * 40}'"
    cut = f"{command[:160]}… [cut: {len(command)} characters in all]"
    other = command.replace("the limit", "the timeout")
    failed = run_command(cut, "Exit code 1\nerror: hook declined: a.py", is_error=True)
    for passed, is_open in ((command, False), (other, True)):
        messages = make_turn("Commit.", failed, run_command(passed, "[main 64f1b9a] Add"))
        assert bool(open_errors(messages)) == is_open
    make = run_command(
        f"make {'target ' * 30}… [cut: 400 characters in all]",
        "Exit code 2\nerror: no rule",
        is_error=True,
    )
    messages = make_turn("Make.", make, run_command(f"make {'target ' * 50}", "built"))
    assert open_errors(messages) == ""


def test_the_reason_of_a_failed_go_test_is_not_its_last_log_line() -> None:
    output = (
        "=== RUN   TestLeak\n    leak_test.go:58: found 14 goroutines, want 2\n"
        "    leak_test.go:59: goroutine 91 [chan receive]: readLoop(0xc000182000)\n--- FAIL: TestLeak (2.03s)\nFAIL"
    )
    text = journal_text(make_turn("Test.", run_command("go test -v ./...", output, is_error=True)))
    assert "TestLeak (2.03s) leak_test.go:58: found 14 goroutines, want 2" in text


def test_the_error_of_an_assertion_library_is_the_reason() -> None:
    output = (
        "    flow_test.go:1412: \n        \tError Trace:\t/r/flow_test.go:1412\n"
        "        \tError:      \tShould be true\n        \tTest:       \tTestFlow\n"
        "    flow_test.go:1421: the flow completed\n--- FAIL: TestFlow (7.11s)\nFAIL"
    )
    text = journal_text(make_turn("Test.", run_command("go test -v ./...", output, is_error=True)))
    assert "Error: Should be true" in text
    assert "the flow completed" not in text


def test_an_item_of_a_list_of_errors_is_not_a_comment() -> None:
    output = (
        "Exit code 1\nError: Error making API request.\n\nURL: GET https://vault.corp:8200/v1/kv\nCode: 403. Errors:\n"
        "\n* permission denied\n"
    )
    assert "* permission denied" in open_errors(
        make_turn("Plan.", run_command("terraform plan", output, is_error=True))
    )
    comment = "Exit code 1\n/**\n * permission denied is thrown\n */\nerror: no such crate"
    assert "thrown" not in open_errors(
        make_turn("Plan.", run_command("make all", comment, is_error=True))
    )


def test_output_before_the_last_heading_is_not_the_reason() -> None:
    output = (
        "Exit code 1\nd6f93d27 push to the origin, not a made-up URL\n=== is the doc there? ===\n"
    )
    messages = make_turn("Look.", run_command("make log; ls doc.md", output, is_error=True))
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
def test_an_outcome_is_not_an_announcement(output: str, outcome: str) -> None:
    assert f"→ {outcome}" in journal_text(make_turn("Do it.", run_command("make apply", output)))


def test_a_browser_result_is_the_page_not_the_code() -> None:
    page = (
        "### Ran Playwright code\n```js\nawait page.getByRole('tab', { name: 'Payments' }).click();\n```\n\n"
        "### Page state\n- Page URL: https://portal.example/invoices/1009#payments\n- Page Title: Invoice\n"
    )
    text = journal_text(
        make_turn(
            "Open it.",
            call_with_result("mcp__playwright__browser_click", {"ref": "e61"}, page),
        )
    )
    assert "→ - Page URL: https://portal.example/invoices/1009#payments" in text


def test_a_subagents_report_is_shown_by_a_finding() -> None:
    report = (
        "I have now enough context for a report.\n\n# Analysis\n\n"
        "The lock is taken twice: `drain` holds `q.mu` in queue.go:38.\n\nMore on request."
    )
    text = journal_text(
        make_turn("Why?", call_with_result("Task", {"description": "Find it"}, report))
    )
    assert "→ The lock is taken twice: `drain` holds `q.mu` in queue.go:38." in text


def test_tasks_created_one_by_one_form_the_todo_list() -> None:
    def create(number: int, subject: str) -> list[Message]:
        fields = {"subject": subject, "description": "As planned."}
        return call_with_result(
            "TaskCreate", fields, f"Task #{number} created successfully: {subject}"
        )

    def update(number: int, status: str) -> list[Message]:
        return call_with_result(
            "TaskUpdate",
            {"taskId": str(number), "status": status},
            f"Updated task #{number} status",
        )

    steps = [create(1, "Write tests"), create(2, "Wire it"), create(3, "Run all")]
    messages = make_turn(
        "Go.",
        *steps,
        update(1, "completed"),
        update(2, "in_progress"),
        update(9, "completed"),
    )
    state = build_state(messages)
    assert state.list_todo_items("completed") == ["#1 Write tests"]
    assert state.list_todo_items("in_progress") == ["#2 Wire it"]
    assert state.list_todo_items("pending") == ["#3 Run all"]
    assert "TaskUpdate" not in journal_text(messages)


def test_code_in_the_middle_of_a_long_note_does_not_become_prose() -> None:
    code = "\n".join(f"    if state.flag_{number} {{ return false }}" for number in range(60))
    reasons = "\n".join(f"Reason {number} is as good as any." for number in range(35))
    note = (
        f"The flag is read too late.\n\n{reasons}\n\n```go\n{code}\n```\n\nSo `state.go:170` loses updates.\n\n"
        "Now on."
    )
    asked, answer = run_command("make all", "ok")
    noted: Any = {**asked, "content": note}
    text = journal_text(make_turn("Why?", [noted, answer]))
    assert "The flag is read too late." in text
    assert "So `state.go:170` loses updates." in text
    assert "return false" not in text


def test_an_opening_alone_is_not_a_note() -> None:
    asked, answer = call_with_result("read_file", {"path": "queue.py"}, "import os")
    noted: Any = {
        **asked,
        "content": "Good point there, subagents matter too. Let me look at how they write:",
    }
    assert "Good point" not in journal_text(make_turn("And now?", [noted, answer]))


def test_a_command_on_several_lines_is_joined() -> None:
    text = journal_text(
        make_turn(
            "Create it.",
            run_command('bd create "a" \\\n  --type epic \\\n  -l x', "av-raf"),
        )
    )
    assert 'ran `bd create "a" --type epic -l x`' in text


def test_a_refused_command_did_not_run() -> None:
    refusal = "The user doesn't want to proceed with this tool use. The tool use was rejected."
    messages = make_turn(
        "Add it.",
        run_command("pnpm add limiter", refusal, is_error=True),
        run_command("make all", "built"),
    )
    journal = build_journal([*messages, *make_turn("And?", run_command("make x", "built " * 90))])
    entry = journal.entries[0]
    assert "ran 1 command\n" in entry.text
    assert entry.commands == ("make all",)
    text = journal.shorten_to(COUNT(journal.render()) - 6, COUNT).render()
    assert "limiter`," not in text


def test_all_answers_of_a_continued_turn_are_shown() -> None:
    notice = user_message("<task-notification>\n<task-id>b3</task-id>\n</task-notification>")
    messages = [
        user_message("Limit the requests."),
        *run_command("make all", "built"),
        assistant_message("The limit is 100 per minute, in `limit.ts`."),
        notice,
        *run_command("make check", "ok"),
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
    text = journal_text(
        make_turn("Test.", run_command("npx playwright test", output, is_error=True))
    )
    assert "→ exit 1, 4 failed, 26 passed\n" in text
    stopped = "Exit code 143\nCommand timed out after 2m 0.0s"
    text = journal_text(
        make_turn("Test.", run_command("npx playwright test", stopped, is_error=True))
    )
    assert "→ timed out, exit 143" in text


def test_a_total_of_tests_is_not_counted_twice() -> None:
    output = "14 tests completed, 1 failed\n\nBUILD FAILED in 58s\nExit Code: 1"
    messages = make_turn(
        "Test.",
        run_command(
            "./gradlew test",
            f"OrderIT > finds() FAILED\n    x.SqlError at A.java:61\n\n{output}",
            is_error=True,
        ),
    )
    assert "(message 1, 14 tests): OrderIT > finds() FAILED x.SqlError at A.java:61" in open_errors(
        messages
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
def test_a_failed_run_is_shown_by_its_reason_not_its_counts(
    command: str, output: str, reason: str
) -> None:
    lines = open_errors(make_turn("Test.", run_command(command, output, is_error=True)))
    assert reason in lines
    for counts in ("(none)", "tests completed", "Failed!", "Tests:"):
        assert counts not in lines


def test_the_name_of_a_test_is_not_an_error() -> None:
    output = (
        "=== RUN   TestBothFlagsError\n--- PASS: TestBothFlagsError (0.0s)\n"
        "--- FAIL: TestX (0.1s)\n    x_test.go:3: got 1, want 2\nFAIL"
    )
    text = journal_text(make_turn("Test.", run_command("go test -v ./...", output, is_error=True)))
    assert "TestBothFlagsError" not in text
    assert "TestX (0.1s) x_test.go:3: got 1, want 2" in text


def test_an_entry_that_says_nothing_is_left_out_and_counted() -> None:
    quiet = [user_message("Wait."), assistant_message(""), user_message("Hm.")]
    history = [*quiet, *make_turn("Test it.", run_command("make", "ok"))]
    journal = build_journal(history)
    text = journal.render()
    assert "[1" not in text
    assert "3 messages that changed nothing left out." in text
    assert "(Journal of 7 messages," in text
    assert parse_journal(text) == journal
    assert parse_journal(text).message_count == 7
    only_quiet = build_journal(quiet).render()
    assert only_quiet.endswith("[1–2] 3 messages")


def test_a_range_names_its_files_and_its_last_outcome() -> None:
    history = flatten(
        [
            user_message(f"Step {number}."),
            *call_with_result("Edit", {"file_path": f"/r/src/part_{number}.py"}, "ok"),
            *run_command(f"make part_{number}", f"{number + 1} passed\nexit code: 0"),
        ]
        for number in range(30)
    )
    entry, *_ = build_journal(history).shorten_to(600, COUNT).entries
    assert entry.last_turn > entry.first_turn
    assert entry.file_change_count == entry.last_turn
    number = entry.last_turn - 1
    assert entry.lines == (
        f"changed {', '.join(f'/r/src/part_{n}.py' for n in range(number - 2, number + 1))}",
        f"ran `make part_{number}` → exit 0, {number + 1} passed",
    )
