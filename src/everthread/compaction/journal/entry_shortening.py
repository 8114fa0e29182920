"""Shorten the entries of a journal until they fit.

The actions of a turn (files, commands, errors) and its prose (notes and closing words) each have a share of the tokens.
Actions are reduced from the oldest entry on: to files and commands, to files only, then to one entry for a range of
turns. The newest errors have a separate share, which a long newest entry cannot take; of each error the most
informative line stays. Prose is chosen sentence by sentence over all entries, so that an old turn keeps its conclusion
when it has lost its steps. Everything that is dropped is counted or marked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heapify, heappop, heappush

from everthread.compaction.journal.conclusions import (
    LINE_SEPARATOR,
    ScoredStatement,
    Statement,
    join_statements,
    score_statements,
)
from everthread.compaction.journal.entries import (
    JournalEntry,
    find_last_outcome,
    list_changed_files,
)
from everthread.compaction.journal.one_line_text import ERROR_START, split_note
from everthread.compaction.journal.steps import ERROR_NOTES, join_changes
from everthread.compaction.summary.sentences import (
    CountTokens,
    WordRarity,
    keep_newest_lines,
)
from everthread.core.text import clip

_ACTION_SHARE = 0.25
"""Share of the tokens for actions, which get more if the prose leaves some."""
_OLDER_ENTRIES_TOKENS = 80
"""Tokens for all older entries beside the newest one."""
_ERROR_SHARE = 0.25
"""Share of the tokens for errors of reduced entries, each in its shortest form."""
_MAX_ACTIONS_CHARS = 300
"""Maximum characters for the changes and commands in an entry without its steps."""
_NEWEST_WEIGHT = 1.5
"""A sentence of the newest entry weighs this many times as much as one of the oldest."""
_REPEATED_WORD_FACTOR = 0.2
"""The factor for the weight of a word that a chosen sentence of another text has, to avoid repeated conclusions."""
_DURATION_PATTERN = re.compile(r"\(?\b\d{1,6}(?:\.\d{1,6})? ?m?s\b\)?")


def fit_entries(
    entries: Sequence[JournalEntry], budget: int, count: CountTokens
) -> list[JournalEntry]:
    """Return the entries within this many tokens."""
    full_entries = _drop_repeated_errors(entries)
    total = sum(count(entry.text) + 2 for entry in full_entries)
    if total <= budget:
        return full_entries
    entries_without_prose = [_without_prose(entry) for entry in full_entries]
    action_tokens = sum(count(entry.text) + 2 for entry in entries_without_prose)
    errors = _choose_newest_errors(entries_without_prose[:-1], int(budget * _ERROR_SHARE), count)
    older_tokens = _OLDER_ENTRIES_TOKENS + sum(count(line) + 2 for line in errors)
    newest_tokens = min(count(entries_without_prose[-1].text) + older_tokens, budget * 3 // 4)
    min_tokens = max(int(budget * _ACTION_SHARE), newest_tokens)
    max_action_tokens = max(min_tokens, budget - (total - action_tokens))
    parts = [_ReducedEntry(entry, [index]) for index, entry in enumerate(entries_without_prose)]
    parts = _reduce_actions(parts, errors, max_action_tokens, count=count)
    return _add_best_prose(parts, full_entries, budget, count)


@dataclass(slots=True)
class _ReducedEntry:
    """An entry without its prose, or several joined into one."""

    entry: JournalEntry
    source_indices: list[int]
    """Indices of the original entries."""
    has_steps: bool = True
    """Whether the lines are the original entry's."""


def _without_prose(entry: JournalEntry) -> JournalEntry:
    """Return the entry without its notes and closing words."""
    lines = tuple(split_note(line)[1].removeprefix(" — ") for line in entry.lines)
    return replace(entry, lines=lines, closing_words="")


def _choose_newest_errors(
    entries: Iterable[JournalEntry], max_tokens: int, count: CountTokens
) -> frozenset[str]:
    """Return the newest errors of these entries that fit into `max_tokens`, in their shortest form."""
    lines = [_shorten_error(line) for entry in entries for line in entry.errors]
    unique_lines = list(dict.fromkeys(reversed(lines)))[::-1]
    return frozenset(keep_newest_lines(unique_lines, max_tokens, count))


def _reduce_actions(
    parts: list[_ReducedEntry],
    errors: frozenset[str],
    max_tokens: int,
    *,
    count: CountTokens,
) -> list[_ReducedEntry]:
    """Reduce the actions of the oldest entries until all entries fit; the newest entry is reduced last.

    A reduced entry keeps only its errors that are in `errors`.
    """
    usual_commands = _find_usual_commands(part.entry for part in parts)

    keep_files_and_commands = partial(
        _keep_files_and_commands, usual_commands=usual_commands, errors=errors
    )
    drop_commands = partial(_drop_commands, errors=errors)
    for untouched_count in (1, 0):
        _reduce_oldest(
            parts, untouched_count, keep_files_and_commands, max_tokens=max_tokens, count=count
        )
        _reduce_oldest(parts, untouched_count, drop_commands, max_tokens=max_tokens, count=count)
        _merge_oldest(parts, untouched_count, max_tokens, count=count)
        excess = _count_action_tokens(parts, count) - max_tokens
        if excess > 0 and len(parts) > untouched_count:
            first_part = parts[0]
            first_part.entry = _drop_oldest_errors(
                first_part.entry, count(first_part.entry.body) - excess, count
            )
            first_part.has_steps = False
    return parts


def _reduce_oldest(
    parts: Sequence[_ReducedEntry],
    untouched_count: int,
    reduce: Callable[[JournalEntry], JournalEntry],
    *,
    max_tokens: int,
    count: CountTokens,
) -> None:
    """Reduce the oldest entries until all entries fit, but not the last `untouched_count`."""
    total = _count_action_tokens(parts, count)
    for part in parts[: len(parts) - untouched_count]:
        if total <= max_tokens:
            return
        reduced_entry = reduce(part.entry)
        total += count(reduced_entry.body) - count(part.entry.body)
        part.entry = reduced_entry
        part.has_steps = False


def _merge_oldest(
    parts: list[_ReducedEntry],
    untouched_count: int,
    max_tokens: int,
    *,
    count: CountTokens,
) -> None:
    """Merge the oldest entries into one until all entries fit, but not the last `untouched_count`."""
    total = _count_action_tokens(parts, count)
    while total > max_tokens and len(parts) > max(untouched_count + 1, 1):
        first, second = parts[:2]
        range_entry = first.entry.join_with(second.entry)
        total += count(range_entry.body) - count(first.entry.body)
        total -= count(second.entry.body) + 2
        sources = [*first.source_indices, *second.source_indices]
        parts[:2] = [_ReducedEntry(range_entry, sources, has_steps=False)]


def _count_action_tokens(parts: Iterable[_ReducedEntry], count: CountTokens) -> int:
    """Return the tokens of the entries without their prose."""
    return sum(count(part.entry.body) + 2 for part in parts)


def _drop_oldest_errors(entry: JournalEntry, max_tokens: int, count: CountTokens) -> JournalEntry:
    """Return the entry within `max_tokens`: without its oldest errors, or if need be with one file only."""
    files = replace(entry, lines=list_changed_files(entry))
    if count(files.body) > max_tokens:
        return replace(entry, lines=list_changed_files(entry, max_files=1))
    errors = keep_newest_lines(entry.errors, max_tokens - count(files.body), count)
    return replace(entry, lines=(*files.lines, *errors))


def _shorten_error(line: str) -> str:
    """Return an error line with only its most informative text."""
    note = next((note for note in ERROR_NOTES if line.endswith(note)), "")
    suffix = f" {note}" if note else ""
    texts = line.removeprefix(ERROR_START).removesuffix(suffix).split(" | ")
    informative_text = next((text for text in texts if ": " in text), texts[0])
    return f"{ERROR_START}{informative_text}{suffix}"


@dataclass(frozen=True, slots=True)
class _ProseText:
    """A note or the closing words of an entry, in statements."""

    part_number: int
    """The index of the reduced entry that shows the text."""
    statements: Sequence[ScoredStatement]

    def join(self, numbers: Iterable[int]) -> str:
        """Return the chosen statements as one text."""
        return join_statements([scored.statement for scored in self.statements], numbers)


def _add_best_prose(
    parts: Sequence[_ReducedEntry],
    full_entries: Sequence[JournalEntry],
    budget: int,
    count: CountTokens,
) -> list[JournalEntry]:
    """Return the entries with as much as fits of their most informative prose."""
    rarity = WordRarity(entry.prose for entry in full_entries)
    texts = _weigh_texts(parts, full_entries, rarity, count=count)
    max_tokens = budget - _count_action_tokens(parts, count)
    while True:
        numbers_by_text = _choose_statements(texts, rarity, max_tokens)
        texts_by_part: list[list[str]] = [[] for _ in parts]
        for text, numbers in zip(texts, numbers_by_text, strict=True):
            texts_by_part[text.part_number].append(text.join(numbers))
        entries = _merge_entries_without_prose(parts, texts_by_part)
        excess = sum(count(entry.text) + 2 for entry in entries) - budget
        if excess <= 0 or not any(numbers_by_text):
            return entries
        max_tokens -= excess


def _weigh_texts(
    parts: Sequence[_ReducedEntry],
    full_entries: Sequence[JournalEntry],
    rarity: WordRarity,
    *,
    count: CountTokens,
) -> list[_ProseText]:
    """Return the notes and closing words of all entries, with scores. An entry with steps has one note per line."""
    last_index = max(len(full_entries) - 1, 1)
    texts: list[_ProseText] = []
    for number, part in enumerate(parts):
        for index in part.source_indices:
            weight = 1 + (_NEWEST_WEIGHT - 1) * index / last_index
            notes = [split_note(line)[0] for line in full_entries[index].lines]
            for position, text in enumerate([*notes, full_entries[index].closing_words]):
                if not text and not part.has_steps:
                    continue
                is_note = position < len(notes)
                statements = [
                    scored._replace(score=scored.score * weight)
                    for scored in score_statements(text, count, rarity, is_note=is_note)
                ]
                texts.append(_ProseText(number, statements))
    return texts


def _choose_statements(
    texts: Sequence[_ProseText], rarity: WordRarity, max_tokens: int
) -> list[list[int]]:
    """Choose statements that fit and add most to the statements chosen before; return their numbers for each text."""
    candidates = [
        (-scored.score, text_index, number)
        for text_index, text in enumerate(texts)
        for number, scored in enumerate(text.statements)
        if scored.score > 0
    ]
    heapify(candidates)
    numbers_by_text: list[list[int]] = [[] for _ in texts]
    chosen_texts: set[str] = set()
    text_by_word: dict[str, int] = {}
    while candidates:
        _, text_index, number = heappop(candidates)
        statement, full_score, size = texts[text_index].statements[number]
        if size > max_tokens or statement.text in chosen_texts:
            continue
        new_words = [
            word for word in statement.words if text_by_word.get(word, text_index) == text_index
        ]
        score = full_score * _measure_new_words(statement, new_words, rarity)
        candidate = (-score, text_index, number)
        if candidates and candidate > candidates[0]:
            heappush(candidates, candidate)
            continue
        max_tokens -= size
        chosen_texts.add(statement.text)
        for word in statement.words:
            text_by_word.setdefault(word, text_index)
        numbers_by_text[text_index].append(number)
    return numbers_by_text


def _measure_new_words(statement: Statement, new_words: Sequence[str], rarity: WordRarity) -> float:
    """Return the share of a statement's score that remains if only `new_words` are in no chosen statement."""
    if len(new_words) == len(statement.words):
        return 1.0
    share = rarity.score_words(new_words) / rarity.score_words(statement.words)
    return share + (1 - share) * _REPEATED_WORD_FACTOR


def _merge_entries_without_prose(
    parts: Sequence[_ReducedEntry], texts_by_part: Sequence[Sequence[str]]
) -> list[JournalEntry]:
    """Return the entries with their prose. Merge adjacent entries that have neither steps nor prose."""
    entries: list[JournalEntry] = []
    was_wordless = False
    for part, texts in zip(parts, texts_by_part, strict=True):
        entry = _with_prose(part, texts)
        is_wordless = not part.has_steps and not entry.closing_words
        if is_wordless and was_wordless:
            entries[-1] = entries[-1].join_with(entry)
        else:
            entries.append(entry)
        was_wordless = is_wordless
    return entries


def _with_prose(part: _ReducedEntry, texts: Sequence[str]) -> JournalEntry:
    """Return the entry with these notes and closing words, which become one text if the entry has lost its steps."""
    entry = part.entry
    if not part.has_steps:
        return replace(entry, closing_words=LINE_SEPARATOR.join(filter(None, texts)))
    lines = (
        f"{note} — {action}" if note and action else note or action
        for note, action in zip(texts[:-1], entry.lines, strict=True)
    )
    shown_lines = join_changes(filter(None, lines))
    return replace(entry, lines=tuple(shown_lines), closing_words=texts[-1])


def _keep_files_and_commands(
    entry: JournalEntry, usual_commands: frozenset[str], errors: Container[str]
) -> JournalEntry:
    """Return the entry with only its changed files, its commands except the usual ones, and its error lines."""
    names = entry.changed_files
    commands = dict.fromkeys(
        f"`{clip(command, 60)}`" for command in entry.commands if command not in usual_commands
    )
    effects = [
        f"changed {', '.join(names)}" if names else "",
        f"ran {', '.join(commands)}" if commands else "",
    ]
    line = clip("; ".join(effect for effect in effects if effect), _MAX_ACTIONS_CHARS)
    kept_lines = (
        line,
        *_list_kept_errors(entry, errors),
    )
    return replace(
        entry,
        lines=tuple(filter(None, kept_lines)),
        last_outcome=find_last_outcome(entry),
    )


def _list_kept_errors(entry: JournalEntry, errors: Container[str]) -> list[str]:
    """Return the errors of an entry that are in `errors`, in their shortest form."""
    lines = dict.fromkeys(map(_shorten_error, entry.errors))
    return [line for line in lines if line in errors]


def _drop_commands(entry: JournalEntry, errors: Container[str]) -> JournalEntry:
    """Drop the lines of commands and the counts of other calls and looks. Keep the changed files, and the errors in
    `errors`."""
    return replace(
        entry,
        lines=(
            *list_changed_files(entry),
            *_list_kept_errors(entry, errors),
        ),
        other_call_count=0,
        look_count=0,
    )


def _drop_repeated_errors(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Drop error lines that a later line repeats, ignoring durations."""
    later_errors: set[str] = set()
    shortened_entries: list[JournalEntry] = []
    for entry in reversed(list(entries)):
        lines: list[str] = []
        for line in reversed(entry.lines):
            if line.startswith(ERROR_START):
                comparable_line = _DURATION_PATTERN.sub("", line)
                if comparable_line in later_errors:
                    continue
                later_errors.add(comparable_line)
            lines.append(line)
        is_whole = len(lines) == len(entry.lines)
        shortened_entries.append(entry if is_whole else replace(entry, lines=tuple(lines[::-1])))
    return shortened_entries[::-1]


def _find_usual_commands(entries: Iterable[JournalEntry]) -> frozenset[str]:
    """Return the commands that were run more than twice: builds, tests, checks."""
    counts = Counter(command for entry in entries for command in entry.commands)
    return frozenset(command for command, run_count in counts.items() if run_count > 2)


def merge_silent_entries(entries: Iterable[JournalEntry]) -> list[JournalEntry]:
    """Merge adjacent silent entries into one entry for a range."""
    merged_entries: list[JournalEntry] = []
    for entry in entries:
        if merged_entries and merged_entries[-1].is_silent and entry.is_silent:
            merged_entries[-1] = merged_entries[-1].join_with(entry)
        else:
            merged_entries.append(entry)
    return merged_entries
