"""Commands that run in the background: which call starts one, and which call reports that it ended."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everthread.compaction.history.error_lines import find_error_lines, gives_no_reason
from everthread.compaction.history.reported_tests import count_tests
from everthread.compaction.history.tool_calls import (
    MAX_CALL_ERRORS,
    MAX_ERROR_LINE_CHARS,
    CallEffect,
)
from everthread.compaction.history.tool_outcomes import find_exit_code
from everthread.core.secrets.redaction import clip_words
from everthread.core.text import one_line

_BACKGROUND_TASK_PATTERN = re.compile(r"running in (?:the )?background with ID: (\w{1,40})")
_MAX_PROCESS_CHARS = 100
"""Maximum characters of a command that runs in the background: a summary also shows the id of its session."""
_SESSION_LABEL = " (session "
_SESSION_ARGUMENTS = ("session_id", "task_id", "bash_id", "shell_id")
_TASK_STATUS_PATTERN = re.compile(r"<status>(?!running)(\w{1,20})</status>")
_ENDING_TOOL_PATTERN = re.compile(r"kill|stop", re.IGNORECASE)


def find_started_process(effect: CallEffect) -> str:
    """Return the process that a command started in the background, with its session if known, or an empty string."""
    background_task = _BACKGROUND_TASK_PATTERN.search(effect.output[:300])
    session_id = background_task[1] if background_task else effect.session_id
    is_background = effect.arguments.get(
        "run_in_background"
    ) is True or effect.target.rstrip().endswith(" &")
    if effect.failed or not (is_background or session_id):
        return ""
    command = clip_words(effect.target, _MAX_PROCESS_CHARS)
    return f"{command}{_SESSION_LABEL}{session_id})" if session_id else command


def find_ended_process(processes: Sequence[str], effect: CallEffect) -> str:
    """Return the process that this call reports as ended, or an empty string."""
    sessions = tuple(
        f"{_SESSION_LABEL}{effect.arguments[name]})"
        for name in _SESSION_ARGUMENTS
        if name in effect.arguments
    )
    process = next((name for name in processes if name.endswith(sessions)), "")
    return process if process and _find_end_status(effect) else ""


def describe_end(process: str, effect: CallEffect) -> CallEffect:
    """Return the end of a process, which this call reports, as the effect of its command."""
    status = _find_end_status(effect)
    code = find_exit_code(effect.output)
    failed = bool(code) or effect.failed or status == "failed"
    errors = effect.errors
    if failed and not errors:
        errors = tuple(
            clip_words(one_line(line), MAX_ERROR_LINE_CHARS)
            for line in find_error_lines(effect.output, failed=True)
            if not gives_no_reason(line)
        )
    tests = count_tests(effect.output)
    outcome = f"exit {code}" if code is not None else status
    return effect._replace(
        kind="ran",
        target=process.rpartition(_SESSION_LABEL)[0],
        outcome=f"{outcome}, {tests}" if tests else outcome,
        failed=failed,
        errors=errors[:MAX_CALL_ERRORS],
        tests=tests,
        session_id="",
    )


def _find_end_status(effect: CallEffect) -> str:
    """Return how a background command ended, or an empty string if this call does not say that it ended."""
    if status := _TASK_STATUS_PATTERN.search(effect.output[:500]):
        return status[1]
    if "exit " in effect.outcome:
        return "completed"
    is_stopped = _ENDING_TOOL_PATTERN.search(effect.tool) and not effect.failed
    return "stopped" if is_stopped else ""
