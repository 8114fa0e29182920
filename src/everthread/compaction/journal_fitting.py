"""Shorten the entries of a journal until they fit: the oldest first, with a count of everything dropped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace

from everthread.compaction.findings import (
    best_tokens,
    pick_findings,
)
from everthread.compaction.journal_entries import Entry, changed_line
from everthread.compaction.journal_text import ERROR_START, split_note
from everthread.compaction.user_quotes import Count, Rarity, newest_lines
from everthread.core.messages import clip

_MAX_BEST_SENTENCE_TOKENS = 60
"""Maximum tokens of the most informative sentence in closing words."""
_ERROR_SHARE = 4
"""Share (1/n) of the room for errors of reduced entries."""
_MAX_EFFECTS_CHARS = 300
"""Characters for the changes and commands in an entry without its steps."""
_MAX_RANGE_CLOSING_TOKENS = 40
"""Tokens of the last outcome of a range."""
_NEWEST_WEIGHT = 4.0
"""The newest turn's closing words get this many times the room of the oldest's."""
_DURATION = re.compile(r"\(?\b\d{1,6}(?:\.\d{1,6})? ?m?s\b\)?")


def fit_entries(entries: Sequence[Entry], budget: int, count: Count) -> list[Entry]:
    """Return the entries within this many tokens, the oldest shortened first."""
    full = _drop_repeated_errors(entries)
    if sum(count(entry.text) + 2 for entry in full) <= budget:
        return full
    short = [entry.with_short_notes() for entry in full]
    closings = [count(entry.closing) for entry in short]
    bare = [count(entry.body) + 2 for entry in short]
    room = budget - sum(bare) - 3 * len(short)
    least = budget * 3 // 5
    if sum(closings) <= room:
        return _lengthen_notes(full, short, room - sum(closings), count)
    short = _shorten_closings(short, closings, max(room, least), count)
    if room >= least:
        return merge_silent(short)
    return _shorten_steps(short, budget, count)


def _shorten_steps(entries: list[Entry], budget: int, count: Count) -> list[Entry]:
    """Return the entries within this many tokens: the oldest lose their steps, then their names, then themselves."""
    usual = _usual_commands(entries)
    lines = [line for entry in entries for line in entry.errors]
    errors = frozenset(newest_lines(lines, budget // _ERROR_SHARE, count))
    entries = merge_silent(_name_oldest(entries, usual, errors, budget, count))
    last_turn = sum(entry.last == entries[-1].last for entry in entries)
    for kept in (last_turn, 0):
        counted = _count_oldest(entries, kept, errors, budget, count)
        entries = _merge_oldest(counted, kept, budget, count)
    return entries


def _shorten_closings(
    entries: list[Entry], sizes: Sequence[int], room: int, count: Count
) -> list[Entry]:
    """Keep the closing words of the newest entries, as many as can say something; newer ones get more room."""
    if sum(sizes) <= room:
        return entries
    rarity = Rarity(entry.closing for entry in entries)
    least: dict[int, int] = {}
    remaining = room
    for index in (index for index in reversed(range(len(entries))) if sizes[index]):
        best = best_tokens(entries[index].closing, count, rarity)
        least[index] = min(sizes[index], best, _MAX_BEST_SENTENCE_TOKENS, max(room, 0))
        remaining -= least[index]
        if remaining < 0:
            remaining += least.pop(index)
            break
    most = max(len(entries) - 1, 1)
    weights = {index: 1 + (_NEWEST_WEIGHT - 1) * index / most for index in least}
    share = _weighted_level(
        [sizes[index] - least[index] for index in least],
        list(weights.values()),
        remaining,
    )
    shortened: list[Entry] = []
    for index, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        allowed = (
            least[index] + int(min(share * weights[index], size - least[index]))
            if index in least
            else 0
        )
        if size <= allowed:
            shortened.append(entry)
            continue
        shortened.append(
            replace(entry, closing=pick_findings(entry.closing, allowed, count, rarity))
        )
    return shortened


def _lengthen_notes(
    full: Sequence[Entry], entries: Sequence[Entry], room: int, count: Count
) -> list[Entry]:
    """Return the entries with as much of their notes as there is room for; newer ones get more."""
    places = [
        (index, at)
        for index, entry in enumerate(entries)
        for at, line in enumerate(entry.lines)
        if line != full[index].lines[at]
    ]
    most = max(len(entries) - 1, 1)
    weights = [1 + (_NEWEST_WEIGHT - 1) * index / most for index, _ in places]
    shown = {place: count(entries[place[0]].lines[place[1]]) for place in places}
    whole = {place: count(full[place[0]].lines[place[1]]) for place in places}
    missing = [whole[place] - shown[place] for place in places]
    level = _weighted_level(missing, weights, room)
    rarity = Rarity(entry.text for entry in full)
    lines = [list(entry.lines) for entry in entries]
    for place, weight, lacks in zip(places, weights, missing, strict=True):
        index, at = place
        note, done = split_note(full[index].lines[at])
        extra = int(min(level * weight, lacks))
        allowed = shown[place] + extra - count(done)
        if extra > 0:
            longer = pick_findings(note, allowed, count, rarity, is_note=True)
            lines[index][at] = f"{longer}{done}" if longer else lines[index][at]
    return [
        replace(entry, lines=tuple(new))
        for entry, new in zip(entries, lines, strict=True)
    ]


def _name_oldest(
    entries: list[Entry],
    usual: frozenset[str],
    errors: Container[str],
    budget: int,
    count: Count,
) -> list[Entry]:
    """Reduce the oldest entries to their effects until the rest fits; the last one keeps its newest lines."""
    sizes = [count(entry.text) + 2 for entry in entries]
    total = sum(sizes)
    named: list[Entry] = []
    for entry, size in zip(entries, sizes, strict=True):
        if total <= budget or not entry.lines:
            named.append(entry)
            continue
        slim = _name_effects(entry, usual, errors)
        total += count(slim.text) + 2 - size
        kept = _newest_lines(entry, budget - total, count)
        if kept:
            older = replace(entry, lines=entry.lines[:-kept])
            slim = _name_effects(older, usual, errors)
            slim = replace(slim, lines=(*slim.lines, *entry.lines[-kept:]))
            total = budget
        named.append(slim)
    return named


def _newest_lines(entry: Entry, room: int, count: Count) -> int:
    """Return how many of an entry's newest lines have room, fewer than all."""
    kept = 0
    for line in reversed(entry.lines[1:]):
        room -= count(line) + 2
        if room < 0:
            break
        kept += 1
    return kept


def _count_oldest(
    entries: list[Entry], kept: int, errors: Container[str], budget: int, count: Count
) -> list[Entry]:
    """Reduce the oldest entries to counts and errors until the rest fits, but not the last `kept`.

    Adjacent ones without closing words are merged at once, before a newer entry loses its names.
    """
    sizes = [count(entry.text) + 2 for entry in entries]
    total = sum(sizes)
    counted: list[Entry] = []
    for index, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        if total <= budget or index >= len(entries) - kept:
            return [*counted, *entries[index:]]
        slim = _keep_errors(entry, errors)
        total += count(slim.text) + 2 - size
        if counted and not counted[-1].closing and not slim.closing:
            joined = counted[-1].join(slim)
            total -= count(counted[-1].text) + count(slim.text) + 2 - count(joined.text)
            counted[-1] = joined
        else:
            counted.append(slim)
    return counted


def _name_effects(entry: Entry, usual: frozenset[str], errors: Container[str]) -> Entry:
    """Return the entry with only the changed files, the commands that are not `usual`, and its error lines."""
    names = entry.changed_files
    once = [
        f"`{clip(command, 60)}`"
        for command in dict.fromkeys(entry.commands)
        if command not in usual
    ]
    effects = [
        f"changed {', '.join(names)}" if names else "",
        f"ran {', '.join(once)}" if once else "",
    ]
    line = clip("; ".join(part for part in effects if part), _MAX_EFFECTS_CHARS)
    kept = (line for line in entry.errors if line in errors)
    note = entry.best_note
    return replace(entry, lines=tuple(filter(None, (note, line, *kept))))


def _keep_errors(entry: Entry, errors: Container[str]) -> Entry:
    """Return the entry with only the files it changed and those of its error lines that are in `errors`."""
    kept = (line for line in entry.errors if line in errors)
    return replace(entry, lines=(*changed_line(entry), *kept))


def _drop_repeated_errors(entries: Iterable[Entry]) -> list[Entry]:
    """Drop error lines that a later line repeats, ignoring durations."""
    later_errors: set[str] = set()
    unrepeated: list[Entry] = []
    for entry in reversed(list(entries)):
        lines: list[str] = []
        for line in reversed(entry.lines):
            if line.startswith(ERROR_START):
                same = _DURATION.sub("", line)
                if same in later_errors:
                    continue
                later_errors.add(same)
            lines.append(line)
        is_whole = len(lines) == len(entry.lines)
        unrepeated.append(
            entry if is_whole else replace(entry, lines=tuple(lines[::-1]))
        )
    return unrepeated[::-1]


def _usual_commands(entries: Iterable[Entry]) -> frozenset[str]:
    """Return the commands that were run more than twice: builds, tests, checks."""
    counts = Counter(command for entry in entries for command in entry.commands)
    return frozenset(command for command, times in counts.items() if times > 2)


def merge_silent(entries: list[Entry]) -> list[Entry]:
    """Merge adjacent silent entries into one entry for a range."""
    merged: list[Entry] = []
    for entry in entries:
        if merged and merged[-1].is_silent and entry.is_silent:
            merged[-1] = merged[-1].join(entry)
        else:
            merged.append(entry)
    return merged


def _weighted_level(
    sizes: Sequence[int], weights: Sequence[float], room: float
) -> float:
    remaining = float(room)
    weight = sum(weights)
    for size, own in sorted(
        zip(sizes, weights, strict=True), key=lambda pair: pair[0] / pair[1]
    ):
        if size / own * weight >= remaining:
            return max(remaining / weight, 0.0)
        remaining -= size
        weight -= own
    return float("inf")


def _merge_oldest(
    entries: list[Entry], kept: int, budget: int, count: Count
) -> list[Entry]:
    """Merge the oldest entries into one until the rest fits, but not the last `kept`.

    The range keeps a short form of its last outcome. If all are merged, it loses its oldest errors, then its outcome
    and its files.
    """
    sizes = [count(entry.text) + 2 for entry in entries]
    total = sum(sizes)
    rarity = Rarity(entry.closing for entry in entries)
    index = 0
    merged = entries[0]
    size = sizes[0]
    while total > budget and index + 1 < len(entries) - kept:
        index += 1
        total -= size + sizes[index]
        merged = merged.join(entries[index])
        closing = pick_findings(
            merged.closing, _MAX_RANGE_CLOSING_TOKENS, count, rarity
        )
        merged = replace(merged, closing=closing)
        size = count(merged.text) + 2
        total += size
    if total > budget and not kept:
        merged = _shrink(merged, size - (total - budget), count)
    return [merged, *entries[index + 1 :]] if merged is not entries[0] else entries


def _shrink(entry: Entry, room: int, count: Count) -> Entry:
    """Return the entry within this many tokens: without its oldest errors, then without outcome and files."""
    errors = list(entry.errors)
    while errors and count(entry.text) + 2 > room:
        del errors[0]
        entry = replace(entry, lines=(*changed_line(entry), *errors))
    if count(entry.text) + 2 > room:
        entry = replace(entry, closing="")
    return entry if count(entry.text) + 2 <= room else replace(entry, lines=())
