"""Read the figures of a test run from a command's output."""

from __future__ import annotations

import re

from everthread.compaction.history.error_lines import contains_any

_COUNT_NAMES = {
    "tests": "test",
    "test": "test",
    "ran": "test",
    "tests run": "test",
    "examples": "test",
    "example": "test",
    "passed": "passed",
    "passing": "passed",
    "pass": "passed",  # outcomes of tests  # nosec B105
    "failed": "failed",
    "failing": "failed",
    "fail": "failed",
    "failure": "failed",
    "failures": "failed",
    "error": "error",
    "errors": "error",
    "skipped": "skipped",
    "ignored": "skipped",
    "pending": "skipped",
    "todo": "skipped",
}
_COUNTS_PATTERN = re.compile(
    r"\b(?P<n>\d{1,7}) {1,2}"
    r"(?P<after>pass(?:ed|ing)?|fail(?:ed|ing|ures?)?|errors?|skipped|ignored|pending|examples?|tests?)\b"
    r"|\b(?P<before>tests run|passed|failed|failures?|errors?|skipped)\s{0,3}[:=]\s{0,8}(?P<m>\d{1,7})\b"
    r"|^(?P<ran>ran) (?P<k>\d{1,7}) tests?\b"
    r"|^[#ℹ] (?P<tap>tests|pass|fail|skipped|todo) (?P<j>\d{1,7})$",
    re.IGNORECASE | re.MULTILINE,
)
_CARGO_RESULT_PATTERN = re.compile(
    r"^test result: \w{1,10}\. (\d{1,7}) passed; (\d{1,7}) failed; (\d{1,7}) ignored",
    re.MULTILINE,
)
_GO_RESULT_PATTERN = re.compile(r"^(?:(ok) {1,4}|(FAIL))\t[\w./-]{1,200}", re.MULTILINE)
_GO_TEST_START_PATTERN = re.compile(r"^=== RUN +[^\s/]{1,200}$", re.MULTILINE)
_GO_TEST_RESULT_PATTERN = re.compile(r"^--- (PASS|FAIL|SKIP): ", re.MULTILINE)
"""The result of a Go test. The results of its parts are indented."""
_GO_WORDS = {"failed": "FAIL", "passed": "PASS", "skipped": "SKIP"}
_COUNT_WORDS = ("pass", "fail", "example", "tests run", "ran ", "# tests ", "ℹ ")
"""Strings, in lower case, found in a report on tests."""
_TEST_COUNT_PATTERN = re.compile(
    r"[0-9:=#ℹRr](?:(?<=[0-9]) {1,2}(?i:pass|fail|err|skip|ign|pend|exam|test)"
    r"|(?<=[nderNDERsS\s].)(?<=[:=])\s{0,8}[0-9]"
    r"|(?<=^.)(?i:an)? )"
)
"""A number beside a word or a sign that makes it a count, or the start of a line with one."""
_SUITE_COUNT_PATTERN = re.compile(r"\s*(?:test )?(?:suites|files)\b", re.IGNORECASE)


def count_tests(text: str) -> str:
    """Return the figures of a test run, such as `3 failed, 12 passed`, or an empty string if there are none."""
    if go_results := _count_go_results(text):
        return go_results
    counts = _sum_cargo_results(text) or _read_last_report(text[-4_000:])
    figures = []
    for name in ("failed", "error", "passed", "skipped", "test"):
        number = counts.get(name)
        if number and not (name == "test" and "passed" in counts):
            plural = "s" if name in ("test", "error") and number != 1 else ""
            figures.append(f"{number} {name}{plural}")
    return ", ".join(figures)


def _sum_cargo_results(text: str) -> dict[str, int]:
    """Return the sums of the figures of cargo, which reports each package separately."""
    cargo_results = _CARGO_RESULT_PATTERN.findall(text) if "test result: " in text else []
    if not cargo_results:
        return {}
    passed, failed, ignored = (sum(map(int, column)) for column in zip(*cargo_results, strict=True))
    return {"passed": passed, "failed": failed, "skipped": ignored}


def _count_go_results(text: str) -> str:
    """Return the results of `go test`: of the tests if it lists each of them, else of the packages.

    A filter may leave out some of the tests, so each test that began must have a result.
    """
    go_results = _GO_RESULT_PATTERN.findall(text) if "ok  " in text or "FAIL\t" in text else []
    if not go_results:
        return ""
    results = _GO_TEST_RESULT_PATTERN.findall(text)
    if results and len(results) == len(_GO_TEST_START_PATTERN.findall(text)):
        numbers = {name: results.count(word) for name, word in _GO_WORDS.items()}
        return ", ".join(f"{number} {name}" for name, number in numbers.items() if number)
    numbers = {
        "failed": sum(bool(fail) for _, fail in go_results),
        "passed": sum(bool(ok) for ok, _ in go_results),
    }
    return ", ".join(
        f"{number} package{'' if number == 1 else 's'} {name}"
        for name, number in numbers.items()
        if number
    )


def _read_last_report(text: str) -> dict[str, int]:
    """Return the figures in the last lines with figures, if one of these lines is about tests, not only errors."""
    if not contains_any(text.lower(), _COUNT_WORDS):
        return {}
    line_reports: list[tuple[int, dict[str, int]]] = []
    report_line = None
    lines = text.split("\n")
    # Do not read far before the last report.
    for line_number in range(len(lines) - 1, -1, -1):
        if report_line is not None and line_number < report_line - 6:
            break
        line = lines[line_number][:500]
        line_counts: dict[str, int] = {}
        if _TEST_COUNT_PATTERN.search(line) and not _SUITE_COUNT_PATTERN.match(line):
            line_counts = _read_counts(line)
        if line_counts:
            line_reports.insert(0, (line_number, line_counts))
        if report_line is None and line_counts.keys() - {"error", "skipped"}:
            report_line = line_number
    counts: dict[str, int] = {}
    for line_number, line_counts in line_reports:
        if report_line is not None and line_number <= report_line + 3:
            counts |= line_counts
    return counts


def _read_counts(line: str) -> dict[str, int]:
    """Return the counts that a line of a test report states, by name."""
    counts = {}
    for match in _COUNTS_PATTERN.finditer(line):
        word = match["after"] or match["before"] or match["ran"] or match["tap"]
        counts[_COUNT_NAMES[word.lower()]] = int(
            match["n"] or match["m"] or match["k"] or match["j"]
        )
    return counts
