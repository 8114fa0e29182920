"""Describe the steps of a turn: the assistant's note, the files it changed, its calls and their errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from everthread.compaction.history.failure_keys import error_key, strip_command_prefix
from everthread.compaction.history.todo_list import read_task_change, read_todo
from everthread.compaction.history.tool_calls import CallEffect
from everthread.compaction.journal.conclusions import drop_announcement
from everthread.compaction.journal.entries import REPEAT_COUNT_PATTERN
from everthread.compaction.journal.one_line_text import (
    ERROR_START,
    clip_line,
    redact_text,
    shorten_note,
)

FIXED_NOTE = "(fixed later)"
REPLACED_NOTE = "(failed differently later)"
ERROR_NOTES = (FIXED_NOTE, REPLACED_NOTE)
"""Notes at the end of an error that is no longer open."""
MAX_COMMAND_CHARS = 120
_MAX_CALL_CHARS = 120
_CHANGED_LABEL = "changed "


class CallDescription(NamedTuple):
    """A call in words, redacted."""

    text: str
    errors: tuple[str, ...] = ()
    """The error lines of the call."""
    failure_key: str = ""
    """The key of a failure in the thread's state."""
    shown_errors: tuple[str, ...] = ()
    """The error lines to show: those that no earlier step shows."""


FindNote = Callable[[str, Sequence[str]], str]
"""Returns the note for a failure, given its key and its error lines."""


class Step(NamedTuple):
    """The assistant's note and the calls of the same message, redacted."""

    note: str = ""
    changed_paths: tuple[str, ...] = ()
    calls: tuple[CallDescription, ...] = ()

    def render_lines(self, find_note: FindNote) -> Iterator[str]:
        """Yield the line of the step, unless the step only read, then its error lines."""
        parts = [f"changed {', '.join(self.changed_paths)}"] if self.changed_paths else []
        error_lines: list[str] = []
        for call in self.calls:
            note = find_note(call.failure_key, call.errors) if call.failure_key else ""
            suffix = f" {note}" if note else ""
            if call.shown_errors:
                parts.append(call.text)
                error_lines.append(f"{ERROR_START}{' | '.join(call.shown_errors)}{suffix}")
            else:
                parts.append(f"{call.text}{suffix}")
        actions = "; ".join(parts)
        if line := f"{self.note} — {actions}" if self.note and actions else actions or self.note:
            yield line
        yield from error_lines


def describe_step(note: str, effects: Sequence[CallEffect]) -> Step:
    """Describe the effects of a message's calls, except to-do lists, which are part of the state.

    Calls that only read are not described, so their announcement is left out too.
    """
    paths = merge_repeated_paths(
        path
        for effect in effects
        if effect.kind == "changed"
        for path in _list_changed_paths(effect)
    )
    calls = []
    for effect in effects:
        if effect.kind == "ran":
            calls.append(
                _describe_call(
                    f"ran `{clip_line(strip_command_prefix(effect.target), MAX_COMMAND_CHARS)}`",
                    effect,
                )
            )
        elif effect.kind == "called" and not _changes_todo(effect):
            target = clip_line(effect.target, _MAX_CALL_CHARS)
            calls.append(
                _describe_call(f"called {effect.tool}{f' ({target})' if target else ''}", effect)
            )
        elif effect.failed and effect.kind == "changed":
            target = clip_line(effect.target, _MAX_CALL_CHARS)
            calls.append(_describe_call(f"called {effect.tool} ({target})", effect))
    note_line = shorten_note(note)
    if not paths and not calls:
        note_line = drop_announcement(note_line)
    return Step(redact_text(note_line), tuple(map(redact_text, paths)), tuple(calls))


def _changes_todo(effect: CallEffect) -> bool:
    """Return whether a call only changed the to-do list, which is part of the state."""
    return not effect.failed and bool(read_todo(effect) or read_task_change(effect))


def _list_changed_paths(effect: CallEffect) -> tuple[str, ...]:
    """Return the paths that a call changed, or none if it failed or is not done."""
    return () if effect.failed or not effect.is_done else effect.paths or (effect.target,)


def _describe_call(description: str, effect: CallEffect) -> CallDescription:
    """Describe a call, with its outcome and errors."""
    outcome = clip_line(effect.outcome, 120)
    errors = tuple(map(clip_line, effect.errors))
    # The state records a failure that states an error or counts failed tests.
    # Code is never the same twice, so a later success of other code does not resolve this failure.
    is_open = (
        effect.failed
        and (errors or effect.tests)
        and effect.kind != "looked"
        and not {"code", "session_id"} & effect.arguments.keys()
    )
    failure_key = error_key(effect) if is_open else ""
    text = f"{description} → {outcome}" if outcome else description
    return CallDescription(redact_text(text), tuple(map(redact_text, errors)), failure_key)


def join_changes(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines; adjacent ones that only name changed files become one."""
    names: list[str] = []
    for line in lines:
        if line.startswith(_CHANGED_LABEL) and "; " not in line:
            names += line.removeprefix(_CHANGED_LABEL).split(", ")
            continue
        if names:
            yield f"{_CHANGED_LABEL}{', '.join(merge_repeated_paths(names))}"
            names = []
        yield line
    if names:
        yield f"{_CHANGED_LABEL}{', '.join(merge_repeated_paths(names))}"


def merge_repeated_paths(paths: Iterable[str]) -> list[str]:
    """Return each path once, with a count if it occurs several times."""
    counts: dict[str, int] = {}
    for path in paths:
        name, _, times = (
            path.rpartition(" ×") if REPEAT_COUNT_PATTERN.search(path) else (path, "", "1")
        )
        counts[name] = counts.get(name, 0) + int(times)
    return [
        f"{clip_line(path, 200)} ×{times}" if times > 1 else clip_line(path, 200)
        for path, times in counts.items()
    ]
