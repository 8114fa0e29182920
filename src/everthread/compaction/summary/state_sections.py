"""The sections of a summary that come from the state of the thread. Every line can be read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from everthread.compaction.history.thread_facts import (
    ThreadState,
    error_key,
)
from everthread.compaction.history.tool_calls import Effect
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
from everthread.compaction.summary.user_quotes import Count, newest_lines
from everthread.core.messages import one_line
from everthread.core.secrets.redaction import redact

DIRECTORY = "- working directory: "
BRANCH = "- branch: "
TEST = "- last test run: "
RUNNING = "- running: "
ROOT = "- paths are relative to: "
CHANGED_FILES = "- changed: "
READ_FILES = "- read: "
_MAX_FAILURE_CHARS = 400
"""Maximum characters of a failure's key."""


def state_sections(state: ThreadState, room: int, count: Count) -> Sections:
    """Return the sections that come from the state, within `room` tokens; open errors take at most half."""
    texts = {
        STATE: _state_text(state),
        PROGRESS: _items_text(state.todo_items("in_progress", "active", "doing")),
        BLOCKED: blocked_text(state),
        REMAINING: _items_text(
            state.todo_items("pending", "todo", "open", "not_started")
        ),
    }
    sections: Sections = {}
    remaining = room
    for name, text in texts.items():
        lines: list[str] = []
        section_lines = redact(text).split("\n") if text else []
        for line in (
            newest_lines(section_lines, room // 2, count)
            if name == BLOCKED
            else section_lines
        ):
            cost = count(line) + 2
            if cost <= remaining:
                lines.append(line)
                remaining -= cost
        if lines:
            sections[name] = "\n".join(lines)
    files = files_text(state, remaining - 8, count)
    return {**sections, FILES: files} if files else sections


def _state_text(state: ThreadState) -> str:
    lines = []
    if directory := _clip_to_line(state.directory):
        lines.append(f"{DIRECTORY}{directory}")
    if root := _clip_to_line(state.root):
        lines.append(f"{ROOT}{root}")
    if branch := _clip_to_line(state.branch):
        lines.append(f"{BRANCH}{branch}")
    if test := state.last_test():
        lines.append(
            f"{TEST}{_code(test[0], MAX_COMMAND_CHARS)} → {_clip_to_line(test[1].outcome)}".rstrip()
        )
    lines += [
        f"{RUNNING}{_code(process, MAX_COMMAND_CHARS)}" for process in state.processes
    ]
    return "\n".join(lines)


def _items_text(items: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in map(_clip_to_line, items) if text)


def blocked_text(state: ThreadState) -> str:
    """Return the open errors, word for word, with the failed call."""
    recent = state.open_errors(state.turn)
    lines = []
    for key, error in state.errors.items():
        if any(error is recent_error for recent_error in recent):
            call_text = (
                error.source
                if failure_key(_clip_to_line(error.source, _MAX_FAILURE_CHARS)) == key
                else key
            )
            text = " | ".join(filter(None, map(_clip_to_line, error.lines)))
            times = f", {error.times} times" if error.times > 1 else ""
            lines.append(
                f"- {_code(call_text, _MAX_FAILURE_CHARS)} failed (message {error.turn}{times}): {text}".rstrip()
            )
    return "\n".join(lines)


def failure_key(shown: str) -> str:
    """Return the key of a failure shown like this. A shown key is its own key."""
    return error_key(Effect("ran", "", shown))


def files_text(
    state: ThreadState, room: int, count: Count, *, mentioned: str = ""
) -> str:
    """List changed files, then those only read, the newest first, as room permits, and count the others."""
    lines = []
    for label, is_changed in ((CHANGED_FILES, True), (READ_FILES, False)):
        relative_paths = (
            path.removeprefix(state.root_prefix)
            for path, file_state in reversed(state.files.items())
            if (file_state.did == "changed") == is_changed
        )
        paths = [
            path for path in dict.fromkeys(relative_paths) if path not in mentioned
        ]
        names: list[str] = []
        remaining = room if is_changed else room // 2
        for path in paths:
            cost = count(path) + 2
            if cost > remaining:
                break
            remaining -= cost
            names.append(_format_path(path))
        room -= (room if is_changed else room // 2) - remaining
        suffix = (
            f" and {len(paths) - len(names)} more" if len(paths) > len(names) else ""
        )
        if names:
            lines.append(f"{label}{', '.join(names)}{suffix}")
    return redact("\n".join(lines))


def _clip_to_line(text: str, limit: int = 240) -> str:
    """Clip to one line, with the same result when it is read back and written again."""
    return clip_line(one_line(text), limit)


def _code(text: str, limit: int) -> str:
    """Return the text in more backticks than it has in a row."""
    line = _clip_to_line(text, limit)
    fence = "`"
    while fence in line:
        fence += "`"
    pad = " " if not line or "`" in (line[0], line[-1]) else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _format_path(path: str) -> str:
    """Format a path for a list; in backticks if it could be read as several, or as the end of the list."""
    line = _clip_to_line(path, _MAX_FAILURE_CHARS)
    return (
        _code(line, _MAX_FAILURE_CHARS)
        if not line or "," in line or "`" in line or line.endswith(" more")
        else line
    )


def read_code(text: str) -> tuple[str, str]:
    """Return the text in backticks at the beginning, and the rest."""
    fence = text[: len(text) - len(text.lstrip("`"))]
    inside, _, rest = text[len(fence) :].partition(fence) if fence else ("", "", text)
    return inside.strip(), rest


def read_list(text: str) -> Iterator[str]:
    """Yield the paths of a list."""
    list_text, _, ending = text.rpartition(" and ")
    remainder = list_text if ending.endswith(" more") else text
    while remainder:
        if remainder.startswith("`"):
            path, remainder = read_code(remainder)
            remainder = remainder.removeprefix(", ")
        else:
            path, _, remainder = remainder.partition(", ")
        if path:
            yield path
