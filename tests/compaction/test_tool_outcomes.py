"""Exit codes, test figures and errors are read from output as tools print it, and nothing is made up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everthread.compaction.history.error_lines import (
    find_error_line,
    find_leading_error,
)
from everthread.compaction.history.reported_tests import count_tests
from everthread.compaction.history.tool_outcomes import (
    find_exit_code,
    find_stop_reason,
    unwrap_output,
)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("...\n\nCommand exited with code 2", 2),
        ("[The command completed with exit code 0.]\n[cwd: /w]", 0),
        ("Exit code: 127\nOutput:\nnope", 127),
        ("make failed: exit status 2", 2),
        ("returned non-zero exit status 1.", 1),
        ('{"stdout": "x", "exitCode": -9}', -9),
        ("Process finished with return code 3", 3),
        ("<exit_code>1</exit_code>", 1),
        ("Process exited with 4", 4),
        ("output\n[exit 5]", 5),
        ("output\nexit: 6", 6),
        ("exit code 1\n" + "x" * 2_000 + "\nexit code 0", 0),
        ("first\nexit 1\nis only what a script says", None),
        ("int main() { return 0; }", None),
        ("exit code 1\nis " + "far from both ends " * 100 + "x" * 2_000, 1),
        ("x" * 1_000 + " exit code 1 " + "x" * 2_000, None),
        ("", None),
    ],
)
def test_reads_exit_codes(text: str, code: int | None) -> None:
    assert find_exit_code(text) == code


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("Command timed out after 30s", "timed out"),
        ("partial\nTimeout exceeded", "timed out"),
        ("Tool use was interrupted by the user", "interrupted"),
        ("Operation aborted", "aborted"),
        ("all is well", ""),
    ],
)
def test_unfinished_runs_are_recognised(text: str, what: str) -> None:
    assert find_stop_reason(text) == what


@pytest.mark.parametrize(
    ("text", "figures"),
    [
        (
            "===== 3 failed, 12 passed, 1 skipped in 2.31s =====",
            "3 failed, 12 passed, 1 skipped",
        ),
        ("1 passed in 0.01s", "1 passed"),
        (
            "Test Suites: 1 failed, 2 passed, 3 total\nTests:       2 failed, 5 passed, 7 total",
            "2 failed, 5 passed",
        ),
        (
            " Test Files  1 failed (1)\n      Tests  1 failed | 5 passed (6)\n   Start at  10:00",
            "1 failed, 5 passed",
        ),
        ("  5 passing (20ms)\n  1 failing\n\n  1) suite\n", "1 failed, 5 passed"),
        (
            "# tests 7\n# suites 2\n# pass 5\n# fail 2\n# cancelled 0\n# skipped 0",
            "2 failed, 5 passed",
        ),
        (
            "test result: FAILED. 3 passed; 1 failed; 0 ignored\n\ntest result: ok. 4 passed; 0 failed; 2 ignored",
            "1 failed, 7 passed, 2 skipped",
        ),
        (
            "ok  \texample.org/a\t0.01s\n--- FAIL: TestX (0.00s)\nFAIL\texample.org/b\t0.02s\nFAIL",
            "1 package failed, 1 package passed",
        ),
        (
            (
                "=== RUN   TestX\n=== RUN   TestX/part\n--- FAIL: TestX (0.00s)\n    --- FAIL: TestX/part (0.00s)\n"
                "=== RUN   TestY\n--- PASS: TestY (0.00s)\nFAIL\nFAIL\texample.org/b\t0.02s\nok  \texample.org/a\t0.1s"
            ),
            "1 failed, 1 passed",
        ),
        (
            "--- PASS: TestX (0.00s)\n=== RUN   TestY\n--- PASS: TestY (0.00s)\nok  \texample.org/b\t0.02s",
            "1 package passed",
        ),
        (
            "Ran 12 tests in 0.010s\n\nFAILED (failures=1, errors=2)",
            "1 failed, 2 errors, 12 tests",
        ),
        ("Ran 1 test in 0.010s\n\nOK", "1 test"),
        ("12 examples, 1 failure", "1 failed, 12 tests"),
        (
            "Tests run: 10, Failures: 1, Errors: 0, Skipped: 2",
            "1 failed, 2 skipped, 10 tests",
        ),
        (
            "Failed!  - Failed:     1, Passed:     5, Skipped:     0, Total:     6",
            "1 failed, 5 passed",
        ),
        ("5 errors\n" + "tests\n" * 20 + "1 passed", "1 passed"),
        ("Found 3 errors in 2 files", ""),
        ("login failed 3 times", ""),
        ("", ""),
    ],
)
def test_reads_the_figures_of_test_runners(text: str, figures: str) -> None:
    assert count_tests("collecting\n" + text) == figures


@pytest.mark.parametrize(
    ("text", "failed", "line"),
    [
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: bad\n',
            False,
            "ValueError: bad",
        ),
        ("Traceback (most recent call last)\n  cut off", True, ""),
        (
            "building\nsrc/a.ts(28,2): error TS2739: Type\nmore",
            False,
            "src/a.ts(28,2): error TS2739: Type",
        ),
        ("a.c:3:5: error: expected ';'", False, "a.c:3:5: error: expected ';'"),
        (
            "error[E0308]: mismatched types\n --> src/main.rs",
            False,
            "error[E0308]: mismatched types",
        ),
        ("E       assert 1 == 2\nE        +  where", False, "assert 1 == 2"),
        ("bash: foo: command not found", False, "bash: foo: command not found"),
        ("def handle_error(e):\n    raise e", False, ""),
        ("step 1\nthe build failed here", True, "the build failed here"),
        ("the build failed here", False, ""),
        (
            "x" * 150_000 + "\nfatal: no repository\n" + "y" * 90_000,
            False,
            "fatal: no repository",
        ),
        ("nothing of note", True, ""),
    ],
)
def test_the_line_that_names_the_error(text: str, failed: bool, line: str) -> None:
    assert find_error_line(text, failed=failed) == line


def test_a_very_long_line_is_cut_around_the_error() -> None:
    line = find_error_line("a" * 5_000 + " OSError: gone " + "b" * 5_000)
    assert "OSError: gone" in line
    assert len(line) <= 2_000


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n  Error: file is missing\nmore", "Error: file is missing"),
        (
            "<tool_use_error>FileNotFoundError: x</tool_use_error>",
            "<tool_use_error>FileNotFoundError: x</tool_use_error>",
        ),
        ("Could not open a.py", "Could not open a.py"),
        ("class Error:\n    pass", ""),
        ("", ""),
    ],
)
def test_finds_a_first_line_that_states_a_failure(text: str, line: str) -> None:
    assert find_leading_error(text) == line


@pytest.mark.parametrize(
    ("data", "body", "code", "error"),
    [
        ({"output": "hi", "exit_code": 1, "error": None}, "hi", 1, ""),
        ({"output": "hi", "metadata": {"exit_code": 0}}, "hi", 0, ""),
        ({"stdout": "", "stderr": "bad", "returncode": 2}, None, 2, "bad"),
        ({"exit_code": True, "error": ""}, None, None, ""),
        ([1, 2], None, None, ""),
    ],
)
def test_output_inside_json_is_unwrapped(
    data: Any, body: str | None, code: int | None, error: str
) -> None:
    text = json.dumps(data)
    output = unwrap_output(text)
    assert output.body == (body or text)
    assert output.exit_code == code
    assert output.error == error
    assert output.data == data


@pytest.mark.parametrize(
    "text",
    ["{not json", "plain", "[" * 100_000, '{"a": "' + "x" * 1_000_001 + '"}', ""],
)
def test_text_that_is_not_json_or_too_large_is_unchanged(text: str) -> None:
    assert unwrap_output(text).body == text
    assert unwrap_output(text).data is None


@given(
    st.text(
        alphabet=st.sampled_from('exit code:=[]()-0123456789\n"{}passedfil, #'),
        max_size=300,
    )
)
def test_any_text_is_read(text: str) -> None:
    find_exit_code(text)
    count_tests(text)
    assert "\n" not in find_error_line(text, failed=True)
    assert "\n" not in find_leading_error(text)
    assert find_stop_reason(text) == ""
    unwrap_output(text)


@pytest.mark.parametrize(
    ("text", "failed", "error"),
    [
        ('{"stdout": "ok", "stderr": "npm warn old", "exit_code": 0}', False, ""),
        (
            '{"stdout": "", "stderr": "no such file", "exit_code": 2}',
            False,
            "no such file",
        ),
        ('{"error": null, "id": 5}', False, ""),
        (
            '{"error": {"message": "quota is used up", "code": 9}}',
            True,
            "quota is used up",
        ),
        ('{"error": "no such user"}', True, "no such user"),
        ('{"success": false, "message": "card declined"}', True, "card declined"),
        ('{"isError": true, "content": "x"}', True, ""),
    ],
)
def test_json_fields_tell_whether_a_call_failed(text: str, failed: bool, error: str) -> None:
    output = unwrap_output(text)
    assert output.failed == failed
    assert output.error == error


def test_colours_and_a_single_tag_are_removed() -> None:
    assert (
        count_tests(unwrap_output("\x1b[31m2 failed\x1b[0m, \x1b[32m5 passed\x1b[0m in 3s").body)
        == "2 failed, 5 passed"
    )
    assert (
        unwrap_output("<tool_use_error>No match.\nFor x</tool_use_error>").body
        == "No match.\nFor x"
    )
    assert unwrap_output("<a>x</b>").body == "<a>x</b>"


@pytest.mark.parametrize(
    "text",
    [
        "If the process exited with code 137 it was killed.\nDone.",
        "exit code 1 means failure; we got none",
    ],
)
def test_a_sentence_about_exit_codes_is_ignored(text: str) -> None:
    assert find_exit_code(text) is None
    assert find_exit_code("Process exited with code 1 after 2.5 s") == 1


def test_reports_of_bun_and_timeouts_of_opencode_are_read() -> None:
    assert count_tests(" 3 pass\n 1 fail\nRan 4 tests across 1 file.") == "1 failed, 3 passed"
    assert (
        find_stop_reason("bash tool terminated command after exceeding timeout 120000 ms")
        == "timed out"
    )
