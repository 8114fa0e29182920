"""Failures that were not resolved yet, and the later calls that resolve them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everthread.compaction.history.error_lines import find_failure
from everthread.compaction.history.failure_keys import error_key, resolves_failure
from everthread.compaction.history.tool_calls import MAX_CALL_ERRORS, CallEffect
from everthread.core.secrets.redaction import clip_words

OPEN_ERROR_TURNS = 2
"""An error counts as open for this many turns."""
REPEATED_ERROR_TURNS = 12
"""An error that occurred repeatedly counts as open for this many turns."""
_PIPE_OR_SEQUENCE_PATTERN = re.compile(r"\||;")
"""A pipe or a second command: the exit code is that of the last one."""
_EXIT_CODE_PATTERN = re.compile(r"exit (\d{1,3})\b")
_TEST_FIGURE_PATTERN = re.compile(r"(\d{1,7}) (?:packages? )?(failed|error|passed|test)s?\b")
_INLINE_PROGRAM_PATTERN = re.compile(
    r"\b(?:python|node|ruby|perl|php|deno|bun)[\d.]{0,6}\s+(?:-[a-z]{0,3}[ce]\b|-?\s{0,3}<<)"
)
"""A program whose text is part of a command."""
_FAILED_TEST_PATTERN = re.compile(r"(?:--- FAIL: |FAILED |FAIL: )([\w./-]+(?:::\w+)*)")
_WORD_SEPARATOR_PATTERN = re.compile(r"[\s'\"|^$()=]+")


@dataclass(slots=True)
class OpenError:
    """A failure that has not been resolved yet."""

    source: str
    lines: list[str]
    turn: int
    times: int = 1
    """The number of such failures in a row."""
    tests: int = 0
    """The number of tests or packages, for a test run."""
    counts_packages: bool = False
    """Whether `tests` is a number of packages."""
    tool: str = ""
    """The tool of a call that neither runs a command nor changes a file."""
    is_exit_reported: bool = False
    """Whether the tool reported an exit code: it does so for failures, so without one a run succeeded."""
    is_passed_by: bool = False
    """Whether the same tool succeeded with another call since, so that the agent continued without this one."""

    def is_recent(self, turn: int) -> bool:
        """Return whether the error still counts as open at this turn."""
        max_turns = REPEATED_ERROR_TURNS if self.times > 1 else OPEN_ERROR_TURNS
        return self.turn > turn - max_turns and not self.is_passed_by


def read_failure(effect: CallEffect, turn: int) -> OpenError | None:
    """Return a failed call as an error, or None if it neither states one nor ended with an exit code of 2 or more."""
    error_texts = list(effect.errors) or ([effect.tests] if effect.tests else [])
    lines = error_texts or ([effect.outcome] if _is_clear_failure(effect) else [])
    if not lines:
        return None
    source = effect.target if effect.kind == "ran" else f"{effect.tool} {effect.target}".strip()
    return OpenError(
        source=clip_words(source or effect.tool, 200),
        lines=lines,
        turn=turn,
        tests=_count_tests_run(effect),
        counts_packages=_counts_packages(effect),
        tool=effect.tool if effect.kind == "called" else "",
        is_exit_reported="exit " in effect.outcome,
    )


def find_resolved_errors(errors: Mapping[str, OpenError], effect: CallEffect) -> list[str]:
    """Return the keys of the errors that a successful call resolves, unless its output also states an error."""
    key = error_key(effect) if errors and effect.is_done else ""
    resolved_keys = [
        failure_key
        for failure_key, error in errors.items()
        if failure_key == key
        or resolves_failure(effect, key, failure_key)
        or (effect.tests and _is_resolved_by_tests(error, effect))
    ]
    if not resolved_keys or _states_no_error(effect):
        return resolved_keys
    if _PIPE_OR_SEQUENCE_PATTERN.search(effect.target):
        return []
    return [key for key in resolved_keys if errors[key].is_exit_reported]


def _is_resolved_by_tests(error: OpenError, effect: CallEffect) -> bool:
    """Return whether a passing test run resolves a failed one.

    The failed run had at most as many tests or packages, or all tests that failed are named in the passing command.
    """
    is_as_large = 0 < error.tests <= _count_tests_run(effect)
    return (
        is_as_large and error.counts_packages == _counts_packages(effect)
    ) or _names_failed_tests(effect.target, error.lines)


def find_passed_by_errors(errors: Mapping[str, OpenError], effect: CallEffect) -> list[str]:
    """Return the keys of the errors that the agent passed by: it continued with other calls of that tool.

    Pages, buttons, queries and the text of a program are rarely repeated, so the same call may never succeed.
    """
    if not effect.is_done:
        return []
    if effect.kind == "called":
        return [key for key, error in errors.items() if error.tool == effect.tool]
    if effect.kind == "ran" and _INLINE_PROGRAM_PATTERN.search(effect.target):
        return [
            key for key, error in errors.items() if _INLINE_PROGRAM_PATTERN.search(error.source)
        ]
    return []


def _is_clear_failure(effect: CallEffect) -> bool:
    """Return whether a command ended with an exit code of 2 or more: checks also use 1 to say "no"."""
    code = _EXIT_CODE_PATTERN.search(effect.outcome) if effect.kind == "ran" else None
    return code is not None and int(code[1]) >= 2


def _count_tests_run(effect: CallEffect) -> int:
    """Return the number of tests of a test run, or that of packages (`_counts_packages`)."""
    if not effect.tests:
        return 0
    figures = {name: int(number) for number, name in _TEST_FIGURE_PATTERN.findall(effect.tests)}
    total = figures.pop("test", 0)
    return max(total, sum(figures.values()))


def _names_failed_tests(command: str, error_lines: Sequence[str]) -> bool:
    """Return whether a command names each test that failed. More lines than are kept may name further tests."""
    names = [match[1] for line in error_lines if (match := _FAILED_TEST_PATTERN.match(line))]
    words = _WORD_SEPARATOR_PATTERN.split(command)
    return 0 < len(names) < MAX_CALL_ERRORS and all(name in words for name in names)


def _counts_packages(effect: CallEffect) -> bool:
    """Return whether a test run reports packages instead of tests."""
    return " package" in effect.tests


def _states_no_error(effect: CallEffect) -> bool:
    """Return whether the output of a successful call states no error. A pipe hides the exit code."""
    if (
        effect.kind != "ran"
        or effect.tests
        or (effect.outcome.startswith("exit 0") and "|" not in effect.target)
    ):
        return True
    return not find_failure(effect.output)
