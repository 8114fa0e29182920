"""How a call went, from its output: failed or not, in which words, which tests, and what it tells of the state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from everthread.compaction.summarizers.extract_commands import CHECK, LOOK, Command
from everthread.compaction.summarizers.extract_text import trim
from everthread.core.errorlines import MAX_ERRORS as MOST_AT_ONCE
from everthread.core.errorlines import error_lines, says_nothing
from everthread.core.figures import figures, states_exit
from everthread.core.outcomes import Output, counted_tests, exit_code, leading_error, stopped, unwrap
from everthread.core.outputs import line_count, persisted
from everthread.core.toolkinds import Action, one_line, outcome_of

MAX_FAILING = 12
MAX_ERRORS = 30
_SCANNED = 20_000
"""How much of an output's start and end is read."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is known of a call once its result is there."""

    text: str
    """In a few words."""
    failed: bool = False
    errors: tuple[str, ...] = ()
    tests: str = ""
    failing: tuple[str, ...] = ()
    """Names of failing tests."""
    seen: tuple[str, ...] = ()
    """Lines that stand out from all the others of an output, and tell a figure."""
    logged: bool = False
    """The errors are lines of a log that was looked at: they happened, but not to this call."""
    clues: tuple[tuple[str, str], ...] = ()
    """(`branch` | `commit` | `serving` | `directory` | `version`, value)"""


def outcome(action: Action, command: Command | None, text: str, *, failed: bool) -> Outcome:
    """How a call went; `failed`: the result itself says that it did not."""
    stored = persisted(text)
    output = unwrap(stored.preview if stored else text)
    body = _ends(output.body)
    if command is None:
        error = output.error or leading_error(body) or (_first_line(body) if failed else "")
        told = error or outcome_of(action.kind, text, failed=failed, room=110)
        logged = () if error else _logged(output.body)
        errors = (error.strip(),) if error else logged
        return Outcome(trim(told, 140), failed or bool(error), errors, logged=bool(logged))
    return _of_command(command, output, body, failed=failed)


def _of_command(command: Command, output: Output, body: str, *, failed: bool | None) -> Outcome:
    code = exit_code(body) if output.exit_code is None else output.exit_code
    halted = stopped(body)
    tests = "" if command.act == LOOK else counted_tests(body)
    errors = tuple(_errors(output.error, body, failed=bool(code)) if command.act != LOOK or code or halted else ())
    if command.filtered and code == 1:  # grep found nothing: of errors, mostly
        failed = code = None
    bad = bool(failed or code or halted or _FAILED_TESTS.search(tests))
    logged: tuple[str, ...] = ()
    if command.act == LOOK:
        logged = _logged(output.body)
        errors = logged or (errors[:1] if bad else ())
    elif code != 0 or tests:
        bad = bad or bool(errors)
    failing = tuple(_failing(body)) if bad and command.act != LOOK else ()
    seen = () if tests else tuple(line for line in figures(output.body) if line not in errors)
    gist = _gist(command, body, bad=bad, errors=errors, tests=tests) if bad or not seen else trim(" / ".join(seen), 160)
    told = ", ".join(word for word in (halted, f"exit {code}" if code else "", tests, gist) if word) or "no output"
    clues = tuple(_clues(command, body))
    return Outcome(told, bad, errors if bad or logged else (), tests, failing, seen, bool(logged), clues)


_LEVELS = ("ERROR", "FATAL", "CRITICAL", "SEVERE", "PANIC")
_TIME = re.compile(r"\d\d:\d\d")
_LOGGED = 6


def _logged(text: str) -> tuple[str, ...]:
    """The first and last error lines of a log, which may be anywhere in it."""
    starts: set[int] = set()
    for level in _LEVELS:
        place = text.find(level)
        while place >= 0:
            starts.add(text.rfind("\n", 0, place) + 1)
            end = text.find("\n", place)
            place = text.find(level, end) if end >= 0 else -1
    lines = [text[start : start + 300].split("\n", 1)[0].strip() for start in sorted(starts)]
    lines = list(dict.fromkeys(line for line in lines if _TIME.search(line[:40])))
    half = _LOGGED // 2
    return tuple(lines if len(lines) <= _LOGGED else lines[:half] + lines[-half:])


def _errors(stated: str, body: str, *, failed: bool) -> list[str]:
    """Every line that names an error, from start to end: of a text with many, piece by piece."""
    lines = error_lines(body, failed=failed)
    if len(lines) >= MOST_AT_ONCE:
        rows = body.split("\n")
        pieces = ("\n".join(rows[place : place + MOST_AT_ONCE]) for place in range(0, len(rows), MOST_AT_ONCE))
        lines = [line for piece in pieces for line in error_lines(piece)]
    lines = [*error_lines(stated), *lines]
    return list(dict.fromkeys(line for line in lines if not says_nothing(line)))[:MAX_ERRORS]


_FAILED_TESTS = re.compile(r"\d (?:failed|error)")


def _gist(command: Command, body: str, *, bad: bool, errors: tuple[str, ...], tests: str) -> str:
    """The line that tells most: of a failure the error, of a success the last one, of a look how much there was."""
    if bad and errors:
        return trim(errors[0], 110)
    if tests:
        return ""
    lines = [line for line in body.split("\n") if line.strip() and not states_exit(line)]
    if len(lines) == 1:
        return trim(lines[0], 90)
    if command.act == LOOK:
        return f"{line_count(body)} lines" if lines else ""
    if command.act == CHECK and not bad:
        return "ok"
    return trim(lines[-1], 80) if lines else ""


_FAILING = re.compile(
    r"^(?:FAILED (?P<pytest>[^\s(]\S{2,200})|(?P<verbose>\S{1,200}::\S{1,200}) FAILED"
    r"|(?:FAIL|ERROR): (?P<unit>\w+ \([\w.]+\))"
    r"|\s*--- FAIL: (?P<go>\S{1,200})|test (?P<cargo>\S{1,200}) \.\.\. FAILED|not ok \d+ -? ?(?P<tap>[^\n]{1,120})"
    r"|\s*[✕✗✖×❌] (?P<js>[^\n]{3,120})|\s*● (?P<jest>[^\n]{3,120} › [^\n]{1,120})|\d{1,4}\) (?P<php>[\w\\]+::\w+))",
    re.MULTILINE,
)
_TOOK = re.compile(r"\s*\(?\d[\d.]* ?m?s\)?$")


def _failing(body: str) -> list[str]:
    """The names of the tests that failed."""
    found: dict[str, None] = {}
    for match in _FAILING.finditer(body):
        name = next(group for group in match.groups() if group)
        found[_TOOK.sub("", name).strip()] = None
    return list(found)[:MAX_FAILING]


_COMMIT = re.compile(r"^\[([\w./-]{1,80})(?: \(root-commit\))? ([0-9a-f]{7,40})\] ([^\n]{1,100})", re.MULTILINE)
_BRANCH = re.compile(
    r"^(?:On branch |Switched to (?:a new )?branch ')([\w./-]{1,80})|\bgit:\(([\w./-]{1,80})\)", re.MULTILINE
)
_SERVING = re.compile(
    r"\b(?:listening|running|serving|available|started|ready)\b[^\n]{0,60}?"
    r"((?:https?://|localhost:)[^\s,;'\"]{3,80}|port \d{2,5})"
    r"|\b(?:Local|Network|URL):\s{1,8}(https?://[^\s,;'\"]{3,80})",
    re.IGNORECASE,
)


def clues_in(text: str) -> Iterator[tuple[str, str]]:
    """What a text tells of the branch, the last commit and servers that run."""
    if "branch" in text or "git:(" in text:
        yield from (("branch", match[1] or match[2]) for match in _BRANCH.finditer(text))
    if "] " in text:
        for match in _COMMIT.finditer(text):
            yield "branch", match[1]
            yield "commit", f"{match[2]} {match[3].strip()}"
    if "http://" in text or "https://" in text or "localhost:" in text or "port " in text:
        yield from (("serving", match[1] or match[2]) for match in _SERVING.finditer(text))


def _clues(command: Command, body: str) -> Iterator[tuple[str, str]]:
    if command.act == LOOK and "git" not in command.line:
        words = command.jobs[-1].words if command.jobs else ()
        if words == ("pwd",) and body.startswith("/"):
            yield "directory", _first_line(body)
        return
    if command.line.rstrip().endswith(("--version", " version", " -V")):
        yield "version", _first_line(body)[:80]
    yield from clues_in(body)


def _ends(text: str) -> str:
    return text if len(text) <= 2 * _SCANNED else f"{text[:_SCANNED]}\n{text[-_SCANNED:]}"


def _first_line(text: str) -> str:
    return one_line(text.lstrip()[:300].split("\n", 1)[0])
