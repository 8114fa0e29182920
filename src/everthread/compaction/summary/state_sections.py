"""Write the sections of a summary that come from the state of the thread, so that every line can be parsed again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everthread.compaction.history.failure_keys import error_key
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.history.tool_calls import CallEffect
from everthread.compaction.journal.one_line_text import clip_line
from everthread.compaction.journal.steps import MAX_COMMAND_CHARS
from everthread.compaction.summary.sections import (
    BLOCKED,
    FILES,
    PROGRESS,
    REMAINING,
    STATE,
    Sections,
)
from everthread.compaction.summary.sentences import (
    CountTokens,
    keep_newest_lines,
)
from everthread.core.secrets.redaction import redact
from everthread.core.text import count_noun, one_line

DIRECTORY_LABEL = "- working directory: "
BRANCH_LABEL = "- branch: "
TEST_LABEL = "- last test run: "
RUNNING_LABEL = "- running: "
ROOT_LABEL = "- paths are relative to: "
CHANGED_FILES_LABEL = "- changed: "
READ_FILES_LABEL = "- read: "
_MAX_FAILURE_CHARS = 400
"""Maximum characters of a failure's key."""


def render_state_sections(state: ThreadState, max_tokens: int, count: CountTokens) -> Sections:
    """Return the sections that come from the state, within `max_tokens` tokens; open errors take at most half."""
    texts = {
        STATE: _render_state(state),
        PROGRESS: _render_list(state.list_todo_items("in_progress", "active", "doing")),
        BLOCKED: render_open_errors(state),
        REMAINING: _render_list(state.list_todo_items("pending", "todo", "open", "not_started")),
    }
    sections: Sections = {}
    remaining = max_tokens
    for name, text in texts.items():
        lines: list[str] = []
        section_lines = redact(text).split("\n") if text else []
        if name == BLOCKED:
            section_lines = keep_newest_lines(section_lines, max_tokens // 2, count)
        for line in section_lines:
            line_tokens = count(line) + 2
            if line_tokens <= remaining:
                lines.append(line)
                remaining -= line_tokens
        if lines:
            sections[name] = "\n".join(lines)
    files = render_files(state, remaining - 8, count)
    return {**sections, FILES: files} if files else sections


def _render_state(state: ThreadState) -> str:
    """Return the lines for directory, root, branch, last test run and running processes."""
    lines = []
    if directory := _clip_to_line(state.directory):
        lines.append(f"{DIRECTORY_LABEL}{directory}")
    if root := _clip_to_line(state.root):
        lines.append(f"{ROOT_LABEL}{root}")
    if branch := _clip_to_line(state.branch):
        lines.append(f"{BRANCH_LABEL}{branch}")
    if test := state.find_last_test():
        outcome = _clip_to_line(test[1].outcome)
        lines.append(
            f"{TEST_LABEL}{_quote_code(test[0], MAX_COMMAND_CHARS)}"
            + (f" → {outcome}" if outcome else "")
        )
    lines += [
        f"{RUNNING_LABEL}{_quote_code(process, MAX_COMMAND_CHARS)}" for process in state.processes
    ]
    return "\n".join(lines)


def _render_list(items: Iterable[str]) -> str:
    """Return the items as a list, one line each."""
    return "\n".join(f"- {text}" for text in map(_clip_to_line, items) if text)


def render_open_errors(state: ThreadState) -> str:
    """Return the open errors, word for word, each with the failed call."""
    recent_errors = state.list_recent_errors()
    lines = []
    for key, error in state.errors.items():
        if any(error is recent_error for recent_error in recent_errors):
            call_text = key
            if make_shown_failure_key(_clip_to_line(error.source, _MAX_FAILURE_CHARS)) == key:
                call_text = error.source
            text = " | ".join(filter(None, map(_clip_to_line, error.lines)))
            times = f", {error.times} times" if error.times > 1 else ""
            unit = "package" if error.counts_packages else "test"
            tests = f", {count_noun(error.tests, unit)}" if error.tests else ""
            call = _quote_code(call_text, _MAX_FAILURE_CHARS)
            lines.append(f"- {call} failed (message {error.turn}{times}{tests}): {text}".rstrip())
    return "\n".join(lines)


def make_shown_failure_key(shown_call: str) -> str:
    """Return the key of a failure from the call that a summary shows for it."""
    return error_key(CallEffect("ran", "", shown_call))


def render_files(
    state: ThreadState, max_tokens: int, count: CountTokens, *, mentioned_text: str = ""
) -> str:
    """List the changed files, then the files that were only read, the newest first, within `max_tokens` tokens.

    Count the files that do not fit. Leave out files that `mentioned_text` names.
    """
    lines = []
    for label, is_changed in ((CHANGED_FILES_LABEL, True), (READ_FILES_LABEL, False)):
        relative_paths = (
            path.removeprefix(state.root_prefix)
            for path, file_state in reversed(state.files.items())
            if (file_state.did == "changed") == is_changed
        )
        paths = [
            path
            for path in dict.fromkeys(relative_paths)
            if path.strip() and path not in mentioned_text
        ]
        names: list[str] = []
        remaining = max_tokens if is_changed else max_tokens // 2
        for path in paths:
            path_tokens = count(path) + 2
            if path_tokens > remaining:
                break
            remaining -= path_tokens
            names.append(_format_path(path))
        max_tokens -= (max_tokens if is_changed else max_tokens // 2) - remaining
        suffix = f" and {len(paths) - len(names)} more" if len(paths) > len(names) else ""
        if names:
            lines.append(f"{label}{', '.join(names)}{suffix}")
    return redact("\n".join(lines))


def _clip_to_line(text: str, limit: int = 240) -> str:
    """Clip a text to one line. Clipping the result again changes nothing."""
    return clip_line(one_line(text), limit)


def _quote_code(text: str, limit: int) -> str:
    """Return the text between more backticks than it has in a row."""
    line = _clip_to_line(text, limit)
    fence = "`"
    while fence in line:
        fence += "`"
    padding = " " if not line or "`" in (line[0], line[-1]) else ""
    return f"{fence}{padding}{line}{padding}{fence}"


def _format_path(path: str) -> str:
    """Format a path for a list: in backticks if it could be read as several paths, or as the end of the list."""
    line = _clip_to_line(path, _MAX_FAILURE_CHARS)
    if not line or "," in line or "`" in line or line.endswith(" more"):
        return _quote_code(line, _MAX_FAILURE_CHARS)
    return line


def split_quoted_code(text: str) -> tuple[str, str]:
    """Return the text in backticks at the beginning, and the remainder."""
    fence = text[: len(text) - len(text.lstrip("`"))]
    code, _, remainder = text[len(fence) :].partition(fence) if fence else ("", "", text)
    return code.strip(), remainder


def parse_path_list(text: str) -> Iterator[str]:
    """Yield the paths of a list that `render_files` wrote."""
    list_text, _, ending = text.rpartition(" and ")
    remainder = list_text if ending.endswith(" more") else text
    while remainder:
        if remainder.startswith("`"):
            path, remainder = split_quoted_code(remainder)
            remainder = remainder.removeprefix(", ")
        else:
            path, _, remainder = remainder.partition(", ")
        if path:
            yield path
