"""Build the journal and the state of a thread from its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from everthread.compaction.history.call_effects import EffectsByIndex, read_effects
from everthread.compaction.history.compaction_history import MessageFacts, number_turns
from everthread.compaction.history.thread_state import ThreadState
from everthread.compaction.history.tool_calls import REFUSED
from everthread.compaction.journal.conclusions import LINE_SEPARATOR
from everthread.compaction.journal.entries import JournalEntry
from everthread.compaction.journal.journal import Journal, drop_quiet_entries
from everthread.compaction.journal.one_line_text import (
    ERROR_START,
    clip_line,
    redact_text,
    shorten_closing_words,
)
from everthread.compaction.journal.steps import (
    ERROR_NOTES,
    FIXED_NOTE,
    REPLACED_NOTE,
    CallDescription,
    Step,
    describe_step,
    join_changes,
)
from everthread.core.messages import Messages, text_of

_MAX_ENTRY_LINES = 12
"""Maximum lines of an entry; a longer turn becomes several entries."""


@dataclass(frozen=True, slots=True)
class JournalBuilder:
    """The work in some messages, read for a journal. Later messages decide which of its errors are open."""

    earlier_journal: Journal
    earlier_error_lines: Mapping[str, Sequence[str]]
    """The lines of the errors that were open before the messages, by the errors' keys."""
    parts: Sequence[_TurnPart]

    @classmethod
    def read(
        cls,
        facts: Sequence[MessageFacts],
        turns: Sequence[int],
        state: ThreadState,
        earlier_journal: Journal | None = None,
    ) -> JournalBuilder:
        """Read messages of these turns, which continue `earlier_journal`, and update `state` to their end."""
        earlier_journal = earlier_journal or Journal()
        earlier_error_lines = {
            key: list(map(clip_line, error.lines)) for key, error in state.errors.items()
        }
        effects_by_index = read_effects(facts)
        state.apply_effects(effects_by_index, turns)
        state.message_count += len(facts)
        state.names.add_messages(facts, effects_by_index)
        last_turn = earlier_journal.entries[-1].last_turn if earlier_journal.entries else None
        parts = _PartReader(facts, turns, effects_by_index).read_parts(last_turn)
        return cls(earlier_journal, earlier_error_lines, parts)

    def build_journal(self, end_state: ThreadState, path_prefix: str = "") -> Journal:
        """Return the journal without `path_prefix` in paths.

        `end_state`: the state after these messages or later ones, which may have resolved errors.
        """
        error_state = _ErrorState.read(end_state)
        earlier_notes = error_state.find_notes(self.earlier_error_lines)
        earlier_entries = [
            entry.without_prefix(path_prefix) for entry in self.earlier_journal.entries
        ]
        if earlier_notes:
            earlier_entries = [
                _mark_errors(entry, earlier_notes, error_state.open_lines)
                for entry in earlier_entries
            ]
        new_entries = [
            part.make_entry(error_state).without_prefix(path_prefix) for part in self.parts
        ]
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
            self.earlier_journal.quiet_message_count,
        )


@dataclass(frozen=True, slots=True)
class _TurnPart:
    """A turn, or a part of a long one."""

    entry: JournalEntry
    """The entry of the part without its lines."""
    steps: Sequence[Step]
    """The steps, each error line only in the first step of the thread that has it."""

    def make_entry(self, error_state: _ErrorState) -> JournalEntry:
        """Return the part as an entry, with notes on the failures that are no longer open."""
        lines = (line for step in self.steps for line in step.render_lines(error_state.find_note))
        return replace(self.entry, lines=tuple(join_changes(lines)))


class _PartReader:
    """A reader that splits messages into turns, and long turns into parts."""

    def __init__(
        self,
        facts: Sequence[MessageFacts],
        turns: Sequence[int],
        effects_by_index: EffectsByIndex,
    ) -> None:
        self._facts = facts
        self._turns = turns
        self._effects_by_index = effects_by_index
        self._shown_errors: set[str] = set()
        """Error lines that the parts read so far show."""

    def read_parts(self, last_turn: int | None) -> list[_TurnPart]:
        """Return the parts of all turns. `last_turn`: the last turn of the earlier journal, which may continue."""
        parts: list[_TurnPart] = []
        for span in self._find_turn_spans():
            steps = self._describe_steps(span)
            is_continued = self._turns[span.start] == last_turn
            closing_words = self._join_closing_words(span)
            for part_span in self._split_turn(span, steps):
                entry = self._count_work(part_span, steps)
                is_last = part_span.stop == span.stop
                entry = replace(
                    entry,
                    closing_words=closing_words if is_last else "",
                    is_continued=is_continued or part_span.start > span.start,
                )
                part_steps = [steps[index] for index in part_span if index in steps]
                parts.append(_TurnPart(entry, list(map(self._drop_shown_errors, part_steps))))
        return parts

    def _find_turn_spans(self) -> list[range]:
        """Return the indices of the messages of each turn."""
        spans: list[range] = []
        for index, turn in enumerate(self._turns):
            if spans and self._turns[spans[-1].start] == turn:
                spans[-1] = range(spans[-1].start, index + 1)
            else:
                spans.append(range(index, index + 1))
        return spans

    def _describe_steps(self, span: range) -> dict[int, Step]:
        """Return the steps of a turn by the index of the assistant's message."""
        return {
            index: describe_step(self._find_note(index, span), self._effects_by_index[index])
            for index in span
            if index in self._effects_by_index
            and self._facts[index].message.get("role") == "assistant"
        }

    def _find_note(self, index: int, span: range) -> str:
        """Return the assistant's text with its calls, or right before them in the same turn."""
        facts = self._facts[index]
        if not facts.calls:
            return ""
        text = text_of(facts.message)
        if text or index == span.start:
            return text
        previous_facts = self._facts[index - 1]
        if previous_facts.calls or previous_facts.message.get("role") != "assistant":
            return ""
        return text_of(previous_facts.without_summary or {})

    def _split_turn(self, span: range, steps: Mapping[int, Step]) -> list[range]:
        """Split a long turn into parts. Each part but the first begins with a note of the assistant."""
        part_spans: list[range] = []
        start = span.start
        step_count = 0
        for index in span:
            step = steps.get(index)
            if step is None:
                continue
            if step_count >= _MAX_ENTRY_LINES and text_of(self._facts[index].message).strip():
                part_spans.append(range(start, index))
                start = index
                step_count = 0
            step_count += bool(step.note or step.changed_paths or step.calls)
        return [*part_spans, range(start, span.stop)]

    def _count_work(self, span: range, steps: Mapping[int, Step]) -> JournalEntry:
        """Return an entry with the counts of the work in a part of a turn."""
        effects = [
            effect
            for index in span
            if index in steps
            for effect in self._effects_by_index[index]
            if effect.outcome != REFUSED
        ]
        changed_paths = {
            path
            for effect in effects
            if effect.kind != "looked" and not effect.failed and effect.is_done
            for path in effect.paths
        }
        kinds = Counter(effect.kind for effect in effects)
        turn = self._turns[span.start]
        return JournalEntry(
            turn,
            turn,
            message_count=len(span),
            changed_file_count=len(changed_paths),
            command_count=kinds["ran"],
            failed_count=sum(effect.kind == "ran" and effect.failed for effect in effects),
            other_call_count=kinds["called"],
            look_count=kinds["looked"],
        )

    def _drop_shown_errors(self, step: Step) -> Step:
        """Return a step that shows only the error lines that no earlier step shows."""
        calls: list[CallDescription] = []
        for call in step.calls:
            new_errors = [line for line in call.errors if line not in self._shown_errors]
            self._shown_errors.update(new_errors)
            calls.append(call._replace(shown_errors=tuple(new_errors)))
        return step._replace(calls=tuple(calls))

    def _join_closing_words(self, span: range) -> str:
        """Return the answers in a turn: its last text unless calls follow, and the ones before texts of the client.

        A turn has several answers if the client continued it: with a notice, or the text of a slash command.
        """
        texts: list[str] = []
        is_answer = True
        for index in reversed(span):
            facts = self._facts[index]
            role = facts.message.get("role")
            if facts.calls or facts.results:
                is_answer = False
            elif role == "user":
                is_answer = True
            elif is_answer and role == "assistant" and (text := text_of(facts.message).strip()):
                texts.append(redact_text(shorten_closing_words(text)))
                is_answer = False
        return LINE_SEPARATOR.join(filter(None, reversed(texts)))


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
            frozenset([*lines, *map(redact_text, lines)]),
        )

    def find_note(self, key: str, lines: Sequence[str]) -> str:
        """Return the note for a failure with this key and these lines, or an empty string if the failure is open.

        Only the newest failure of a command is open, and every failure with a line of an open one.
        """
        if key in self.forgotten_keys or not self.open_lines.isdisjoint(lines):
            return ""
        if key in self.replaced_keys or (lines and key in self.open_keys):
            return REPLACED_NOTE
        return "" if key in self.open_keys else FIXED_NOTE

    def find_notes(self, lines_by_key: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Return the note for each line of the failures that are no longer open."""
        return {
            line: note
            for key, lines in lines_by_key.items()
            if (note := self.find_note(key, lines))
            for line in lines
        }


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
    journal_builder = JournalBuilder.read(facts, number_turns(facts), state)
    return journal_builder.build_journal(state), state
