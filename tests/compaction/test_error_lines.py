"""Error lines of tool output."""

from __future__ import annotations

import pytest

from everthread.compaction.history.error_lines import (
    MAX_ERROR_LINES,
    MAX_SEARCHED_LINE_CHARS,
    find_error_lines,
    gives_no_reason,
)


@pytest.mark.parametrize(
    "line",
    [
        "E   AssertionError: assert 1 == 2",
        "FAILED tests/test_a.py::test_x - AssertionError",
        "2 failed, 8 passed in 3.2s",
        "error[E0308]: mismatched types",
        "src/a.ts(5,15): error TS2305: no exported member",
        "ValueError: bad value",
        "java.lang.NullPointerException",
        "bash: foo: command not found",
        "ls: cannot access 'x': No such file or directory",
        "2025-01-01 10:00:00 ERROR db: gone",
        "panic: runtime error: index out of range",
        "fatal: not a git repository",
        "make: *** [all] Error 2",
        "Process exited with code 1",
        "Segmentation fault (core dumped)",
        "docker: Error response from daemon: pull access denied",
        "✗ renders the header",
        "npm ERR! missing script: build",
        "../tui/test/chat.ts(28,2): error TS2739: Type '{ noMatch: any; }' is missing a property",
        "src/a.ts(3,1): error TS2345: Argument of type '(s: string) => string' is not assignable",
    ],
)
def test_a_line_that_states_an_error_is_taken_verbatim(line: str) -> None:
    assert find_error_lines(f"some output\n{line}\nmore output") == [line]


@pytest.mark.parametrize(
    "line",
    [
        '    throw new Error("boom");',
        "  } catch (error) {",
        'console.error("x")',
        "12: const error = new TypeError('x')",
        "except ValueError: # error: ignored",
        "0 errors, 0 failed",
        "no errors found",
        "error handling is described below",
        "npm error path /x",
        "all good",
        "process exited with code 0",
    ],
)
def test_code_and_prose_about_errors_are_ignored(line: str) -> None:
    assert find_error_lines(f"some output\n{line}\nmore output") == []


def test_the_same_error_counts_once_and_many_are_cut_in_the_middle() -> None:
    assert find_error_lines("ValueError: at 0x1f\nValueError: at 0x2e\n") == ["ValueError: at 0x1f"]
    names = [f"Error{chr(97 + n)}Error: x" for n in range(20)]
    assert (
        find_error_lines("\n".join(names))
        == names[: MAX_ERROR_LINES // 2] + names[-MAX_ERROR_LINES // 2 :]
    )


def test_a_long_line_is_cut() -> None:
    assert len(find_error_lines("fatal: " + "x" * 9_000)[0]) <= 2_000
    assert find_error_lines("x" * MAX_SEARCHED_LINE_CHARS + " fatal: too far to the right") == []


def test_finds_errors_after_letters_that_change_length_in_lower_case() -> None:
    assert find_error_lines("İİİ\nfatal: x") == ["fatal: x"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'service/kite unchanged\nThe Service "kite" is invalid: spec.ports[0].port: Required value\n[exit code 1]',
            'The Service "kite" is invalid: spec.ports[0].port: Required value',
        ),
        (
            "pushing\naccess to the resource is not authorized\ndone\nexit code 1",
            "access to the resource is not authorized",
        ),
        ("step two", "step two"),
        (
            "ld: symbols not found for riscv: _open_v2\nmake: *** [link] Error 1",
            "ld: symbols not found for riscv: _open_v2",
        ),
    ],
)
def test_the_last_line_of_a_failed_call_is_its_reason(text: str, line: str) -> None:
    assert find_error_lines(text, failed=True)[0] == line
    assert line not in find_error_lines(text)


def test_a_named_error_is_enough() -> None:
    assert find_error_lines("ValueError: x\nbye", failed=True) == ["ValueError: x"]
    assert find_error_lines("", failed=True) == []


def test_lines_with_only_counts_give_no_reason() -> None:
    assert gives_no_reason("[exit code 1]")
    assert gives_no_reason("Tests  1 failed | 22 passed (23)")
    assert not gives_no_reason("ValueError: x")


def test_a_line_without_a_failure_is_not_an_error() -> None:
    listing = "total 8\ndrwxrwxr-x 2 ann ann 4096 Nov 17 src\ndrwxrwxr-x 2 ann ann 4096 Nov 17 docs"
    advice = (
        "12 mods/funs, found no issues.\n\nUse `mix credo explain` to explain issues, "
        "`mix credo --help` for options."
    )
    assert find_error_lines(listing, failed=True) == []
    assert find_error_lines(advice, failed=True) == []
