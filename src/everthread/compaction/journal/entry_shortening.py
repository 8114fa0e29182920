"""Shorten the entries of a journal until they fit.

The actions of a turn (files, commands, errors) and its prose (notes and closing words) have a share of the room each.
Actions are reduced from the oldest entry on: to the files and commands they name, to the files, then to one entry for a
range of turns. The newest errors have a share of their own, which a long newest entry cannot take: each stays as its
most telling line. Prose is chosen sentence by sentence over all entries, so that an old turn keeps its conclusion when
it has lost its steps. Everything dropped is counted or marked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from everthread.compaction.journal.conclusions import (
    LINE_SEPARATOR,
    AnswerPiece,
    join_pieces,
    weigh_pieces,
)
from everthread.compaction.journal.entries import JournalEntry, list_changed_files
from everthread.compaction.journal.one_line_text import ERROR_START, split_note
from everthread.compaction.journal.steps import FIXED_NOTE, join_changes
from everthread.compaction.summary.sentences import (
    CountTokens,
    WordRarity,
    keep_newest_lines,
)
from everthread.core.messages import clip

_ACTION_SHARE = 0.25
"""Share of the room for actions; more if the prose leaves some."""
_OLDER_ENTRIES_TOKENS = 80
"""Room for everything older beside the newest entry."""
_ERROR_SHARE = 0.25
"""Share of the room for errors of reduced entries, each in its shortest form."""
_MAX_ACTIONS_CHARS = 300
"""Characters for the changes and commands in an entry without its steps."""
_NEWEST_WEIGHT = 1.5
"""A sentence of the newest entry weighs this many times as much as one of the oldest."""
_REPEATED_WORD_FACTOR = 0.2
"""A word counts this much if a chosen sentence of another text has it, so that a conclusion is not repeated."""
_DURATION = re.compile(r"\(?\b\d{1,6}(?:\.\d{1,6})? ?m?s\b\)?")


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
    errors = _choose_newest_errors(
        entries_without_prose[:-1], int(budget * _ERROR_SHARE), count
    )
    older_room = _OLDER_ENTRIES_TOKENS + sum(count(line) + 2 for line in errors)
    newest_room = min(
        count(entries_without_prose[-1].text) + older_room, budget * 3 // 4
    )
    min_room = max(int(budget * _ACTION_SHARE), newest_room)
    action_room = max(min_room, budget - (total - action_tokens))
    parts = [
        _ReducedEntry(entry, [index])
        for index, entry in enumerate(entries_without_prose)
    ]
    parts = _reduce_actions(parts, errors, action_room, count=count)
    return _add_best_prose(parts, full_entries, budget, count)


@dataclass(slots=True)
class _ReducedEntry:
    """An entry without its prose, or several joined into one."""

    entry: JournalEntry
    source_indices: list[int]
    """Indices of the original entries."""
    has_steps: bool = True
    """Whether the lines are those of the original entry."""


def _without_prose(entry: JournalEntry) -> JournalEntry:
    """Return the entry without its notes and closing words."""
    lines = tuple(split_note(line)[1].removeprefix(" — ") for line in entry.lines)
    return replace(entry, lines=lines, closing_words="")


def _choose_newest_errors(
    entries: Iterable[JournalEntry], room: int, count: CountTokens
) -> frozenset[str]:
    """Return the newest errors of these entries that fit into the room, in their shortest form."""
    lines = [_shorten_error(line) for entry in entries for line in entry.errors]
    unique_lines = list(dict.fromkeys(reversed(lines)))[::-1]
    return frozenset(keep_newest_lines(unique_lines, room, count))


def _reduce_actions(
    parts: list[_ReducedEntry], errors: frozenset[str], room: int, *, count: CountTokens
) -> list[_ReducedEntry]:
    """Reduce the actions of the oldest entries until all fit; those of the newest only if nothing else is left.

    Reduced entries keep those of their errors that are in `errors`.
    """
    usual_commands = _find_usual_commands(part.entry for part in parts)

    def name_effects(entry: JournalEntry) -> JournalEntry:
        return _keep_files_and_commands(entry, usual_commands, errors)

    def name_files(entry: JournalEntry) -> JournalEntry:
        return _keep_files_only(entry, errors)

    for untouched_count in (1, 0):
        _reduce_oldest(parts, untouched_count, name_effects, room=room, count=count)
        _reduce_oldest(parts, untouched_count, name_files, room=room, count=count)
        _merge_oldest(parts, untouched_count, room, count=count)
        excess = _count_action_tokens(parts, count) - room
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
    room: int,
    count: CountTokens,
) -> None:
    """Reduce the oldest entries until all fit, but not the last `untouched_count`."""
    total = _count_action_tokens(parts, count)
    for part in parts[: len(parts) - untouched_count]:
        if total <= room:
            return
        reduced_entry = reduce(part.entry)
        total += count(reduced_entry.body) - count(part.entry.body)
        part.entry = reduced_entry
        part.has_steps = False


def _merge_oldest(
    parts: list[_ReducedEntry], untouched_count: int, room: int, *, count: CountTokens
) -> None:
    """Merge the oldest entries into one until the rest fits, but not the last `untouched_count`."""
    total = _count_action_tokens(parts, count)
    while total > room and len(parts) > max(untouched_count + 1, 1):
        first, second = parts[:2]
        range_entry = first.entry.join_with(second.entry)
        total += count(range_entry.body) - count(first.entry.body)
        total -= count(second.entry.body) + 2
        sources = [*first.source_indices, *second.source_indices]
        parts[:2] = [_ReducedEntry(range_entry, sources, has_steps=False)]


def _count_action_tokens(parts: Iterable[_ReducedEntry], count: CountTokens) -> int:
    """Return the tokens of the entries without their prose."""
    return sum(count(part.entry.body) + 2 for part in parts)


def _drop_oldest_errors(
    entry: JournalEntry, room: int, count: CountTokens
) -> JournalEntry:
    """Return the entry within this many tokens: without its oldest errors, then without its files."""
    files = replace(entry, lines=list_changed_files(entry))
    if count(files.body) > room:
        return replace(entry, lines=())
    errors = keep_newest_lines(entry.errors, room - count(files.body), count)
    return replace(entry, lines=(*files.lines, *errors))


def _shorten_error(line: str) -> str:
    """Return an error line with only the most informative of its texts."""
    suffix = f" {FIXED_NOTE}" if line.endswith(FIXED_NOTE) else ""
    texts = line.removeprefix(ERROR_START).removesuffix(suffix).split(" | ")
    telling_text = next((text for text in texts if ": " in text), texts[0])
    return f"{ERROR_START}{telling_text}{suffix}"


@dataclass(frozen=True, slots=True)
class _ProseText:
    """A note or the closing words of an entry, in pieces."""

    part_number: int
    """The number of the reduced entry that shows it."""
    pieces: Sequence[AnswerPiece]
    worths: Sequence[float]
    sizes: Sequence[int]


def _add_best_prose(
    parts: Sequence[_ReducedEntry],
    full_entries: Sequence[JournalEntry],
    budget: int,
    count: CountTokens,
) -> list[JournalEntry]:
    """Return the entries with the most informative prose of their sources, as much as fits."""
    rarity = WordRarity(entry.prose for entry in full_entries)
    texts = _weigh_texts(parts, full_entries, rarity, count=count)
    room = budget - _count_action_tokens(parts, count)
    while True:
        numbers_by_text = _choose_pieces(texts, rarity, room)
        texts_by_part: list[list[str]] = [[] for _ in parts]
        for text, numbers in zip(texts, numbers_by_text, strict=True):
            texts_by_part[text.part_number].append(join_pieces(text.pieces, numbers))
        entries = _merge_entries_without_prose(parts, texts_by_part)
        excess = sum(count(entry.text) + 2 for entry in entries) - budget
        if excess <= 0 or not any(numbers_by_text):
            return entries
        room -= excess


def _weigh_texts(
    parts: Sequence[_ReducedEntry],
    full_entries: Sequence[JournalEntry],
    rarity: WordRarity,
    *,
    count: CountTokens,
) -> list[_ProseText]:
    """Return the notes and closing words of all entries, weighed. An entry with its steps has a note for each line."""
    last_index = max(len(full_entries) - 1, 1)
    texts: list[_ProseText] = []
    for number, part in enumerate(parts):
        for index in part.source_indices:
            weight = 1 + (_NEWEST_WEIGHT - 1) * index / last_index
            notes = [split_note(line)[0] for line in full_entries[index].lines]
            for position, text in enumerate(
                [*notes, full_entries[index].closing_words]
            ):
                if not text and not part.has_steps:
                    continue
                is_note = position < len(notes)
                pieces, worths, sizes = weigh_pieces(
                    text, count, rarity, is_note=is_note
                )
                worths = [worth * weight for worth in worths]
                texts.append(_ProseText(number, pieces, worths=worths, sizes=sizes))
    return texts


def _choose_pieces(
    texts: Sequence[_ProseText], rarity: WordRarity, room: int
) -> list[list[int]]:
    """Return the numbers of the pieces of each text that fit: those that add most to the ones chosen before them."""
    offers = [
        (-worth, text_index, number)
        for text_index, text in enumerate(texts)
        for number, worth in enumerate(text.worths)
        if worth > 0
    ]
    heapify(offers)
    numbers_by_text: list[list[int]] = [[] for _ in texts]
    chosen_texts: set[str] = set()
    text_by_word: dict[str, int] = {}
    while offers:
        _, text_index, number = heappop(offers)
        text = texts[text_index]
        piece = text.pieces[number]
        if text.sizes[number] > room or piece.text in chosen_texts:
            continue
        new_words = [
            word
            for word in piece.words
            if text_by_word.get(word, text_index) == text_index
        ]
        worth = text.worths[number] * _share_of_new_words(piece, new_words, rarity)
        offer = (-worth, text_index, number)
        if offers and offer > offers[0]:
            heappush(offers, offer)
            continue
        room -= text.sizes[number]
        chosen_texts.add(piece.text)
        for word in piece.words:
            text_by_word.setdefault(word, text_index)
        numbers_by_text[text_index].append(number)
    return numbers_by_text


def _share_of_new_words(
    piece: AnswerPiece, new_words: Sequence[str], rarity: WordRarity
) -> float:
    """Return the share of a piece's worth that is left if only `new_words` are not in a chosen piece."""
    if len(new_words) == len(piece.words):
        return 1.0
    share = rarity.score_words(new_words) / rarity.score_words(piece.words)
    return share + (1 - share) * _REPEATED_WORD_FACTOR


def _merge_entries_without_prose(
    parts: Sequence[_ReducedEntry], texts_by_part: Sequence[Sequence[str]]
) -> list[JournalEntry]:
    """Return the entries with their prose; merge adjacent ones that have neither steps nor prose."""
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
    return merge_silent_entries(entries)


def _with_prose(part: _ReducedEntry, texts: Sequence[str]) -> JournalEntry:
    """Return the entry with these notes and closing words; without its steps they become one text."""
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
        f"`{clip(command, 60)}`"
        for command in entry.commands
        if command not in usual_commands
    )
    effects = [
        f"changed {', '.join(names)}" if names else "",
        f"ran {', '.join(commands)}" if commands else "",
    ]
    line = clip("; ".join(effect for effect in effects if effect), _MAX_ACTIONS_CHARS)
    error_lines = _list_kept_errors(entry, errors)
    return replace(entry, lines=tuple(filter(None, (line, *error_lines))))


def _list_kept_errors(entry: JournalEntry, errors: Container[str]) -> list[str]:
    """Return the errors of an entry that are in `errors`, in their shortest form."""
    lines = dict.fromkeys(map(_shorten_error, entry.errors))
    return [line for line in lines if line in errors]


def _keep_files_only(entry: JournalEntry, errors: Container[str]) -> JournalEntry:
    """Return the entry with only its changed files, the number of its commands, and its error lines."""
    return replace(
        entry,
        lines=(*list_changed_files(entry), *_list_kept_errors(entry, errors)),
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
                comparable_line = _DURATION.sub("", line)
                if comparable_line in later_errors:
                    continue
                later_errors.add(comparable_line)
            lines.append(line)
        is_whole = len(lines) == len(entry.lines)
        shortened_entries.append(
            entry if is_whole else replace(entry, lines=tuple(lines[::-1]))
        )
    return shortened_entries[::-1]


def _find_usual_commands(entries: Iterable[JournalEntry]) -> frozenset[str]:
    """Return the commands that were run more than twice: builds, tests, checks."""
    counts = Counter(command for entry in entries for command in entry.commands)
    return frozenset(command for command, run_count in counts.items() if run_count > 2)


def merge_silent_entries(entries: list[JournalEntry]) -> list[JournalEntry]:
    """Merge adjacent silent entries into one entry for a range."""
    merged_entries: list[JournalEntry] = []
    for entry in entries:
        if merged_entries and merged_entries[-1].is_silent and entry.is_silent:
            merged_entries[-1] = merged_entries[-1].join_with(entry)
        else:
            merged_entries.append(entry)
    return merged_entries
