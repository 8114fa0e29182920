"""A tool call with its output: the line that describes it, its errors, and its effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, NamedTuple

from everthread.compaction.history.call_lines import (
    FRAME_LINE_PATTERN,
    MAX_LINE_CHARS,
    Action,
    describe_output,
    describe_run,
    find_action,
    find_first_statement,
    find_telling_line,
    format_outcome,
)
from everthread.compaction.history.effect_kinds import EffectKind, find_effect_kind, find_paths
from everthread.compaction.history.error_lines import (
    find_error_lines,
    find_failure,
    find_leading_error,
    find_program_error,
    gives_no_reason,
)
from everthread.compaction.history.shell_commands import find_branch, is_output_trimmed
from everthread.compaction.history.tool_kinds import OTHER_KIND, snake_arguments
from everthread.compaction.history.tool_outcomes import (
    UnwrappedOutput,
    drop_echo,
    find_stop_reason,
    unwrap_output,
)
from everthread.core.messages import ToolCall
from everthread.core.secrets.redaction import clip_words
from everthread.core.text import one_line
from everthread.core.tool_outputs import parse_persisted
from everthread.core.user_words import find_typed_words, is_refused_call

REFUSED = "refused by the user"
ANSWERED = "answered by the user"
EDIT_MARK = "<<<<<<< SEARCH"
MAX_ERROR_LINE_CHARS = 240
"""Maximum characters of an error on a separate line."""
MAX_CALL_ERRORS = 3
"""Maximum error lines to take from an output."""
_MIN_CALL_CHARS = 50
"""Minimum characters for the call in a long line; the rest is for the outcome."""
_ID_FIELDS = ("url", "html_url", "number", "id")
_MAX_MESSAGE_LINES = 3
_MAX_MESSAGE_CHARS = 400
_NO_CALL = ToolCall("", "", "")
_STOP_CODES = (-1, 124, 130, 137, 143)
"""Exit codes of programs that something else stopped."""
_EXIT_IN_LINE_PATTERN = re.compile(
    r"exit (-?\d{1,6})(?:, \d{1,7} (?:packages? )?(?:failed|passed|skipped|errors?|tests?)\b){0,5}"
)
_TESTS_IN_LINE_PATTERN = re.compile(
    r"(?:exit -?\d{1,6}, )?(?:timed out, |[a-z]{6,11}, )?(?P<tests>\d{1,7} (?:packages? )?"
    r"(?:failed|passed|skipped|errors?|tests?)"
    r"(?:, \d{1,7} (?:packages? )?(?:failed|passed|skipped|errors?|tests?)){0,4})(?=, |$)"
)
"""The figures of a test run, after the exit code and the stop reason."""
_SIZE_IN_LINE_PATTERN = re.compile(
    r"(?:^|, )(?:\d{1,9} lines?(?: output)?|no output|\d{1,9} chars)$"
)
_EDIT_BLOCK_PATTERN = re.compile(
    rf"^[ \t]*([\w./~-]{{1,200}})\n(?:```[^\n]{{0,40}}\n)?{EDIT_MARK}\n", re.MULTILINE
)


class CallWithOutput:
    """A call with its output, parsed once for the journal and for the line that replaces the output."""

    __slots__ = (
        "_effect",
        "action",
        "arguments",
        "call",
        "failed",
        "output",
        "stored_output",
        "text",
    )

    def __init__(
        self,
        call: ToolCall | None,
        text: str | None,
        *,
        name: str = "",
        failed: bool = False,
    ) -> None:
        self.call = call
        self.text = text
        self.failed = failed
        self.arguments = snake_arguments(call) if call else {}
        self.action = find_action(call, name=name, arguments_by_name=self.arguments)
        self.stored_output = parse_persisted(text) if text else None
        self.output = unwrap_output(
            self.stored_output.preview if self.stored_output else text or ""
        )
        if self.action is not None and self.action.kind == "shell":
            self.output.command = self.action.target
        self._effect: CallEffect | None = None

    def describe(self, *, limit: int = MAX_LINE_CHARS, with_error: bool = True) -> str | None:
        """Return call and outcome in one line, or None if neither the tool nor a stored output is known."""
        if self.action is None and self.stored_output is None:
            return None
        action = self.action or Action("tool")
        if self.failed and is_refused_call(self.text or ""):
            return action.format_line(REFUSED, limit=limit)
        max_outcome_chars = max(limit * 11 // 20, limit - _MIN_CALL_CHARS)
        if with_error:
            outcome = describe_output(action.kind, self.output, failed=self.failed)
        else:
            outcome = describe_run(self.output, "")
        return action.format_line(
            format_outcome(
                action.kind,
                self.output,
                self.stored_output,
                outcome,
                max_chars=max_outcome_chars,
            ),
            limit=limit,
        )

    @property
    def is_output_trimmed(self) -> bool:
        """Whether a command ends with a pipe that only trims the output: the exit code is not the command's own."""
        return self.action is not None and is_output_trimmed(self.action.target)

    @property
    def is_refused(self) -> bool:
        """Whether the user refused the call: nothing was done, and nothing is broken."""
        text = self.text or ""
        return (self.failed and is_refused_call(text)) or (
            self.is_replacement_line and text.endswith(f"-> {REFUSED}")
        )

    @property
    def is_answered_question(self) -> bool:
        """Whether the call asked the user, and its output is the answer, which is quoted elsewhere."""
        name = self.call.name if self.call else ""
        return bool(find_typed_words(self.text or "", name, failed=False))

    @property
    def is_replacement_line(self) -> bool:
        """Whether the output is a line by which an earlier pruning replaced the real output, with errors after it."""
        text = self.text or ""
        if not text.startswith(f"[{self.action.tool if self.action else 'tool'}] "):
            return False
        first_line, *errors = text[
            : MAX_LINE_CHARS + 50 + MAX_CALL_ERRORS * (MAX_ERROR_LINE_CHARS + 1)
        ].split("\n", MAX_CALL_ERRORS + 1)
        is_short = len(first_line) <= MAX_LINE_CHARS + 40 and len(errors) <= MAX_CALL_ERRORS
        return (
            is_short
            and (" -> " in first_line if errors else True)
            and all(len(error) <= MAX_ERROR_LINE_CHARS for error in errors)
        )

    def find_errors(self) -> list[str]:
        """Return the errors of the call, one per line. If the call may have succeeded, return only a clear error."""
        is_program_run = self.action is None or self.action.kind in (
            "shell",
            OTHER_KIND,
        )
        has_failed = (
            self.failed
            or (is_program_run and bool(self.output.code or self.output.stop_reason))
            or (self.is_output_trimmed and self.read_effect().failed)
        )
        lines = self.read_effect().errors if has_failed else ()
        has_passed = self.is_output_trimmed or self.output.has_passed_tests
        if not lines and is_program_run and (has_failed or not has_passed):
            lines = (self.output.find_error(failed=self.failed),)
        return [
            clip_words(one_line(error), MAX_ERROR_LINE_CHARS)
            for error in lines
            if " " in error and not gives_no_reason(error)
        ]

    def read_effect(self) -> CallEffect:
        """Return the effect and outcome of the call."""
        if self._effect is None:
            self._effect = _read_effect(self)
        return self._effect


def describe_call(
    call: ToolCall | None,
    text: str,
    *,
    name: str = "",
    failed: bool = False,
    limit: int = MAX_LINE_CHARS,
) -> str | None:
    """Return a call and its output in one line, or None if neither the tool nor a stored output is known."""
    return CallWithOutput(call, text, name=name, failed=failed).describe(limit=limit)


class CallEffect(NamedTuple):
    """The effect and the outcome of one call, for a record of the work."""

    kind: EffectKind
    tool: str
    target: str
    outcome: str = ""
    """The outcome in a few words, without sizes and names of JSON fields."""
    failed: bool = False
    errors: tuple[str, ...] = ()
    """Lines of the output that state an error, verbatim."""
    paths: tuple[str, ...] = ()
    """Files that the call wrote, edited, moved into place or read."""
    tests: str = ""
    """The figures of a test run."""
    branch: str = ""
    """The git branch after the call."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    output: str = ""
    """The text of the output."""
    is_done: bool = True
    """Whether the call has a result and does not continue in the background."""
    session_id: str = ""
    """The id of the session in which the command continues, even if its output already states an error."""


def _read_effect(call_with_output: CallWithOutput) -> CallEffect:
    """Read the effect of a call from its arguments and its output."""
    call = call_with_output.call or _NO_CALL
    text = call_with_output.text or ""
    arguments = call_with_output.arguments
    action = call_with_output.action or Action("tool")
    kind = find_effect_kind(call, action, arguments)
    if call_with_output.is_refused:
        return CallEffect(
            kind,
            action.tool,
            action.target,
            REFUSED,
            arguments=arguments,
            is_done=False,
        )
    if call_with_output.is_answered_question:
        return CallEffect(kind, action.tool, action.target, outcome=ANSWERED, arguments=arguments)
    outcome = _read_outcome(kind, call_with_output)
    return CallEffect(
        kind,
        action.tool,
        target=action.target,
        outcome=outcome.text,
        failed=outcome.failed,
        errors=outcome.errors,
        paths=find_paths(kind, action, call, arguments),
        tests=outcome.tests,
        branch=find_branch(action.target, text) if action.kind == "shell" else "",
        arguments=arguments,
        output=call_with_output.output.body,
        is_done=call_with_output.text is not None
        and not outcome.session_id
        and arguments.get("run_in_background") is not True,
        session_id=outcome.session_id,
    )


class CallOutcome(NamedTuple):
    """The outcome of a call, as its output states it."""

    text: str
    """The outcome in a few words."""
    failed: bool = False
    errors: tuple[str, ...] = ()
    """Lines that state an error, verbatim."""
    tests: str = ""
    """The figures of a test run."""
    session_id: str = ""
    """The id of the session in which the command continues."""


def _read_outcome(kind: EffectKind, call_with_output: CallWithOutput) -> CallOutcome:
    """Read the outcome of a call from its output, or from the line that replaced the output."""
    if call_with_output.text and call_with_output.is_replacement_line:
        line, *errors = call_with_output.text.split("\n")
        outcome = line.rpartition(" -> ")[2].partition(", stored as ")[0]
        outcome_text = _SIZE_IN_LINE_PATTERN.sub("", outcome)
        if kind == "ran":
            return _read_run_line(call_with_output, outcome_text, tuple(errors))
        return _read_result_line(kind, call_with_output, outcome_text, tuple(errors))
    if kind == "ran":
        return _read_run(call_with_output)
    return _read_result(kind, call_with_output)


def _read_run(call_with_output: CallWithOutput) -> CallOutcome:
    """Read the outcome of a command from its output."""
    output = call_with_output.output
    code = output.code
    tests = output.tests
    stop_reason = _choose_stop_reason(output, code)
    error = output.error
    if not error and code is None and not stop_reason:
        error = _find_error_without_code(output.body, tests)
    if call_with_output.failed or output.failed or code or stop_reason or error:
        reason = "" if error == tests else error
        return _make_failure(
            call_with_output, code=code, stop_reason=stop_reason, reason=reason, tests=tests
        )
    if call_with_output.is_output_trimmed and not tests and (error := find_failure(output.body)):
        return CallOutcome(
            _join_notes(_format_session(output), "failed"),
            failed=True,
            errors=_read_error_lines(output.body, error, failed=False),
            session_id=output.session_id,
        )
    message = tests
    if not tests and not call_with_output.is_output_trimmed:
        message = _find_result_message("ran", output)
    return CallOutcome(
        _join_notes(_format_session(output), _format_exit(code), message),
        tests=tests,
        session_id=output.session_id,
    )


def _read_result(kind: EffectKind, call_with_output: CallWithOutput) -> CallOutcome:
    """Read the outcome of a call that runs no command from its result."""
    output = call_with_output.output
    code = output.exit_code
    stop_reason = _choose_stop_reason(output, code) if kind == "called" else ""
    error = output.error
    if not error and not isinstance(output.data, dict):
        error = find_leading_error(output.body)
    if call_with_output.failed or output.failed or code or stop_reason or error:
        return _make_failure(call_with_output, code=code, stop_reason=stop_reason, reason=error)
    message = _find_result_message(kind, output) if kind == "called" else ""
    return CallOutcome(
        _join_notes(_format_session(output), _format_exit(code), message),
        session_id=output.session_id,
    )


def _choose_stop_reason(output: UnwrappedOutput, code: int | None) -> str:
    """Return the reason why the call did not finish, or an empty string if it finished or continues.

    If a program ended with an exit code of its own, then only a part of its work timed out or was killed.
    """
    has_ended_by_itself = code is not None and code not in _STOP_CODES
    return "" if has_ended_by_itself or output.session_id else output.stop_reason


def _make_failure(
    call_with_output: CallWithOutput,
    *,
    code: int | None,
    stop_reason: str,
    reason: str,
    tests: str = "",
) -> CallOutcome:
    """Return the outcome of a failed call; `reason` is its error if no line of the output states one."""
    output = call_with_output.output
    errors: tuple[str, ...] = ()
    if call_with_output.text:
        errors = _read_error_lines(output.error or output.body, reason, failed=True)
    return CallOutcome(
        _join_notes(stop_reason, _format_session(output), _format_exit(code) or "failed", tests),
        failed=True,
        errors=errors,
        tests=tests,
        session_id=output.session_id,
    )


def _format_session(output: UnwrappedOutput) -> str:
    return f"still running (session {output.session_id})" if output.session_id else ""


def _format_exit(code: int | None) -> str:
    return "" if code is None else f"exit {code}"


def _join_notes(*notes: str) -> str:
    """Join notes about an outcome, each once."""
    return ", ".join(dict.fromkeys(filter(None, notes)))


def _read_error_lines(text: str, fallback: str, *, failed: bool) -> tuple[str, ...]:
    """Return the first lines of a text that state an error; `fallback` if it has none."""
    error_texts = find_error_lines(text, failed=failed, enough_reasons=MAX_CALL_ERRORS)
    lines = [
        clip_words(line, MAX_ERROR_LINE_CHARS)
        for line in map(one_line, error_texts)
        if not gives_no_reason(line)
    ]
    if lines or not fallback:
        return tuple(lines[:MAX_CALL_ERRORS])
    return (clip_words(one_line(fallback), MAX_ERROR_LINE_CHARS),)


def _find_error_without_code(output: str, tests: str) -> str:
    """Return the error of a run without an exit code: from its tests, or else from the program."""
    if tests:
        return tests if "failed" in tests or "error" in tests else ""
    return find_program_error(output)


def _read_run_line(
    call_with_output: CallWithOutput, outcome: str, errors: tuple[str, ...]
) -> CallOutcome:
    """Read the outcome of a command from the line that replaced its output, and from the errors after that line."""
    tests_match = _TESTS_IN_LINE_PATTERN.match(outcome)
    tests = drop_echo(tests_match["tests"], call_with_output.output.command) if tests_match else ""
    stop_reason = find_stop_reason(outcome)
    failure = ""
    if call_with_output.is_output_trimmed and not tests:
        failure = errors[0] if errors else find_failure(outcome)
    if failure:
        return CallOutcome(
            _join_notes(stop_reason, "failed"),
            failed=True,
            errors=errors or _list_reason(outcome),
        )
    exit_note, exit_code = _parse_exit(outcome)
    test_note = "" if tests in exit_note else tests
    error = "" if exit_note else _find_error_without_code("\n".join(errors), tests)
    if call_with_output.failed or exit_code != "0" or stop_reason or error:
        return CallOutcome(
            _join_notes(stop_reason, exit_note or "failed", test_note),
            failed=True,
            errors=errors or _list_reason(outcome, exit_note),
            tests=tests,
        )
    return CallOutcome(_join_notes(exit_note, test_note) or outcome, tests=tests)


def _read_result_line(
    kind: EffectKind, call_with_output: CallWithOutput, outcome: str, errors: tuple[str, ...]
) -> CallOutcome:
    """Read the outcome of a call that runs no command from the line that replaced its result."""
    stop_reason = find_stop_reason(outcome) if kind == "called" else ""
    exit_note, exit_code = _parse_exit(outcome)
    is_failure = exit_code != "0" or bool(stop_reason or find_leading_error(outcome))
    if call_with_output.failed or is_failure:
        return CallOutcome(
            _join_notes(stop_reason, exit_note or "failed"),
            failed=True,
            errors=errors or _list_reason(outcome, exit_note),
        )
    return CallOutcome(exit_note or (outcome if kind == "called" else ""))


def _parse_exit(outcome: str) -> tuple[str, str]:
    """Return the note about the exit at the start of an outcome, and its exit code; an empty note has the code 0."""
    match = _EXIT_IN_LINE_PATTERN.match(outcome)
    return (match[0], match[1]) if match else ("", "0")


def _list_reason(outcome: str, exit_note: str = "") -> tuple[str, ...]:
    """Return the reason of a failure: what follows the note about the exit, or else the whole outcome."""
    parts = outcome.removeprefix(exit_note).split(", ") if exit_note else [outcome]
    reason = ", ".join(dropwhile(lambda part: not part or gives_no_reason(part), parts))
    return (reason,) if reason else ()


def parse_edit_blocks(text: str) -> list[CallEffect]:
    """Return the edits that an answer states in search-and-replace blocks, each below the name of its file."""
    return [
        CallEffect("changed", "edit", path, paths=(path,))
        for path in dict.fromkeys(_EDIT_BLOCK_PATTERN.findall(text))
    ]


def _find_result_message(kind: EffectKind, output: UnwrappedOutput) -> str:
    """Return the text of a short result. For JSON, return its message or status, and the id of the created object."""
    if isinstance(output.data, dict):
        values = (output.data.get(key) for key in ("message", "status", "state"))
        message = one_line(next((value for value in values if isinstance(value, str)), ""))
        ids = ((key, output.data.get(key)) for key in _ID_FIELDS)
        object_id = next(
            (f"{key} {value}" for key, value in ids if isinstance(value, str | int) and value),
            "",
        )
        return ", ".join(clip_words(text, 100) for text in (message, object_id) if text)
    if output.data is not None:
        return ""
    if kind == "ran":  # the end of a long output is rarely its outcome
        if len(output.body) >= _MAX_MESSAGE_CHARS:
            return ""
        lines = [
            line
            for line in output.body.split("\n")
            if line.strip() and not line.startswith((">", "warning"))
        ]
        lines = [line for line in lines if not FRAME_LINE_PATTERN.match(f"\n{line.lower()}")]
        if lines and len(lines) <= _MAX_MESSAGE_LINES:
            return clip_words(one_line(find_first_statement("\n".join(lines), "")), 80)
        return ""
    return clip_words(one_line(find_telling_line(output.body[:2_000])), 120)
