"""Build the journal and the state of a thread from its messages, reading each message once."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple

from everthread.compaction.history.call_records import UnmatchedResults, read_calls
from everthread.compaction.history.compaction_history import MessageFacts, number_turns
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.history.tool_calls import REFUSED
from everthread.compaction.journal.conclusions import LINE_SEPARATOR
from everthread.compaction.journal.entries import JournalEntry
from everthread.compaction.journal.journal import Journal, drop_quiet_entries
from everthread.compaction.journal.one_line_text import (
    ERROR_START,
    clip_line,
    redact_texts,
)
from everthread.compaction.journal.steps import (
    ERROR_NOTES,
    FIXED_NOTE,
    REPLACED_NOTE,
    Step,
    describe_steps_and_closings,
    join_changes,
)
from everthread.core.messages import Messages, text_of

_MAX_ENTRY_LINES = 12
"""Maximum lines of an entry; a longer turn becomes several entries."""


class JournalBuilder:
    """A journal and state that grow with the messages: messages read before are not read again."""

    def __init__(self, earlier_journal: Journal, state: ThreadState) -> None:
        """Continue `earlier_journal`; `state` is updated to the end of the messages."""
        self.state = state
        self._earlier_journal = earlier_journal
        self._earlier_error_lines = {
            key: list(map(clip_line, error.lines)) for key, error in state.errors.items()
        }
        self._facts: Sequence[MessageFacts] = ()
        self._turns: Sequence[int] = ()
        self._unmatched_results: UnmatchedResults = {}
        """Ids of calls without a result."""
        self._parts: list[_TurnPart] = []
        """The finished parts; the last part may still grow."""
        self._last_part: _TurnPart | None = None
        self._shown_errors: set[str] = set()
        """Error lines that the finished parts show."""
        self._turn_start = self._part_start = 0

    def extend(self, facts: Sequence[MessageFacts], turns: Sequence[int]) -> JournalBuilder:
        """Read the new messages of a longer history. `turns`: the turn of each message."""
        start = len(self._facts)
        records = read_calls(facts, turns, start, self._unmatched_results)
        for record in records:
            self.state.apply_effect(record.effect, record.turn)
        self.state.message_count += len(facts) - start
        self.state.names.add_messages(facts[start:])
        self._facts = facts
        self._turns = turns
        self._read_parts({record.message_index: facts[record.message_index] for record in records})
        return self

    def build_journal(self, path_prefix: str = "", end_state: ThreadState | None = None) -> Journal:
        """Return the journal of all messages read so far, without `path_prefix` in paths.

        `end_state`: the state after later messages, which may have resolved errors.
        """
        end_state = end_state or self.state
        error_state = _ErrorState.read(end_state)
        earlier_notes = error_state.find_notes(self._earlier_error_lines)
        entries = [entry.without_prefix(path_prefix) for entry in self._earlier_journal.entries]
        earlier_entries = entries
        if earlier_notes:
            earlier_entries = [
                _mark_errors(entry, earlier_notes, error_state.open_lines) for entry in entries
            ]
        parts = [*self._parts, self._last_part] if self._last_part else self._parts
        new_entries = [part.make_entry(error_state, path_prefix) for part in parts]
        if (
            new_entries
            and earlier_entries
            and new_entries[0].is_continued
            and len(earlier_entries[-1].lines) + len(new_entries[0].lines) <= _MAX_ENTRY_LINES
        ):
            last_entry = earlier_entries.pop()
            lines = (*last_entry.lines, *new_entries[0].lines)
            closing = new_entries[0].closing_words or last_entry.closing_words
            new_entries[0] = replace(
                last_entry.join_with(new_entries[0]),
                lines=lines,
                closing_words=closing,
                is_continued=last_entry.is_continued,
            )
        return drop_quiet_entries(
            [*earlier_entries, *new_entries],
            self._earlier_journal.quiet_message_count,
        )

    def _read_parts(self, facts_by_index: dict[int, MessageFacts]) -> None:
        """Split the new messages into turns, and long turns into parts that begin with a note of the assistant."""
        facts = self._facts
        turns = self._turns
        spans: list[range] = []
        for index in range(self._turn_start, len(turns)):
            if spans and turns[spans[-1].start] == turns[index]:
                spans[-1] = range(spans[-1].start, index + 1)
            else:
                spans.append(range(index, index + 1))
        closing_indices = [_find_closing_indices(facts, span) for span in spans]
        all_closing_indices = {index for indices in closing_indices for index in indices}
        steps = [
            (message_facts, self._find_note_before(index, all_closing_indices))
            for index, message_facts in facts_by_index.items()
        ]
        describe_steps_and_closings(steps, [facts[index] for index in sorted(all_closing_indices)])
        last_turn = (
            self._earlier_journal.entries[-1].last_turn if self._earlier_journal.entries else -1
        )
        for span, indices in zip(spans, closing_indices, strict=True):
            closing_texts = [facts[index].closing_text or "" for index in indices]
            is_continued = turns[span.start] == last_turn
            start = self._part_start if span.start == self._turn_start else span.start
            self._turn_start = span.start
            while True:
                self._part_start = start
                end = self._find_part_end(start, span.stop)
                part = _TurnPart(
                    facts[start:end],
                    turns[start],
                    self._shown_errors,
                    is_continued=is_continued or start > span.start,
                )
                if end == span.stop:
                    break
                self._parts.append(part)
                self._shown_errors |= part.first_shown_errors
                start = end
            part.closing = LINE_SEPARATOR.join(filter(None, closing_texts))
            if span is spans[-1]:
                self._last_part = part
            else:
                self._parts.append(part)
                self._shown_errors |= part.first_shown_errors

    def _find_note_before(self, index: int, closing_indices: Container[int]) -> str:
        """Return the assistant's text right before its message with calls, unless that text closes the turn."""
        previous_facts = (
            self._facts[index - 1] if index and index - 1 not in closing_indices else None
        )
        if (
            previous_facts is None
            or previous_facts.calls
            or previous_facts.message.get("role") != "assistant"
        ):
            return ""
        return text_of(previous_facts.without_summary or {})

    def _find_part_end(self, start: int, stop: int) -> int:
        """Return the end of the part that begins at `start`: the assistant's next note once the part is long enough."""
        step_count = 0
        for index in range(start, stop):
            message_facts = self._facts[index]
            if message_facts.step is not None:
                if step_count >= _MAX_ENTRY_LINES and text_of(message_facts.message).strip():
                    return index
                step = message_facts.step[1]
                step_count += bool(step.note or step.changed_paths or step.calls)
        return stop


class _TurnPart:
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
        self.first_shown_errors: set[str] = set()
        """Error lines that this part shows first."""
        self.closing = ""
        self._steps: list[tuple[Step, list[list[str]]]] = []
        self._entry: tuple[Any, JournalEntry] | None = None
        paths: set[str] = set()
        kinds: list[str] = []
        for message_facts in facts:
            if message_facts.step is None:
                continue
            effects, step = message_facts.step
            for effect in effects:
                if effect.outcome == REFUSED:
                    continue
                kinds.append("failed" if effect.kind == "ran" and effect.failed else effect.kind)
                if effect.kind != "looked" and not effect.failed and effect.is_done:
                    paths.update(effect.paths)
            shown_errors = []
            for call in step.calls:
                shown_errors.append(
                    [
                        line
                        for line in call.errors
                        if line not in earlier_errors and line not in self.first_shown_errors
                    ]
                )
                self.first_shown_errors.update(shown_errors[-1])
            self._steps.append((step, shown_errors))
        failed = kinds.count("failed")
        self._entry_without_lines = JournalEntry(
            turn,
            turn,
            message_count=len(facts),
            changed_file_count=len(paths),
            command_count=kinds.count("ran") + failed,
            failed_count=failed,
            other_call_count=kinds.count("called"),
            look_count=kinds.count("looked"),
            is_continued=is_continued,
        )
        self._failures = [
            call for step, _ in self._steps for call in step.calls if call.failure_key
        ]

    def make_entry(self, error_state: _ErrorState, path_prefix: str) -> JournalEntry:
        """Return the part as an entry, without `path_prefix` in paths. Later messages decide which errors are open."""
        error_notes = {
            call: note
            for call in self._failures
            if (note := error_state.find_note(call.failure_key, call.errors))
        }
        cache_key = self.closing, error_notes, path_prefix
        if self._entry is None or self._entry[0] != cache_key:
            lines = (
                line
                for step, shown_errors in self._steps
                for line in step.render_lines(error_notes, shown_errors)
            )
            full_entry = replace(
                self._entry_without_lines,
                lines=tuple(join_changes(lines)),
                closing_words=self.closing,
            )
            self._entry = cache_key, full_entry.without_prefix(path_prefix)
        return self._entry[1]


class _ErrorState(NamedTuple):
    """The failures that are open at the end of the messages, to find out what became of the others."""

    open_keys: Set[str]
    replaced_keys: Set[str]
    """Keys of failures whose command failed again under another key."""
    forgotten_keys: Set[str]
    open_lines: frozenset[str]
    """The lines of the open failures, as the journal shows them."""

    @classmethod
    def read(cls, state: ThreadState) -> _ErrorState:
        """Read the failures of a state."""
        lines = [clip_line(line) for error in state.errors.values() for line in error.lines]
        return cls(
            state.errors.keys(),
            state.replaced_errors,
            state.forgotten_errors,
            frozenset([*lines, *redact_texts(lines)]),
        )

    def find_note(self, key: str, lines: Sequence[str]) -> str:
        """Return the note for a failure with this key and these lines; empty if it is open.

        Only the newest failure of a command is open, and every failure with a line of an open one.
        """
        if key in self.forgotten_keys or not self.open_lines.isdisjoint(lines):
            return ""
        if key in self.replaced_keys or (lines and key in self.open_keys):
            return REPLACED_NOTE
        return "" if key in self.open_keys else FIXED_NOTE

    def find_notes(self, lines_by_key: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the notes for the lines of these failures that are not open."""
        return {
            line: note
            for key, lines in lines_by_key.items()
            if (note := self.find_note(key, lines))
            for line in lines
        }


def _find_closing_indices(facts: Sequence[MessageFacts], span: range) -> list[int]:
    """Return the indices of the answers in a turn: its last text unless calls follow, and the ones before client texts.

    A turn has several answers if the client continued it: with a notice, or the text of a slash command.
    """
    closing_indices: list[int] = []
    is_answer = True
    for index in reversed(span):
        message_facts = facts[index]
        role = message_facts.message.get("role")
        if message_facts.calls or message_facts.results:
            is_answer = False
        elif role == "user":
            is_answer = True
        elif is_answer and role == "assistant" and text_of(message_facts.message).strip():
            closing_indices.append(index)
            is_answer = False
    return closing_indices[::-1]


def _mark_errors(
    entry: JournalEntry, notes: Mapping[str, str], open_lines: Set[str]
) -> JournalEntry:
    """Add the notes for errors that are no longer open to the lines of the entry that state them and no open one."""

    def find_note(line: str) -> str:
        if not line.startswith(ERROR_START) or line.endswith(ERROR_NOTES):
            return ""
        texts = line.removeprefix(ERROR_START).split(" | ")
        if not open_lines.isdisjoint(texts):
            return ""
        return next((notes[text] for text in texts if text in notes), "")

    lines = tuple(f"{line} {note}" if (note := find_note(line)) else line for line in entry.lines)
    return entry if lines == entry.lines else replace(entry, lines=lines)


def build_journal_and_state(messages: Messages) -> tuple[Journal, ThreadState]:
    """Return the journal of a whole history and the state at its end; turns count from 1."""
    facts = [MessageFacts(message) for message in messages]
    state = ThreadState()
    journal_builder = JournalBuilder(Journal(), state).extend(facts, number_turns(facts))
    return journal_builder.build_journal(), state
