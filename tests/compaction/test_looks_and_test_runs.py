"""Which calls only look, and which are test runs: one table each."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everthread.compaction.history.thread_state import build_state
from tests.chat_messages import assistant_message, user_message
from tests.compaction.histories import build_journal, call_with_result, make_turn, run_command

SHELL = "Bash"


@pytest.mark.parametrize(
    ("tool", "arguments", "is_look"),
    [
        ("Read", {"file_path": "a.py"}, True),
        ("mcp__files__read_file", {"path": "a.py"}, True),
        ("WebSearch", {"query": "q"}, True),
        ("WebSearch", {"query": "create react app"}, True),
        ("codebase_search", {"query": "q"}, True),
        ("get_order_by_id", {"id": 1}, True),
        ("visit_webpage", {"url": "u"}, True),
        ("editor", {"command": "view", "path": "a.py"}, True),
        ("find_user_id_by_email", {"email": "e"}, True),
        ("http_get", {"url": "u"}, True),
        ("BashOutput", {"bash_id": "1"}, True),
        ("get_merge_request", {"id": 3}, True),
        ("find_in_files", {"query": "x"}, True),
        ("think", {"thought": "update the order"}, True),
        ("Grep", {"pattern": "update"}, True),
        ("run_sql", {"query": "DELETE FROM users"}, False),
        ("mcp__postgres__query", {"sql": "UPDATE t SET a = 1"}, False),
        ("graphql", {"query": "mutation { pay }"}, False),
        ("http_request", {"url": "u", "method": "POST"}, False),
        ("fetch", {"url": "u", "method": "DELETE"}, False),
        ("create_webhook", {"url": "u"}, False),
        ("delete_by_query", {"query": "q"}, False),
        ("get_or_create_user", {"name": "bob"}, False),
        ("check_out_cart", {"cart": 9}, False),
        ("fetch_and_merge", {"url": "u"}, False),
        ("load_data_into_table", {"table": "t"}, False),
        ("show_notification", {"text": "hi"}, False),
        ("open_ticket", {"id": 1}, False),
        ("browser_click", {"element": "Pay"}, False),
        (SHELL, "git branch -a", True),
        (SHELL, "git remote -v", True),
        (SHELL, "grep -A 10 'def run' src/app.py", True),
        (SHELL, "grep -B 5 -A 5 -i error log.txt", True),
        (SHELL, 'grep -E "a|b" -r src | head -20', True),
        (SHELL, "cd src && rg -n --hidden foo", True),
        (SHELL, "git -C /repo log --oneline -5", True),
        (SHELL, "sudo ls -la /etc", True),
        (SHELL, "sed -n 1,20p a.py", True),
        (SHELL, "kubectl --context prod-eu -n shop get pods", True),
        (SHELL, "kubectl -n shop --context=prod-eu logs checkout-7 --previous", True),
        (SHELL, "helm --kube-context prod-eu -n shop history checkout", True),
        (SHELL, "git -C /r --git-dir /r/.git log --oneline", True),
        (SHELL, "gh -R a/b pr view 3", True),
        (SHELL, "docker --context remote ps -a", True),
        (SHELL, "git branch fix", False),
        (SHELL, "git branch -D old", False),
        (SHELL, "git branch -f main HEAD~1", False),
        (SHELL, "git remote prune origin", False),
        (SHELL, "awk '{print > \"f\"}' a.txt", False),
        (SHELL, "sed -i s/a/b/ a.py", False),
        (SHELL, "find . -name '*.pyc' -delete", False),
        (SHELL, "env CI=1 make", False),
        (SHELL, "sort -o a.txt a.txt", False),
        (SHELL, "kubectl --context prod-eu -n shop delete pod a", False),
        (SHELL, "helm -n get uninstall checkout", False),
        (SHELL, "docker -c ps rm a", False),
    ],
)
def test_a_call_looks_or_may_change_something(
    tool: str, arguments: dict[str, Any] | str, is_look: bool
) -> None:
    values = {"command": arguments} if isinstance(arguments, str) else arguments
    call = call_with_result(tool, values, "something\n")
    journal = build_journal([user_message("Go."), *call, assistant_message("Done.")])
    assert journal.entries[0].look_count == is_look, json.dumps(values)
    if not is_look:
        assert ("ran `" if tool == SHELL else f"called {tool}") in journal.render()


@pytest.mark.parametrize(
    ("command", "output", "is_test_run"),
    [
        ("node --test", "All good.", True),
        ("make check", "All good.", True),
        ("npm run check", "All good.", True),
        ("npx prettier --check src/lib/money.ts", "All good.", False),
        ("npm run type-check", "All good.", False),
        ("cargo +1.74 check --workspace", "All good.", False),
        ("ruff check .", "All good.", False),
        ("go test -c ./cmd/... 2>&1 | head -20", "", False),
        ("cargo test --no-run", "", False),
        ("git add src/commit_test.go && git commit -m 'Add a test'", "1 passed", False),
        ("cp tests/test_a.py tests/test_b.py", "1 passed", False),
        ("rm -rf test-output", "1 passed", False),
        ("gh pr view 1558 --json body --jq .body", "All good: 142 passed", False),
        ("./report.sh", "40 passed this month", False),
    ],
)
def test_only_a_test_command_is_a_test_run(command: str, output: str, is_test_run: bool) -> None:
    pytest_run = run_command("pytest -q", "12 passed in 2s\nExit code: 0")
    last_test = build_state(
        make_turn("Go.", pytest_run, run_command(command, output))
    ).find_last_test()
    assert last_test is not None
    assert (last_test[0] != "pytest -q") is is_test_run


def test_code_that_looks_for_tests_is_not_a_test_run() -> None:
    code = "# Search for test files\nprint(find('test'))"
    search = call_with_result("python", {"code": code}, "")
    last_test = build_state(
        make_turn("Look.", run_command("pytest", "3 passed"), search)
    ).find_last_test()
    assert last_test is not None
    assert last_test[0] == "pytest"
