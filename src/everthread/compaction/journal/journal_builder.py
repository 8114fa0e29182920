"""Build the journal and the state of a thread from its messages, reading each message once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from operator import is_
from typing import Any

from everthread.compaction.history.compaction_history import MessageFacts, number_turns
from everthread.compaction.history.thread_facts import (
    Results,
    ThreadState,
    read_calls,
)
from everthread.compaction.journal.entries import Entry
from everthread.compaction.journal.entry_shortening import merge_silent
from everthread.compaction.journal.journal import Journal
from everthread.compaction.journal.one_line_text import ERROR_START, clip_line
from everthread.compaction.journal.steps import (
    FIXED,
    Step,
    name_paths,
    write_texts,
)
from everthread.core.messages import Messages, text_of

_MAX_STEPS = 12
"""An entry has at most this many lines: a longer turn is several entries."""
_CHANGED_ONLY = "changed "


class GrowingJournal:
    """A journal and state that grow with the messages: messages read before are not read again."""

    def __init__(self, before: Journal, state: ThreadState) -> None:
        """Continue the journal `before`; `state` is updated to the end of the messages."""
        self.state = state
        self._before = before
        self._errors = {key: error.lines for key, error in state.errors.items()}
        self._facts: Sequence[MessageFacts] = ()
        self._turns: Sequence[int] = ()
        self._waiting: Results = {}
        self._open_calls: set[str] = set()
        """Ids of calls without a result."""
        self._parts: list[_Part] = []
        """The finished parts; the last part may still grow."""
        self._last: _Part | None = None
        self._shown_errors: set[str] = set()
        """Error lines that these parts show."""
        self._turn_start = self._part_start = 0

    def extend(
        self, facts: Sequence[MessageFacts], turns: Sequence[int]
    ) -> GrowingJournal:
        """Read the new messages. `turns`: the number of the user message that each belongs to."""
        start = len(self._facts)
        records = read_calls(facts, turns, start, self._waiting)
        for record in records:
            self.state.apply(record.effect, record.turn)
            if record.open_call:
                self._open_calls.add(record.open_call)
        self.state.messages += len(facts) - start
        self.state.names.add(facts[start:])
        self._facts = facts
        self._turns = turns
        self._read_parts({record.place: facts[record.place] for record in records})
        return self

    def continues_messages(
        self, facts: Sequence[MessageFacts], turns: Sequence[int]
    ) -> bool:
        """Return whether the messages begin with those read so far, and no new one is a result for an old call."""
        start = len(self._facts)
        if (
            len(facts) < start
            or turns[:start] != self._turns
            or not all(map(is_, facts, self._facts))
        ):
            return False
        return not any(
            result.call_id in self._open_calls
            for message_facts in facts[start:]
            for result in message_facts.results
        )

    def copy(self) -> GrowingJournal:
        duplicate = copy(self)
        duplicate.state = self.state.copy()
        duplicate._waiting = {
            key: [*results] for key, results in self._waiting.items() if results
        }
        duplicate._parts = [*self._parts]
        duplicate._shown_errors = {*self._shown_errors}
        duplicate._open_calls = {*self._open_calls}
        return duplicate

    def journal(self, prefix: str = "", end: ThreadState | None = None) -> Journal:
        """Return the journal of all messages read so far, without this prefix in paths.

        `end`: the state after the messages that follow, which may resolve errors of these.
        """
        end = end or self.state
        open_keys = end.errors.keys() | end.forgotten
        closed_lines = frozenset(
            clip_line(line)
            for key, lines in self._errors.items()
            if key not in open_keys
            for line in lines
        )
        entries = [entry.without_prefix(prefix) for entry in self._before.entries]
        open_lines = frozenset(
            clip_line(line) for error in end.errors.values() for line in error.lines
        )
        earlier_entries = (
            [_mark_fixes(entry, closed_lines, open_lines) for entry in entries]
            if closed_lines
            else entries
        )
        parts = [*self._parts, self._last] if self._last else self._parts
        new_entries = [part.entry(open_keys, open_lines, prefix) for part in parts]
        if (
            new_entries
            and earlier_entries
            and new_entries[0].is_continued
            and len(earlier_entries[-1].lines) + len(new_entries[0].lines) <= _MAX_STEPS
        ):
            last_entry = earlier_entries.pop()
            lines = (*last_entry.lines, *new_entries[0].lines)
            closing = new_entries[0].closing or last_entry.closing
            new_entries[0] = replace(
                last_entry.join(new_entries[0]),
                lines=lines,
                closing=closing,
                is_continued=last_entry.is_continued,
            )
        return Journal(tuple(merge_silent([*earlier_entries, *new_entries])))

    def _read_parts(self, facts_by_place: dict[int, MessageFacts]) -> None:
        """Split the new messages into turns, and a long turn at the assistant's own notes."""
        facts = self._facts
        turns = self._turns
        spans: list[range] = []
        for index in range(self._turn_start, len(turns)):
            if spans and turns[spans[-1].start] == turns[index]:
                spans[-1] = range(spans[-1].start, index + 1)
            else:
                spans.append(range(index, index + 1))
        closings = [_find_closing(facts, span) for span in spans]
        steps = [
            (message_facts, self._note_before(place, closings))
            for place, message_facts in facts_by_place.items()
        ]
        write_texts(
            steps, [facts[position] for position in closings if position is not None]
        )
        last_turn = self._before.entries[-1].last if self._before.entries else -1
        for span, closing in zip(spans, closings, strict=True):
            closing_text = facts[closing].closing if closing is not None else None
            is_continued = turns[span.start] == last_turn
            start = self._part_start if span.start == self._turn_start else span.start
            self._turn_start = span.start
            while True:
                self._part_start = start
                end = self._part_end(start, span.stop)
                part = _Part(
                    facts[start:end],
                    turns[start],
                    self._shown_errors,
                    is_continued=is_continued or start > span.start,
                )
                if end == span.stop:
                    break
                self._parts.append(part)
                self._shown_errors |= part.errors
                start = end
            part.closing = closing_text or ""
            if span is spans[-1]:
                self._last = part
            else:
                self._parts.append(part)
                self._shown_errors |= part.errors

    def _note_before(self, place: int, closings: Container[int | None]) -> str:
        """Return the assistant's separate message right before its calls, unless it closes the turn."""
        previous_facts = (
            self._facts[place - 1] if place and place - 1 not in closings else None
        )
        if (
            previous_facts is None
            or previous_facts.calls
            or previous_facts.message.get("role") != "assistant"
        ):
            return ""
        return text_of(previous_facts.rest or {})

    def _part_end(self, start: int, stop: int) -> int:
        """Return the end of the part that begins at `start`: once it is long enough, the assistant's next note."""
        steps = 0
        for index in range(start, stop):
            message_facts = self._facts[index]
            if message_facts.step is not None:
                if steps >= _MAX_STEPS and text_of(message_facts.message).strip():
                    return index
                step = message_facts.step[1]
                steps += bool(step.note or step.changed or step.calls)
        return stop


class _Part:
    """A turn, or a part of a long one."""

    def __init__(
        self,
        facts: Sequence[MessageFacts],
        turn: int,
        earlier_errors: set[str],
        *,
        is_continued: bool,
    ) -> None:
        """Read the messages of one part. `earlier_errors`: error lines that earlier parts show."""
        self.errors: set[str] = set()
        """Error lines that this part shows first."""
        self.closing = ""
        self._steps: list[tuple[Step, list[list[str]]]] = []
        self._entry: tuple[Any, Entry] | None = None
        paths: set[str] = set()
        kinds: list[str] = []
        for message_facts in facts:
            if message_facts.step is None:
                continue
            effects, step = message_facts.step
            for effect in effects:
                kinds.append(
                    "failed" if effect.kind == "ran" and effect.failed else effect.kind
                )
                if effect.kind != "looked" and not effect.failed and effect.is_done:
                    paths.update(effect.paths)
            shown_errors = []
            for call in step.calls:
                shown_errors.append(
                    [
                        line
                        for line in call.errors
                        if line not in earlier_errors and line not in self.errors
                    ]
                )
                self.errors.update(shown_errors[-1])
            self._steps.append((step, shown_errors))
        failed = kinds.count("failed")
        self._entry_without_lines = Entry(
            turn,
            turn,
            messages=len(facts),
            changed=len(paths),
            ran=kinds.count("ran") + failed,
            failed=failed,
            called=kinds.count("called"),
            looked=kinds.count("looked"),
            is_continued=is_continued,
        )
        self._failures = [
            call for step, _ in self._steps for call in step.calls if call.failure
        ]

    def entry(
        self, open_keys: Container[str], open_lines: frozenset[str], prefix: str
    ) -> Entry:
        """Return the part as an entry, without `prefix` in paths; later messages decide which errors were resolved.

        `open_keys`, `open_lines`: keys and lines of the errors still open. An error with one of the lines is open too.
        """
        open_errors = frozenset(
            call.failure
            for call in self._failures
            if call.failure in open_keys or not open_lines.isdisjoint(call.errors)
        )
        cache_key = self.closing, open_errors, prefix
        if self._entry is None or self._entry[0] != cache_key:
            lines = (
                line
                for step, shown_errors in self._steps
                for line in step.lines(open_errors, shown_errors)
            )
            full_entry = replace(
                self._entry_without_lines,
                lines=tuple(_join_changes(lines)),
                closing=self.closing,
            )
            self._entry = cache_key, full_entry.without_prefix(prefix)
        return self._entry[1]


def _join_changes(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, those in a row that only name changed files as one."""
    names: list[str] = []
    for line in lines:
        if line.startswith(_CHANGED_ONLY) and "; " not in line:
            names += line.removeprefix(_CHANGED_ONLY).split(", ")
            continue
        if names:
            yield f"{_CHANGED_ONLY}{', '.join(name_paths(names))}"
            names = []
        yield line
    if names:
        yield f"{_CHANGED_ONLY}{', '.join(name_paths(names))}"


def _find_closing(facts: Sequence[MessageFacts], span: range) -> int | None:
    """Return the index of the last message in a turn with assistant text and no tool call."""
    for index in reversed(span):
        message_facts = facts[index]
        if (
            not message_facts.calls
            and message_facts.message.get("role") == "assistant"
            and text_of(message_facts.message).strip()
        ):
            return index
    return None


def _mark_fixes(
    entry: Entry, closed_lines: frozenset[str], open_lines: frozenset[str]
) -> Entry:
    """Mark the error lines of the entry that state one of `closed_lines` and none of `open_lines`."""

    def is_fixed(line: str) -> bool:
        error_texts = line.removeprefix(ERROR_START).split(" | ")
        return (
            line.startswith(ERROR_START)
            and not closed_lines.isdisjoint(error_texts)
            and open_lines.isdisjoint(error_texts)
        )

    lines = tuple(
        f"{line} {FIXED}" if not line.endswith(FIXED) and is_fixed(line) else line
        for line in entry.lines
    )
    return entry if lines == entry.lines else replace(entry, lines=lines)


def journal_of(messages: Messages) -> tuple[Journal, ThreadState]:
    """Return the journal of a whole history and the state at its end; turns count from 1."""
    facts = [MessageFacts(message) for message in messages]
    state = ThreadState()
    fold = GrowingJournal(Journal(), state).extend(facts, number_turns(facts))
    return fold.journal(), state
