"""Describe the steps of a turn: the assistant's note, the files it changed, its calls and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from everthread.compaction.history.compaction_history import MessageFacts
from everthread.compaction.history.failure_keys import error_key, strip_command_prefix
from everthread.compaction.history.todo_list import read_task_change, read_todo
from everthread.compaction.history.tool_calls import CallEffect
from everthread.compaction.journal.conclusions import drop_announcement
from everthread.compaction.journal.entries import REPEAT_COUNT_PATTERN
from everthread.compaction.journal.one_line_text import (
    ERROR_START,
    clip_line,
    redact_texts,
    shorten_closing_words,
    shorten_note,
)
from everthread.core.messages import text_of

FIXED_NOTE = "(fixed later)"
REPLACED_NOTE = "(failed differently later)"
ERROR_NOTES = (FIXED_NOTE, REPLACED_NOTE)
"""Notes at the end of an error that is no longer open."""
MAX_COMMAND_CHARS = 120
_MAX_CALL_CHARS = 120


class CallDescription(NamedTuple):
    """A call in words, its error lines, and the key of its failure in the thread's state."""

    text: str
    errors: tuple[str, ...] = ()
    failure_key: str = ""


class Step(NamedTuple):
    """The assistant's note and the calls of the same message, redacted."""

    note: str = ""
    changed_paths: tuple[str, ...] = ()
    calls: tuple[CallDescription, ...] = ()

    def render_lines(
        self,
        error_notes: Mapping[CallDescription, str],
        shown_errors: Sequence[Sequence[str]],
    ) -> Iterator[str]:
        """Yield the line of the step, unless the step only read, then its error lines.

        `error_notes`: notes on the failures that are not open. `shown_errors`: the error lines to show of each call.
        """
        parts = [f"changed {', '.join(self.changed_paths)}"] if self.changed_paths else []
        error_lines: list[str] = []
        for call, errors in zip(self.calls, shown_errors, strict=True):
            note = error_notes.get(call)
            suffix = f" {note}" if note else ""
            parts.append(call.text if errors else f"{call.text}{suffix}")
            error_lines += [f"{ERROR_START}{' | '.join(errors)}{suffix}"] if errors else []
        actions = "; ".join(parts)
        if line := f"{self.note} — {actions}" if self.note and actions else actions or self.note:
            yield line
        yield from error_lines


def describe_steps_and_closings(
    steps_with_notes: Sequence[tuple[MessageFacts, str]],
    closings: Sequence[MessageFacts],
) -> None:
    """Write the missing steps and closing words of these messages, and redact them in one call, which is cheaper.

    `steps_with_notes`: each message with calls, and the assistant's words right before it.
    """
    unwritten_steps = [
        (message_facts, note)
        for message_facts, note in steps_with_notes
        if message_facts.effects
        and (message_facts.step is None or message_facts.step[0] is not message_facts.effects[1])
    ]
    step_facts = [message_facts for message_facts, _ in unwritten_steps]
    closing_facts = [
        message_facts for message_facts in closings if message_facts.closing_text is None
    ]
    notes = [
        (text_of(message_facts.message) or note) if message_facts.calls else ""
        for message_facts, note in unwritten_steps
    ]
    raw_steps = [
        _describe_step(note, message_facts.effects[1])
        for message_facts, note in zip(step_facts, notes, strict=True)
        if message_facts.effects
    ]
    texts = [
        *(text for step in raw_steps for text in _list_step_texts(step)),
        *(
            shorten_closing_words(text_of(message_facts.message).strip())
            for message_facts in closing_facts
        ),
    ]
    redacted_texts = redact_texts(texts)
    remaining_texts = iter(redacted_texts)
    for message_facts, step in zip(step_facts, raw_steps, strict=True):
        if message_facts.effects:
            message_facts.step = (
                message_facts.effects[1],
                step if redacted_texts is texts else _replace_step_texts(step, remaining_texts),
            )
    for message_facts, closing in zip(
        closing_facts, redacted_texts[len(texts) - len(closing_facts) :], strict=True
    ):
        message_facts.closing_text = closing


def _list_step_texts(step: Step) -> Iterator[str]:
    """Yield every text of a step."""
    yield step.note
    yield from step.changed_paths
    for call in step.calls:
        yield call.text
        yield from call.errors


def _replace_step_texts(step: Step, texts: Iterator[str]) -> Step:
    """Return the step with new texts, in the order of `_list_step_texts`."""
    note = next(texts)
    paths = tuple(next(texts) for _ in step.changed_paths)
    calls = tuple(
        CallDescription(next(texts), tuple(next(texts) for _ in call.errors), call.failure_key)
        for call in step.calls
    )
    return Step(note, paths, calls)


def _describe_step(note: str, effects: Sequence[CallEffect]) -> Step:
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
    return Step(note_line, tuple(paths), tuple(calls))


def _changes_todo(effect: CallEffect) -> bool:
    """Return whether a call only changed the to-do list, which is part of the state."""
    return not effect.failed and bool(read_todo(effect) or read_task_change(effect))


def _list_changed_paths(effect: CallEffect) -> tuple[str, ...]:
    """Return the paths that a call changed; empty if it failed or is not done."""
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
    failure = error_key(effect) if is_open else ""
    return CallDescription(
        f"{description} → {outcome}" if outcome else description, errors, failure
    )


_CHANGED_LABEL = "changed "


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
