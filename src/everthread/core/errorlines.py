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


def error_lines(text: str) -> list[str]:
    """The lines that state an error, in order: no source code, each once (numbers aside), the first and last ones."""
    found: dict[str, str] = {}
    for start in sorted(_suspects(text)):
        line = text[start : start + MAX_LINE].split("\n", 1)[0]
        if _STATES.search(line) and not _OTHER.search(line):
            found.setdefault(_NOISE.sub("", line), line.strip())
    lines = list(found.values())
    half = MAX_ERRORS // 2
    return lines if len(lines) <= MAX_ERRORS else lines[:half] + lines[-half:]


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
