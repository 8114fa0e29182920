"""Read the outcome of a tool call from its output: exit code, test figures, the line that names the error.

Outcomes are at the start or the end of an output, so only those are searched. An output may be a JSON object around the
real one. Everything here is a guess from text: if nothing is clear, nothing is returned.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Generic, TypeVar

from everthread.core.messages import json_value

_MAX_JSON_CHARS = 1_000_000
"""A longer text is not parsed just to describe it."""
_OUTPUT_FIELDS = ("output", "stdout", "content", "result", "text", "body")
_EXIT_CODE_FIELDS = (
    "exit_code",
    "exitCode",
    "returncode",
    "return_code",
    "exit_status",
)
_ERROR_FIELDS = ("error", "errors", "error_message")
_FAILURE_FLAGS = {"success": False, "ok": False, "isError": True, "is_error": True}
"""Fields of a JSON object that say, with this value, that the call failed."""


T = TypeVar("T")


class UnlockedCachedProperty(Generic[T]):
    """`functools.cached_property` without its lock, which costs as much as one read."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self._name = read.__name__

    def __get__(self, owner: Any, _kind: Any) -> T:
        value: T = self._read(owner)
        owner.__dict__[self._name] = value
        return value


@dataclass
class UnwrappedOutput:
    """A tool's output without the JSON it may be wrapped in; `data` is that JSON."""

    body: str
    exit_code: int | None = None
    error: str = ""
    data: Any = None
    failed: bool = False
    """Whether the JSON says that the call failed."""
    session: str = ""
    """The id of the session in which the process continues."""
    _cached_error: str | None = None

    @UnlockedCachedProperty
    def code(self) -> int | None:
        """The exit code, from the JSON around the output or from the output's text."""
        return find_exit_code(self.body) if self.exit_code is None else self.exit_code

    @UnlockedCachedProperty
    def stop_reason(self) -> str:
        """The reason why the call did not finish (`find_stop_reason`)."""
        return find_stop_reason(self.body)

    @UnlockedCachedProperty
    def tests(self) -> str:
        """The test results reported in the output (`count_tests`)."""
        return count_tests(self.body)

    def find_error(self, *, failed: bool) -> str:
        """Return the error of a call that did not end with exit 0 (`find_error_line`)."""
        if self._cached_error is None:
            has_failed = failed or bool(self.code) or bool(self.stop_reason)
            self._cached_error = (
                ""
                if self.code == 0
                else self.error or find_error_line(self.body, failed=has_failed)
            )
        return self._cached_error


_SESSION = re.compile(r"running with session ID (\w{1,40})")
_COLOUR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_SINGLE_TAG = re.compile(r"<(\w{1,40})>(.*)</\1>", re.DOTALL)
"""A text that is nothing but the content of one tag."""


def unwrap_output(text: str) -> UnwrappedOutput:
    """Return a tool's output without colours and wrappers, and the outcome that the wrappers state."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    data = _parse_json(text)
    if not isinstance(data, dict):
        tagged = (
            _SINGLE_TAG.fullmatch(text)
            if text.endswith(">") and text.startswith("<")
            else None
        )
        text = tagged[2] if tagged else text
        body = strip_header(text)
        if body is text:
            return UnwrappedOutput(text, data=data)
        header = text[: len(text) - len(body)]
        session = _SESSION.search(header)
        return UnwrappedOutput(
            body,
            find_exit_code(header),
            data=data,
            session=session[1] if session else "",
        )
    metadata = data.get("metadata")
    metadata_fields = metadata if isinstance(metadata, dict) else {}
    codes = [
        value
        for source in (data, metadata_fields)
        for key in _EXIT_CODE_FIELDS
        if type(value := source.get(key)) is int
    ]
    errors = [error for key in _ERROR_FIELDS if (error := _error_text(data.get(key)))]
    bodies = [
        value
        for key in _OUTPUT_FIELDS
        if isinstance(value := data.get(key), str) and value
    ]
    code = codes[0] if codes else None
    failed = bool(errors and code is None) or any(
        data.get(key) is value for key, value in _FAILURE_FLAGS.items()
    )
    failed = failed or data.get("status") in ("error", "failed", "failure")
    if code or failed:  # without a failure these fields hold warnings
        errors += [
            error_text
            for key in ("stderr", "message", "reason")
            if (error_text := _error_text(data.get(key)))
        ]
    error = errors[0] if errors and code != 0 else ""
    return UnwrappedOutput(bodies[0] if bodies else text, code, error, data, failed)


def _error_text(value: Any) -> str:
    """Return the text of an error field: a string, or the message of an object."""
    if isinstance(value, dict):
        value = value.get("message") or value.get("error")
    return value if isinstance(value, str) and value.strip() else ""


_HEADER_LINE = re.compile(
    r"[A-Z][\w ()-]{0,40}(?::| exited with| exited| running with)[^\n]{0,200}"
)


def strip_header(text: str) -> str:
    """Return the output without the header that some tools add: `Name: value` lines, then `Output:`."""
    end = text.find("\nOutput:\n", 0, 1_000)
    if end < 0:
        return text
    return (
        text[end + 9 :]
        if all(map(_HEADER_LINE.fullmatch, text[:end].split("\n")))
        else text
    )


_EXIT_CODE = re.compile(
    r"\b(?:exit(?:ed)?|return(?:ed)?|terminated)[\s_-]{0,3}(?:with[\s_-]{1,3})?(?:(?:non-?zero|exit|an?)[\s_-]{1,3}){0,2}"
    r"(?:code|status)\b[\"']?\s{0,3}(?:is|of|was|[:=>(])?\s{0,3}(-?\d{1,10})\b"
    r"|\b(?:process|command)\s{1,3}exited\s{1,3}with\s{1,3}(-?\d{1,10})\b"
    r"|[\[(]exit(?:ed)?[ :=]{1,2}(-?\d{1,10})[\])]"
    r"|^exit[:=] ?(-?\d{1,10})$",
    re.IGNORECASE | re.MULTILINE,
)
_SENTENCE_CONTINUES = re.compile(r"[ \t]+(?!(?:in|after) [\d.])[A-Za-z]")
"""Text after an exit code that makes it part of a sentence, not the statement of a tool."""
_EXIT_WORDS = ("exit", "return", "terminated")
_STOPPED_RUN = re.compile(
    r"\b(?P<timeout>timed[ -]?out|timeout (?:reached|exceeded|expired)|exceed(?:ed|ing) timeout)\b"
    r"|\b(?:command|operation|process|request|tool(?: use| call)?) (?:was )?"
    r"(?P<abort>aborted|interrupted|cancell?ed|killed|rejected)\b",
    re.IGNORECASE,
)


_STOP_WORDS = (
    "timed",
    "timeout",
    "aborted",
    "interrupted",
    "cancel",
    "killed",
    "rejected",
)


def find_exit_code(text: str) -> int | None:
    """Return the exit code that a text states, in any usual spelling; the last one counts."""
    matches = _find_exit_matches(text[-1_000:]) or (
        _find_exit_matches(text[:300])[:1] if len(text) > 1_000 else []
    )
    return (
        int(next(group for group in matches[-1].groups() if group)) if matches else None
    )


def _find_exit_matches(text: str) -> list[re.Match[str]]:
    """Return the matches of exit codes in a text, in order; search only around words that every spelling has."""
    lowered = text.lower()
    matches: dict[int, re.Match[str]] = {}
    for word in _EXIT_WORDS:
        position = lowered.find(word)
        while position >= 0:
            if word == "exit" or contains_any(
                lowered[position : position + 60], ("code", "status")
            ):
                match = _EXIT_CODE.search(text, max(position - 12, 0), position + 100)
                if match and not _SENTENCE_CONTINUES.match(text, match.end()):
                    matches[match.start()] = match
            position = lowered.find(word, position + len(word))
    return [matches[start] for start in sorted(matches)]


def find_stop_reason(text: str) -> str:
    """Return the reason why the call did not finish, from both ends of its output; empty if it finished."""
    both_ends = f"{text[:300]}\n{text[-300:]}"
    lowered = both_ends.lower()
    match = (
        _STOPPED_RUN.search(both_ends) if contains_any(lowered, _STOP_WORDS) else None
    )
    if match is None:
        return ""
    return "timed out" if match["timeout"] else match["abort"].lower()


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
_COUNTS = re.compile(
    r"\b(?P<n>\d{1,7})\s{1,2}(?P<after>pass(?:ed|ing)?|fail(?:ed|ing|ures?)?|errors?|skipped|ignored|pending|examples?|tests?)\b"
    r"|\b(?P<before>tests run|passed|failed|failures?|errors?|skipped)\s{0,3}[:=]\s{0,8}(?P<m>\d{1,7})\b"
    r"|^(?P<ran>ran) (?P<k>\d{1,7}) tests?\b"
    r"|^[#ℹ] (?P<tap>tests|pass|fail|skipped|todo) (?P<j>\d{1,7})$",
    re.IGNORECASE | re.MULTILINE,
)
_CARGO_RESULT = re.compile(
    r"^test result: \w{1,10}\. (\d{1,7}) passed; (\d{1,7}) failed; (\d{1,7}) ignored",
    re.MULTILINE,
)
_GO_RESULT = re.compile(r"^(?:(ok) {1,4}|(FAIL))\t[\w./-]{1,200}", re.MULTILINE)
_COUNT_WORDS = ("pass", "fail", "example", "tests run", "ran ", "# tests ", "ℹ ")
"""Strings, in lower case, found in a report on tests."""
_COUNT_START = re.compile(
    r"[0-9:=#ℹRr](?:(?<=[0-9])\s{1,2}(?i:pass|fail|err|skip|ign|pend|exam|test)|(?<=[nderNDERsS\s].)(?<=[:=])\s{0,8}[0-9]"
    r"|(?<=^.)(?i:an)? )"
)
"""A number beside a word or a sign that makes it a count, or the start of a line with one."""
_SUITE_COUNT = re.compile(r"\s*(?:test )?(?:suites|files)\b", re.IGNORECASE)


def count_tests(text: str) -> str:
    """Return the figures of a test run: `3 failed, 12 passed`; empty without a run."""
    counts = _sum_package_reports(text) or _read_last_report(text[-4_000:])
    figures = []
    for name in ("failed", "error", "passed", "skipped", "test"):
        number = counts.get(name)
        if number and not (name == "test" and "passed" in counts):
            plural = "s" if name in ("test", "error") and number != 1 else ""
            figures.append(f"{number} {name}{plural}")
    return ", ".join(figures)


def _sum_package_reports(text: str) -> dict[str, int]:
    """Return the sums for test runners that report once per package."""
    cargo_results = _CARGO_RESULT.findall(text) if "test result: " in text else []
    if cargo_results:
        passed, failed, ignored = (
            sum(map(int, column)) for column in zip(*cargo_results, strict=True)
        )
        return {"passed": passed, "failed": failed, "skipped": ignored}
    go_results = _GO_RESULT.findall(text) if "ok  " in text or "FAIL\t" in text else []
    return (
        {
            "passed": sum(bool(ok) for ok, _ in go_results),
            "failed": sum(bool(fail) for _, fail in go_results),
        }
        if go_results
        else {}
    )


def _read_last_report(text: str) -> dict[str, int]:
    """Return the figures in the last lines that state any, if one of them is about tests, not just errors."""
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
        line_counts = (
            {}
            if _COUNT_START.search(line) is None or _SUITE_COUNT.match(line)
            else _read_counts(line)
        )
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
    for match in _COUNTS.finditer(line):
        word = match["after"] or match["before"] or match["ran"] or match["tap"]
        counts[_COUNT_NAMES[word.lower()]] = int(
            match["n"] or match["m"] or match["k"] or match["j"]
        )
    return counts


_CLEAR_ERROR = re.compile(
    r"^(?:fatal|error|panic|npm err!|npm error|uncaught)\b|(?::|\]) (?:fatal )?error\b|^E {3,}\S|command not found"
    r"|no such file or directory|permission denied|segmentation fault|\b[a-z]\w{0,60}(?:error|exception): |\*\*\* \[",
    re.IGNORECASE | re.MULTILINE,
)
_VAGUE_ERROR = re.compile(
    r"\b(?:error|failed|failure|cannot|denied|invalid|not found|unexpected|undefined|refused)\b",
    re.IGNORECASE,
)
_CLEAR_WORDS = (
    "error",
    "fatal",
    "panic",
    "npm err",
    "uncaught",
    "exception",
    "command not found",
    "no such file",
    "permission denied",
    "segmentation fault",
    "*** [",
    "e   ",
)
_VAGUE_WORDS = (
    "error",
    "fail",
    "cannot",
    "denied",
    "invalid",
    "not found",
    "unexpected",
    "undefined",
    "refused",
)
_ERROR_START = re.compile(
    r"\W{0,3}(?:<\w{1,40}>\s?)?(?:\w{0,40}error|\w{0,40}exception|failed|failure|traceback|fatal|ran into|invalid|"
    r"[\w.-]{1,40} failed for|cannot|could not|unable to|no such|permission denied)\b",
    re.IGNORECASE,
)
_MAX_LINE_CHARS = 2_000
"""Characters of a line to return, so that a caller that clips it sees a secret whole."""
_MAX_SEARCHED_CHARS = 100_000
"""Characters to search for an error at each end of an output."""
_TRACEBACK = "Traceback (most recent call last)"


def find_error_line(text: str, *, failed: bool = False) -> str:
    """Return the line that names the error; only a clear one if it is not known that the call failed."""
    start = text.rfind(_TRACEBACK)
    if start >= 0:
        lines = text[start : start + 20_000].split("\n")[1:]
        exception_line = next((line for line in lines if line[:1].strip()), "")
        if exception_line:
            return exception_line.strip()
    parts = (
        (text,)
        if len(text) <= _MAX_SEARCHED_CHARS
        else (
            text[:_MAX_SEARCHED_CHARS],
            text[_MAX_SEARCHED_CHARS:][-_MAX_SEARCHED_CHARS:],
        )
    )
    for pattern, words in (
        ((_CLEAR_ERROR, _CLEAR_WORDS), (_VAGUE_ERROR, _VAGUE_WORDS))
        if failed
        else ((_CLEAR_ERROR, _CLEAR_WORDS),)
    ):
        for part in parts:
            for start in sorted(_find_line_starts(part, words)):
                end = part.find("\n", start)
                match = pattern.search(part, start, end if end >= 0 else len(part))
                if match:
                    return _find_line_at(part, match.start())
    return ""


def _find_line_at(text: str, position: int) -> str:
    """Return the line around a position; for a very long line the part near it, from the start of a word."""
    start = text.rfind("\n", 0, position) + 1
    if start < position - 100:
        start = text.find(" ", position - 100, position) + 1 or position
    return (
        text[start : start + _MAX_LINE_CHARS]
        .split("\n", 1)[0]
        .removeprefix("E  ")
        .strip()
    )


def find_leading_error(text: str) -> str:
    """Return the first line if it says that the call failed. Later lines may be any text that mentions errors."""
    first_line = text.lstrip()[:_MAX_LINE_CHARS].split("\n", 1)[0]
    return first_line.strip() if _ERROR_START.match(first_line) else ""


_PROGRAM_ERROR = re.compile(
    r"(?:[\w.]{0,80}(?:Error|Exception)|[Ee]rror|ERROR|fatal|FATAL|panic)\b ?[:!\[]"
)


def find_program_error(text: str) -> str:
    """Return the error that a program states: in its first or last line, or in a traceback near its end."""
    end = text[-4_000:].rstrip()
    last_line = end.rpartition("\n")[2].strip()
    if _PROGRAM_ERROR.match(last_line) or _TRACEBACK in end[-2_000:]:
        return find_error_line(end) or last_line
    first_line = text.lstrip()[:_MAX_LINE_CHARS].split("\n", 1)[0].strip()
    return (
        first_line
        if _PROGRAM_ERROR.match(first_line)
        or "command not found" in first_line
        or " failed for " in first_line
        else ""
    )


def _parse_json(text: str) -> Any:
    """Return the JSON object or list that a text holds, or None."""
    if len(text) > _MAX_JSON_CHARS or text.lstrip()[:1] not in ("{", "["):
        return None
    return json_value(text)


# Lines that name an error

MAX_ERROR_LINES = 8
"""Maximum of different error lines to take from one output."""
MAX_SEARCHED_LINE_CHARS = 300
"""Characters of a line to search for an error."""

_SUSPECT_WORDS = (
    "err",
    "exception",
    "fail",
    "fatal",
    "panic",
    "critical",
    "command not found",
    "no such file",
    "permission denied",
    "refused",
    "killed",
    "cannot find module",
    "no module named",
    "enoent",
    "eacces",
    "eaddrinuse",
    "aborted",
    "fault",
    "undefined reference",
    "not recognized as",
    " code",
    " status",
    "\ne  ",
    "***",
)
_SUSPECT_SIGNS = (*_SUSPECT_WORDS, "✗", "✘", "×", "✖", "❌")
"""Strings, in lower case, found in a line that states an error."""
_STARTS_ERROR = re.compile(
    r"\s*(?:E {2,}\S|\[?(?:error|fatal|panic|critical)\b(?:\[\w+\])?(?: ?[\]:!]| - )|npm (?:ERR!|error)|FAILED\b|"
    r"FAIL[: \t]|--- FAIL|\d{1,6}:\d{1,4} {1,4}error {1,4}\S|"
    r"[✗✘×✖❌] |Uncaught |Unhandled |thread '.{1,80}' panicked|Segmentation fault|"
    r"Killed\b|Aborted\b|make(?:\[\d+\])?: \*\*\*)"
)
_STATES_ERROR = re.compile(
    r"(?:Error|Exception|Fault|Panic|Interrupt)\b(?:: |\s*\[|$)"
    r"|[:\])] (?:fatal )?[Ee]rror\b|error(?<!\werror) (?:TS|C|CS|E|LNK|MSB)?\d+\b"
    r"|(?:ERROR|FATAL|CRITICAL)(?<!\wERROR)(?<!\wFATAL)(?<!\wCRITICAL)[\] :|-]"
    r"|command not found|No such file or directory|[Pp]ermission denied|[Cc]onnection refused|is not recognized as"
    r"|[Cc]annot find module|undefined reference to|[Nn]o module named|ENOENT|EACCES|ECONNREFUSED|EADDRINUSE"
    r"|(?:exit(?:ed)?|return(?:ed)?)(?: with)?(?: non-zero)?(?: exit)? (?:code|status)[: ]+[1-9]"
    r"|[1-9](?<!\w.)\d* (?:failed|failures?|errors?)\b"
)
"""Every alternative begins with letters or a sign, so that few positions of a line need a closer look."""
# Source code that mentions errors, counts of zero errors, npm's output around the error.
_STARTS_CODE = re.compile(
    r"npm (?:ERR!|error) (?:path|location|workspace|command|code|errno|A complete log|    )"
    r"|\s*(?:\d+[:|→\t ]\s*)?(?://|/\*|\*|#(?!#)|<!--|\}|@|\.(?!\.?/)|- |\+ |(?:import|from|def|class|return|throw|"
    r"raise|except|catch|if|elif|else|for|while|const|let|var|function|export|try|assert|case|async|await|"
    r"public|private|func|fn|pub)\b)",
    re.IGNORECASE,
)
_CODE_WORDS = ("log", "catch", "new ", "raise ", "no error", "0 error", "0 fail")
_SOURCE_CODE = re.compile(
    r"\b(?:console|logger|log|logging)\.\w+\(|\bcatch\s*\(|\bnew \w*Error\(|"
    r"\braise \w+|\bno errors?\b|\b0 (?:errors?|failed|failures?)\b(?!.*\b[1-9]\d* (?:failed|errors?))",
    re.IGNORECASE,
)
_DIAGNOSTIC = re.compile(r": error [A-Z]{0,4}\d{2,6}: ")
"""A compiler's message: the source code that it quotes does not make it source code."""
_NUMBERS = re.compile(r"[\d\s]+(?:(?<=0)[xX][0-9a-fA-F]+)?")


def find_error_lines(
    text: str, *, failed: bool = False, enough_reasons: int = MAX_ERROR_LINES
) -> list[str]:
    """Return the lines that state an error, in order: the first and last ones, without source code.

    Lines that differ only in numbers count once. If a call `failed` and no line gives the reason in the usual words,
    the last line with words comes first. Stop after `enough_reasons` lines that give a reason.
    """
    lines_by_key: dict[str, str] = {}
    reason_count = 0
    line_starts = _find_line_starts(
        text, _SUSPECT_WORDS if text.isascii() else _SUSPECT_SIGNS
    )
    seen_lines: set[str] = set()
    for start in sorted(line_starts):
        full_line, _, following_text = text[start : start + _MAX_LINE_CHARS].partition(
            "\n"
        )
        line = full_line[:MAX_SEARCHED_LINE_CHARS]
        if full_line in seen_lines:
            continue
        seen_lines.add(full_line)
        if not (
            _STARTS_ERROR.match(line) or _STATES_ERROR.search(line)
        ) or _is_source_code(line):
            continue
        key = _NUMBERS.sub("", line)
        if key not in lines_by_key:
            preceding_text = text[max(start - _MAX_LINE_CHARS, 0) : start]
            lines_by_key[key] = _add_reason(
                full_line.strip(), preceding_text, following_text
            )
            reason_count += not gives_no_reason(lines_by_key[key])
            if (
                reason_count == enough_reasons
                and len(lines_by_key) <= MAX_ERROR_LINES // 2
            ):
                return list(lines_by_key.values())
    lines = list(lines_by_key.values())
    if failed and all(map(gives_no_reason, lines)):
        lines = [*_find_last_reason(text), *lines]
    half_limit = MAX_ERROR_LINES // 2
    return (
        lines
        if len(lines) <= MAX_ERROR_LINES
        else lines[:half_limit] + lines[-half_limit:]
    )


def _add_reason(line: str, preceding_text: str, following_text: str) -> str:
    """Return an error line; if it only announces others, with the one that gives the reason: a panic, a failed test."""
    if line.startswith("--- FAIL"):
        reason = _find_go_reason(preceding_text, following_text)
    elif line.endswith(":"):
        reason = following_text.lstrip().partition("\n")[0].rstrip()
    else:
        return line
    is_error = _STARTS_ERROR.match(reason) or _STATES_ERROR.search(reason)
    return line if not reason or is_error else f"{line} {reason}"


_GO_REASON = re.compile(r"[ \t]+([\w./-]{1,200}:\d{1,7}: \S.*)")


def _find_go_reason(preceding_text: str, following_text: str) -> str:
    """Return the last reason in the indented lines after the mark of a failed test; with `-v` they come before it."""
    following_lines = takewhile(_is_indented, following_text.split("\n"))
    preceding_lines = takewhile(
        _is_indented, reversed(preceding_text.rstrip("\n").split("\n"))
    )
    lines = [*following_lines] or [*preceding_lines][::-1]
    reasons = [match[1].rstrip() for line in lines if (match := _GO_REASON.match(line))]
    return reasons[-1] if reasons else ""


def _is_indented(line: str) -> bool:
    return line[:1].isspace()


def find_failure(text: str) -> str:
    """Return the first line that states an error with a reason, or any line that begins like an npm error."""
    lines = [
        line
        for line in find_error_lines(text, enough_reasons=1)
        if not gives_no_reason(line)
    ]
    npm_match = _NPM_ERROR.search(text) if not lines else None
    return lines[0] if lines else npm_match[0] if npm_match else ""


_NPM_ERROR = re.compile(r"^npm (?:ERR!|error) .{1,300}", re.MULTILINE)


def _is_source_code(line: str) -> bool:
    """Return whether a line that mentions an error is source code, or npm's output around the error."""
    is_code = (
        line.rstrip().endswith((";", "{"))
        or "=>" in line
        or _STARTS_CODE.match(line) is not None
    )
    if not is_code and contains_any(line.lower(), _CODE_WORDS):
        is_code = _SOURCE_CODE.search(line) is not None
    return is_code and _DIAGNOSTIC.search(line) is None


_REASONLESS_LINE = re.compile(
    r"\W*(?:(?:command|process) )?(?:exit(?:ed)?|return(?:ed)?|failed)(?: with)?(?: non-zero)?(?: exit)?"
    r"(?: code| status)?\W*\d+\W*"
    r"|\W*(?:\w+ {1,3})?(?:\d+ (?:passed|failed|errors?|skipped|warnings?)\b[ ,|]*){1,5}(?:\(\d+\)|in [\d.]+ ?m?s)?\W*"
    r"|make(?:\[\d+\])?: \*\*\* .*",
    re.IGNORECASE,
)
_GIVES_REASON = re.compile(
    r"\b(?:invalid|required|denied|refused|unauthori[sz]ed|forbidden|cannot|can't|could not|couldn't|unable|missing|"
    r"unexpected|rejected|not allowed|timed? ?out|mismatch|conflicts?|unknown|unsupported|exceed\w*|failed|not \w+)\b",
    re.IGNORECASE,
)
_END_CHARS = 2_000
"""Characters at the end to search for the last words."""


def gives_no_reason(line: str) -> bool:
    """Return whether an error line only states that errors occurred, or their number."""
    return _REASONLESS_LINE.fullmatch(line) is not None


def _find_last_reason(text: str) -> list[str]:
    """Return the last line that gives a reason, in a list of at most one.

    If no line does, a single line counts too, unless make printed it as a command.
    """
    rows = [row.strip() for row in text[-_END_CHARS:].split("\n")]
    rows = [
        row for row in rows if any(map(str.isalpha, row)) and not gives_no_reason(row)
    ]
    reasons = [
        row for row in rows if _GIVES_REASON.search(row) and not _is_source_code(row)
    ]
    is_only_line = len(rows) == 1 and "*** [" not in text[-_END_CHARS:]
    return reasons[-1:] or (rows if is_only_line else [])


def contains_any(text: str, words: Iterable[str]) -> bool:
    """Return whether a text holds one of the words."""
    for word in words:  # noqa: SIM110 - called for every output, and far quicker than a generator
        if word in text:
            return True
    return False


def _find_line_starts(text: str, words: Iterable[str]) -> set[int]:
    """Return the offsets of the lines that hold one of the words, in any case.

    Searching word by word is far quicker than a pattern on every line.
    """
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text
    line_starts: set[int] = set()
    for word in words:
        position = lowered.find(word)
        while position >= 0:
            line_starts.add(text.rfind("\n", 0, position + 1) + 1)
            end = text.find("\n", position + len(word))
            position = lowered.find(word, end) if end >= 0 else -1
    return line_starts
