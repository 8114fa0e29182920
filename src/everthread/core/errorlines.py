"""Lines of a tool's output that name an error, as they stand."""

from __future__ import annotations

import re

MAX_ERRORS = 8
"""So many different error lines are taken from one output."""
MAX_LINE = 300

_WORDS = (
    "error", "exception", "fail", "fatal", "panic", "critical", "not found", "no such", "denied", "refused", "killed",
    "cannot find", "no module", "enoent", "eacces", "econnrefused", "eaddrinuse", "aborted", "fault", "interrupt",
    "undefined reference", "not recognized", "exit", "return", "\ne  ", "***", "err!", "✗", "✘", "×", "✖", "❌",
)  # fmt: skip
_STATES = re.compile(
    r"^\s*(?:E {2,}\S|\[?(?:error|fatal|panic|critical)\b(?:\[\w+\])?(?: ?[\]:!]| - )|npm (?:ERR!|error)|FAILED\b|"
    r"FAIL[: \t]|--- FAIL|[✗✘×✖❌] |Uncaught |Unhandled |thread '.{1,80}' panicked|Segmentation fault|"
    r"Killed\b|Aborted\b|make(?:\[\d+\])?: \*\*\*)"
    r"|\b[A-Za-z_.]{0,80}(?:Error|Exception|Fault|Panic|Interrupt)\b(?:: |\s*\[|$)"
    r"|[:\])] (?:fatal )?[Ee]rror\b|\berror (?:TS|C|CS|E|LNK|MSB)?\d+\b|\b(?:ERROR|FATAL|CRITICAL)\b[\] :|-]"
    r"|command not found|No such file or directory|[Pp]ermission denied|[Cc]onnection refused|is not recognized as"
    r"|[Cc]annot find module|undefined reference to|[Nn]o module named|ENOENT|EACCES|ECONNREFUSED|EADDRINUSE"
    r"|(?:exit(?:ed)?|return(?:ed)?)(?: with)?(?: non-zero)?(?: exit)? (?:code|status)[: ]+[1-9]"
    r"|\b[1-9]\d* (?:failed|failures?|errors?)\b"
)
# Source code that speaks of errors, counts of none, what npm prints around the error.
_OTHER = re.compile(
    r"[;{]\s*$|=>|^npm (?:ERR!|error) (?:path|location|workspace|command|code|errno|A complete log|    )"
    r"|^\s*(?:\d+[:|→\t ]\s*)?(?://|/\*|\*|#(?!#)|<!--|\}|@|\.|- |\+ |(?:import|from|def|class|return|throw|"
    r"raise|except|catch|if|elif|else|for|while|const|let|var|function|export|try|assert|case|async|await|"
    r"public|private|func|fn|pub)\b)|\b(?:console|logger|log|logging)\.\w+\(|\bcatch\s*\(|\bnew \w*Error\(|"
    r"\braise \w+|\bno errors?\b|\b0 (?:errors?|failed|failures?)\b(?!.*\b[1-9]\d* (?:failed|errors?))",
    re.IGNORECASE,
)
_NOISE = re.compile(r"0x[0-9a-f]+|\d+|\s+", re.IGNORECASE)


def error_lines(text: str, *, failed: bool = False) -> list[str]:
    """The lines that state an error, in order: no source code, each once (numbers aside), the first and last ones.

    Of a call that `failed`, and of which no line tells why in the usual words, the last that says something.
    """
    found: dict[str, str] = {}
    for start in sorted(_suspects(text)):
        line = text[start : start + MAX_LINE].split("\n", 1)[0]
        if _STATES.search(line) and not _OTHER.search(line):
            found.setdefault(_NOISE.sub("", line), line.strip())
    lines = list(found.values())
    if failed and all(map(says_nothing, lines)):
        lines = [*_last_words(text), *lines]
    half = MAX_ERRORS // 2
    return lines if len(lines) <= MAX_ERRORS else lines[:half] + lines[-half:]


_SAYS_NOTHING = re.compile(
    r"\W*(?:(?:command|process) )?(?:exit(?:ed)?|return(?:ed)?|failed)(?: with)?(?: non-zero)?(?: exit)?"
    r"(?: code| status)\W*\d+\W*"
    r"|\W*(?:\w+ {1,3})?(?:\d+ (?:passed|failed|errors?|skipped|warnings?)\b[ ,|]*){1,5}(?:\(\d+\)|in [\d.]+ ?m?s)?\W*"
    r"|make(?:\[\d+\])?: \*\*\* .*",
    re.IGNORECASE,
)
_TELLS = re.compile(
    r"\b(?:invalid|required|denied|refused|unauthori[sz]ed|forbidden|cannot|can't|could not|couldn't|unable|missing|"
    r"unexpected|rejected|not allowed|timed? ?out|mismatch|conflicts?|unknown|unsupported|exceed\w*|failed|not \w+)\b",
    re.IGNORECASE,
)
_ENDING = 2_000
"""So many characters of the end are looked at for the last words."""


def says_nothing(line: str) -> bool:
    """Whether an error line only states that there was one, or how many."""
    return _SAYS_NOTHING.fullmatch(line) is not None


def _last_words(text: str) -> list[str]:
    """The last line that tells of a failure, or the last at all."""
    rows = [row.strip() for row in text[-_ENDING:].split("\n")]
    rows = [row[:MAX_LINE] for row in rows if any(map(str.isalpha, row)) and not says_nothing(row)]
    telling = [row for row in rows if _TELLS.search(row) and not _OTHER.search(row)]
    return (telling or rows)[-1:]


def _suspects(text: str) -> set[int]:
    """Where the lines start that hold a word an error may hold."""
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text
    starts: set[int] = set()
    for word in _WORDS:
        place = lowered.find(word)
        while place >= 0:
            starts.add(text.rfind("\n", 0, place + 1) + 1)
            end = text.find("\n", place + len(word))
            place = lowered.find(word, end) if end >= 0 else -1
    return starts
