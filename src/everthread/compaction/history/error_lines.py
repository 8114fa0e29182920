"""Find the lines of a tool's output that state an error.

Everything here is a guess from text: if nothing is clear, nothing is returned.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import takewhile

_CLEAR_ERROR_PATTERN = re.compile(
    r"^(?:fatal|error|panic|npm err!|npm error|uncaught)\b|(?::|\]) (?:fatal )?error\b|^E {3,}\S|command not found"
    r"|no such file or directory|permission denied|segmentation fault|\b[a-z]\w{0,60}(?:error|exception): |\*\*\* \[",
    re.IGNORECASE | re.MULTILINE,
)
_VAGUE_ERROR_PATTERN = re.compile(
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
_ERROR_START_PATTERN = re.compile(
    r"\W{0,3}(?:<\w{1,40}>\s?)?(?:\w{0,40}error|\w{0,40}exception|failed|failure|traceback|fatal|ran into|invalid|"
    r"[\w.-]{1,40} failed for|cannot|could not|unable to|no such|permission denied)\b",
    re.IGNORECASE,
)
_MAX_LINE_CHARS = 2_000
"""Characters of a line to return, so that a caller that clips it sees a secret whole."""
_MAX_SEARCHED_CHARS = 100_000
"""Characters to search for an error at each end of an output."""
_TRACEBACK = "Traceback (most recent call last)"
_PROGRAM_ERROR_PATTERN = re.compile(
    r"(?:[\w.]{0,80}(?:Error|Exception)|[Ee]rror|ERROR|fatal|FATAL|panic)\b ?[:!\[]"
)
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
    "caused by",
    "undefined reference",
    "not recognized as",
    " code",
    " status",
    "\ne  ",
    "***",
)
_SUSPECT_SIGNS = (*_SUSPECT_WORDS, "●", "✗", "✘", "×", "✖", "❌")
"""Strings, in lower case, found in a line that states an error."""
_STARTS_ERROR_PATTERN = re.compile(
    r"\s*(?:E {2,}\S|\[?(?:error|fatal|panic|critical)\b(?:\[\w+\])?(?: ?[\]:!]| - )|npm (?:ERR!|error)|FAILED\b|"
    r"FAIL[: \t]|--- FAIL|\d{1,6}:\d{1,4} {1,4}error {1,4}\S|"
    r"Caused by: |Error Message:|● .{1,200} › |\S.{0,200} > .{1,200} FAILED$|"
    r"[✗✘×✖❌] |Uncaught |Unhandled |thread '.{1,80}' panicked|Segmentation fault|"
    r"Killed\b|Aborted\b|make(?:\[\d+\])?: \*\*\*)"
)
_STATES_ERROR_PATTERN = re.compile(
    r"(?:Error|Exception|Fault|Panic|Interrupt)\b(?:: |\s*\[|$)"
    r"|[:\])] (?:fatal )?[Ee]rror\b|error(?<!\werror) (?:TS|C|CS|E|LNK|MSB)?\d+\b"
    r"|(?:ERROR|FATAL|CRITICAL)(?<!\wERROR)(?<!\wFATAL)(?<!\wCRITICAL)[\] :|-]"
    r"|command not found|No such file or directory|[Pp]ermission denied|[Cc]onnection refused|is not recognized as"
    r"|[Cc]annot find module|undefined reference to|[Nn]o module named|ENOENT|EACCES|ECONNREFUSED|EADDRINUSE"
    r"|(?:exit(?:ed)?|return(?:ed)?)(?: with)?(?: non-zero)?(?: exit)? (?:code|status)[: ]+[1-9]"
    r"|[1-9](?<!\w.)\d* (?:failed|failures?|errors?)\b"
)
"""Errors inside a line. Every alternative begins with letters or a sign, so that few positions need a full match."""
# Source code that mentions errors, counts of zero errors, npm's output around the error.
_STARTS_CODE_PATTERN = re.compile(
    r"npm (?:ERR!|error) (?:path|location|workspace|command|code|errno|A complete log|    )"
    r"|=== (?:RUN|PAUSE|CONT|NAME) |--- (?:PASS|SKIP): "
    r"|\s*(?:\d+[:|→\t ]\s*)?(?://|/\*|\*|#(?!#)|<!--|\}|@|\.(?!\.?/)|- |\+ |(?:import|from|def|class|return|throw|"
    r"raise|except|catch|if|elif|else|for|while|const|let|var|function|export|try|assert|case|async|await|"
    r"public|private|func|fn|pub)\b)",
    re.IGNORECASE,
)
_CODE_WORDS = ("log", "catch", "new ", "raise ", "no error", "0 error", "0 fail")
_SOURCE_CODE_PATTERN = re.compile(
    r"\b(?:console|logger|log|logging)\.\w+\(|\bcatch\s*\(|\bnew \w*Error\(|"
    r"\braise \w+|\bno errors?\b|\b0 (?:errors?|failed|failures?)\b(?!.*\b[1-9]\d* (?:failed|errors?))",
    re.IGNORECASE,
)
_DIAGNOSTIC_PATTERN = re.compile(r": error [A-Z]{0,4}\d{2,6}: ")
"""A compiler's message: the source code that it quotes does not make it source code."""
_NUMBERS_PATTERN = re.compile(r"[\d\s]+(?:(?<=0)[xX][0-9a-fA-F]+)?")
_GO_REASON_PATTERN = re.compile(r"[ \t]+(?:[\w./-]{1,200}:\d{1,7}: |Error:[ \t]+)(?P<text>\S.*)")
"""A line that a test of Go printed, or the error of an assertion library below it."""
_STATES_MISMATCH_PATTERN = re.compile(
    r"\b(?:want(?:ed)?|got|expect(?:ed)?|should|must)\b", re.IGNORECASE
)
_NPM_ERROR_PATTERN = re.compile(r"^npm (?:ERR!|error) .{1,300}", re.MULTILINE)
_LOCATED_MESSAGE_PATTERN = re.compile(
    r"^[\w./\\-]{1,200}\.\w{1,8}:\d{1,7}(?::\d{1,7})?:? +\S.{0,1000}", re.MULTILINE
)
"""A linter's message about a line of a file, without a word for an error."""
_MAX_DIAGNOSTICS_CHARS = 20_000
_REASONLESS_LINE_PATTERN = re.compile(
    r"\W*(?:(?:command|process|shellid: \w+) )?(?:exit(?:ed)?|return(?:ed)?|failed|completed)(?: with)?"
    r"(?: non-zero)?(?: exit)?(?: code| status)?\W*\d+\W*"
    r"|\W*(?:\w+ {1,3})?(?:\d+ (?:passed|failed|errors?|skipped|warnings?)\b[ ,|]*){1,5}(?:\(\d+\)|in [\d.]+ ?m?s)?\W*"
    r"|make(?:\[\d+\])?: \*\*\* .*|Error: \(none\)|\[[\w:.-]+\] ERROR task failed"
    r"|FAIL\s+\S+ (?:\[build failed\]|[\d.]+s)|"
    r"(?:Failed!\s+- |Tests: +)?(?:\W|\d|\b(?:tests?|completed|failed|passed|skipped|ignored|total|of)\b)+"
    r"(?:Duration: .*|in [\d.]+ ?m?s.*)?",
    re.IGNORECASE,
)
_GIVES_REASON_PATTERN = re.compile(
    r"\b(?:invalid|required|denied|refused|unauthori[sz]ed|forbidden|cannot|can't|could not|couldn't|unable|missing|"
    r"unexpected|rejected|not allowed|timed? ?out|mismatch|conflicts?|unknown|unsupported|exceed\w*|failed|not \w+)\b",
    re.IGNORECASE,
)
_PRINTED_HEADING_PATTERN = re.compile(r"^(?:={2,}|-{2,}) ?\w.*(?:==|--)$", re.MULTILINE)
_END_CHARS = 2_000
"""Characters at the end to search for the last words."""


def find_error_line(text: str, *, failed: bool = False) -> str:
    """Return the line that names the error. If the call may have succeeded, return only a clear error."""
    start = text.rfind(_TRACEBACK)
    if start >= 0:
        lines = text[start : start + 20_000].split("\n")[1:]
        exception_line = next((line for line in lines if line[:1].strip()), "")
        if exception_line:
            return exception_line.strip()
    parts = [text[:_MAX_SEARCHED_CHARS]]
    if len(text) > _MAX_SEARCHED_CHARS:
        parts.append(text[_MAX_SEARCHED_CHARS:][-_MAX_SEARCHED_CHARS:])
    patterns: list[tuple[re.Pattern[str], tuple[str, ...]]] = [(_CLEAR_ERROR_PATTERN, _CLEAR_WORDS)]
    if failed:
        patterns.append((_VAGUE_ERROR_PATTERN, _VAGUE_WORDS))
    for pattern, words in patterns:
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
    return text[start : start + _MAX_LINE_CHARS].split("\n", 1)[0].removeprefix("E  ").strip()


def find_leading_error(text: str) -> str:
    """Return the first line if it says that the call failed. Later lines are ignored: any text may mention errors."""
    first_line = text.lstrip()[:_MAX_LINE_CHARS].split("\n", 1)[0]
    return first_line.strip() if _ERROR_START_PATTERN.match(first_line) else ""


def find_program_error(text: str) -> str:
    """Return the error that a program states in its first or last line, or in a traceback near the end."""
    end = text[-4_000:].rstrip()
    last_line = end.rpartition("\n")[2].strip()
    if _PROGRAM_ERROR_PATTERN.match(last_line) or _TRACEBACK in end[-2_000:]:
        return find_error_line(end) or last_line
    first_line = text.lstrip()[:_MAX_LINE_CHARS].split("\n", 1)[0].strip()
    if (
        _PROGRAM_ERROR_PATTERN.match(first_line)
        or "command not found" in first_line
        or " failed for " in first_line
    ):
        return first_line
    return ""


def find_error_lines(
    text: str, *, failed: bool = False, enough_reasons: int = MAX_ERROR_LINES
) -> list[str]:
    """Return the lines that state an error, in order: the first and last ones, without source code.

    Lines that differ only in numbers count once. If a call `failed` and no line gives the reason in the usual words,
    the last line with words comes first. Stop after `enough_reasons` lines that give a reason.
    """
    lines_by_key: dict[str, str] = {}
    reason_count = 0
    line_starts = _find_line_starts(text, _SUSPECT_WORDS if text.isascii() else _SUSPECT_SIGNS)
    seen_lines: set[str] = set()
    for start in sorted(line_starts):
        full_line, _, following_text = text[start : start + _MAX_LINE_CHARS].partition("\n")
        line = full_line[:MAX_SEARCHED_LINE_CHARS]
        if full_line in seen_lines:
            continue
        seen_lines.add(full_line)
        if not (_STARTS_ERROR_PATTERN.match(line) or _STATES_ERROR_PATTERN.search(line)):
            continue
        if _is_source_code(line) and not _is_announced(text, start, line):
            continue
        key = _NUMBERS_PATTERN.sub("", line)
        if key not in lines_by_key:
            preceding_text = text[max(start - _MAX_LINE_CHARS, 0) : start]
            lines_by_key[key] = _add_reason(full_line.strip(), preceding_text, following_text)
            reason_count += not gives_no_reason(lines_by_key[key])
            if reason_count == enough_reasons and len(lines_by_key) <= MAX_ERROR_LINES // 2:
                return list(lines_by_key.values())
    lines = list(lines_by_key.values())
    if failed and all(map(gives_no_reason, lines)):
        lines = [*(_find_diagnostics(text) or _find_last_reason(text)), *lines]
    half_limit = MAX_ERROR_LINES // 2
    return lines if len(lines) <= MAX_ERROR_LINES else lines[:half_limit] + lines[-half_limit:]


def _add_reason(line: str, preceding_text: str, following_text: str) -> str:
    """Return an error line. If it only announces another line, as in a panic or a failed test, add the reason."""
    if line.startswith("--- FAIL"):
        reason = _find_go_reason(preceding_text, following_text)
    elif line.endswith((":", " FAILED")):
        reason = following_text.lstrip().partition("\n")[0].rstrip()
    else:
        return line
    is_error = _STARTS_ERROR_PATTERN.match(reason) or _STATES_ERROR_PATTERN.search(reason)
    return line if not reason or is_error else f"{line} {reason}"


def _find_go_reason(preceding_text: str, following_text: str) -> str:
    """Return the last reason in the indented lines after a failed Go test's line; with `-v` they come before."""
    following_lines = takewhile(_is_indented, following_text.split("\n"))
    preceding_lines = takewhile(_is_indented, reversed(preceding_text.rstrip("\n").split("\n")))
    lines = [*following_lines] or [*preceding_lines][::-1]
    reasons = [match for line in lines if (match := _GO_REASON_PATTERN.match(line))]
    telling_reasons = [
        match
        for match in reasons
        if _STATES_MISMATCH_PATTERN.search(match["text"])
        or _STATES_ERROR_PATTERN.search(match["text"])
        or _GIVES_REASON_PATTERN.search(match["text"])
    ]
    chosen = (telling_reasons or reasons)[-1:]
    return chosen[0][0].strip() if chosen else ""


def _is_indented(line: str) -> bool:
    return line[:1].isspace()


def find_failure(text: str) -> str:
    """Return the first line that states an error with a reason, or else the first line of an npm error."""
    lines = [line for line in find_error_lines(text, enough_reasons=1) if not gives_no_reason(line)]
    npm_match = _NPM_ERROR_PATTERN.search(text) if not lines else None
    if lines:
        return lines[0]
    if npm_match:
        return npm_match[0]
    return ""


def _is_source_code(line: str) -> bool:
    """Return whether a line that mentions an error is source code, or npm's output around the error."""
    is_code = (
        line.rstrip().endswith((";", "{"))
        or "=>" in line
        or _STARTS_CODE_PATTERN.match(line) is not None
    )
    if not is_code and contains_any(line.lower(), _CODE_WORDS):
        is_code = _SOURCE_CODE_PATTERN.search(line) is not None
    return is_code and _DIAGNOSTIC_PATTERN.search(line) is None


def _is_announced(text: str, start: int, line: str) -> bool:
    """Return whether a line is an item of a list that the line before it announces, not of a comment."""
    if not line.lstrip().startswith("* "):
        return False
    preceding_text = text[max(start - _MAX_LINE_CHARS, 0) : start]
    return preceding_text.rstrip().endswith(":")


def _find_diagnostics(text: str) -> list[str]:
    """Return the messages of a failed program about lines of files, near the end of its output."""
    return [
        match[0].rstrip()
        for match in _LOCATED_MESSAGE_PATTERN.finditer(text[-_MAX_DIAGNOSTICS_CHARS:])
    ][: MAX_ERROR_LINES // 2]


def gives_no_reason(line: str) -> bool:
    """Return whether an error line only states that errors occurred, or their number."""
    return _REASONLESS_LINE_PATTERN.fullmatch(line) is not None


def _find_last_reason(text: str) -> list[str]:
    """Return a list with the last line that gives a reason, or an empty list.

    The only line of an output counts as a reason too, unless make printed it as a command.
    """
    # Only what follows the last heading that the command printed is of the step that failed.
    end = _PRINTED_HEADING_PATTERN.split(text[-_END_CHARS:])[-1]
    rows = [row.strip() for row in end.split("\n")]
    rows = [row for row in rows if any(map(str.isalpha, row)) and not gives_no_reason(row)]
    reasons = [
        row for row in rows if _GIVES_REASON_PATTERN.search(row) and not _is_source_code(row)
    ]
    is_only_line = len(rows) == 1 and "*** [" not in end
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
