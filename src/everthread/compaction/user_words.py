"""What the user said, word for word: a section that the engine fills and no model touches.

Every message of the user that stands in neither head nor tail is an entry, in order, under its number in the thread.
Where not all fit, each gets its share of the room. The section can be read back exactly: a line of the user's that
looks like one of ours gets a backslash in front.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from everthread.compaction.sentences import (
    GAP,
    Count,
    Rarity,
    Sentence,
    clip_tokens,
    join_sentences,
    split_sentences,
)
from everthread.compaction.summary import section_name

REPEATED = "(A number without a line was said again later, word for word.)"
NOT_SHOWN = "numbers without a line are not shown"
NO_WORDS = "an image or a file without words"
SHORTENED = ", shortened"
_HEAD = re.compile(r"\[(\d{1,9})(?:–(\d{1,9}))?(?:(, shortened)\] |\] |: ([^\]\n]{1,80})\]$)")
_MARKER = re.compile(r"\[(?:END OF )?EVERTHREAD SUMMARY")
_NUMBER_TOKENS = 6
"""About what an entry's number and a mark cost."""
_OPENING = 30
"""Tokens that the beginning of every message gets where not all fit."""
_BEST = 1.5
"""How much more a message's best sentence counts: a word of each before more words of one."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the user. `note` stands in the place of words: nothing was said, or it stands elsewhere."""

    number: int
    text: str = ""
    note: str = ""
    is_short: bool = False
    """The text is not all that was said."""
    last: int = 0
    """Of a range that is not shown, its last number."""

    @property
    def end(self) -> int:
        return self.last or self.number


def render_words(entries: Sequence[Said], room: int, count: Count) -> str:
    """The section's text within so many tokens; where there is room for none of it, one line that says so."""
    told = sorted((entry for entry in entries if entry.note != NOT_SHOWN), key=lambda entry: entry.number)
    if not told:
        return ""
    given, was_cut = _say_once(told), len(told) < len(entries)
    text = _text(given)
    if count(text) <= room and not was_cut:
        return text
    best, left = _line(_range(entries)), room
    for _ in range(5):
        shown = _share(given, left, count)
        if was_cut and shown[0].note != NOT_SHOWN:
            shown = [_range(entries, NOT_SHOWN), *shown]
        text = _text(shown)
        spare = room - count(text)
        if spare >= 0:
            best = text
        if 0 <= spare <= room // 50:
            break
        left += spare
    return best


def _text(entries: Sequence[Said]) -> str:
    """The lines, and a word on numbers that have none."""
    shown = [entry for entry in entries if not entry.last]
    gaps = any(after.number > before.number + 1 for before, after in pairwise(shown))
    notes = any(entry.note == NOT_SHOWN for entry in entries)
    return "\n".join([*([REPEATED] if gaps and not notes else []), *map(_line, entries)])


def parse_words(text: str) -> list[Said]:
    """The entries of a section, as `render_words` wrote them. What stands before the first is nobody's."""
    found: list[Said] = []
    lines: list[str] = []

    def close() -> None:
        if found and not found[-1].note:
            found[-1] = replace(found[-1], text="\n".join(lines).rstrip("\n"))

    for line in text.split("\n"):
        head = _HEAD.match(line)
        if head is None:
            lines.append(line[1:] if line.startswith("\\") and _is_like_ours(line) else line)
            continue
        close()
        note = head[4] or ""
        found.append(Said(int(head[1]), note=note, is_short=head[3] is not None, last=int(head[2] or 0)))
        lines = [] if note else [line[head.end() :]]
    close()
    return found


def entry_tokens(entry: Said, count: Count) -> int:
    """What an entry takes with its number."""
    return count(_line(entry)) + 1


def _line(entry: Said) -> str:
    span = f"{entry.number}–{entry.last}" if entry.last > entry.number else str(entry.number)
    if entry.note:
        return f"[{span}: {entry.note}]"
    first, *rest = entry.text.split("\n")
    quoted = [f"\\{line}" if _is_like_ours(line) else line for line in rest]
    return "\n".join([f"[{span}{SHORTENED if entry.is_short else ''}] {first}", *quoted])


def _is_like_ours(line: str) -> bool:
    """Whether a line, backslashes aside, could pass for an entry's first line, a section's heading or a marker."""
    bare = line.lstrip("\\")
    return bool(_HEAD.match(bare) or _MARKER.match(bare) or section_name(bare))


def _say_once(entries: list[Said]) -> list[Said]:
    """Of messages with the same words only the latest: a later line holds where two differ."""
    latest = {entry.text: entry.number for entry in entries if entry.text}
    return [entry for entry in entries if not entry.text or latest[entry.text] == entry.number]


def _share(entries: list[Said], room: int, count: Count) -> list[Said]:
    """Every message gets room for its beginning; the rest goes to the sentences that say most, newer ones first.

    Where not even beginnings fit, what says most stays, and one line says that numbers without a line are not shown.
    """
    fill = _Fill(entries, room, count)
    if fill.open_all() < 0:
        fill = _Fill(entries, room - 3 * _NUMBER_TOKENS, count)
    fill.take_best()
    shown = fill.shown()
    return shown if len(shown) == len(entries) else [_range(entries, NOT_SHOWN), *shown]


class _Fill:
    """The room, filled sentence by sentence."""

    def __init__(self, entries: list[Said], room: int, count: Count) -> None:
        self._entries, self._left, self._count = entries, room, count
        self._rarity = Rarity(entry.text for entry in entries)
        self._pieces = [split_sentences(entry.text) for entry in entries]
        self._chosen: dict[int, set[int]] = {}
        self._clipped: set[int] = set()

    def open_all(self) -> int:
        """Take the first sentence of every message, the beginning of a very long one; the room that is left."""
        for place, entry in enumerate(self._entries):
            pieces = self._pieces[place]
            first = self._count(entry.text[pieces[0].start : pieces[0].end]) + 2 if pieces else _NUMBER_TOKENS
            self._left -= min(first, _OPENING) + _NUMBER_TOKENS
            if not pieces or first <= _OPENING:
                self._chosen[place] = {0} if pieces else set()
            else:
                self._clipped.add(place)
        return self._left

    def take_best(self) -> None:
        """Take what says most for its length; of a message its best sentence before the others."""
        offers: list[tuple[float, int, int, int]] = []
        for place, entry in enumerate(self._entries):
            made = [_offer(entry.text, piece, self._rarity, self._count) for piece in self._pieces[place]]
            best = max((worth for worth, _ in made), default=0.0)
            offers += (
                (worth * (_BEST if worth == best else 1.0), place, number, tokens)
                for number, (worth, tokens) in enumerate(made)
                if number not in self._chosen.get(place, ())
            )
        for _, place, number, tokens in sorted(offers, key=lambda offer: (-offer[0], -offer[1], offer[2])):
            is_open = place in self._chosen or place in self._clipped
            price = tokens + (0 if is_open else _NUMBER_TOKENS)
            if price <= self._left:
                self._left -= price
                self._chosen.setdefault(place, set()).add(number)

    def shown(self) -> list[Said]:
        return [said for place, entry in enumerate(self._entries) if (said := self._entry(place, entry)) is not None]

    def _entry(self, place: int, entry: Said) -> Said | None:
        pieces, numbers = self._pieces[place], sorted(self._chosen.get(place, ()))
        if not pieces:
            return entry if place in self._chosen else None
        if len(numbers) == len(pieces):
            return entry
        opening = ""
        if place in self._clipped and 0 not in numbers:
            opening = clip_tokens(entry.text[pieces[0].start : pieces[0].end], _OPENING - 4, self._count)
        rest = join_sentences(entry.text, pieces, numbers) if numbers else ""
        text = " ".join(filter(None, (opening, rest.removeprefix(f"{GAP} ") if opening else rest)))
        return Said(entry.number, text, is_short=True) if text else None


def _offer(text: str, piece: Sentence, rarity: Rarity, count: Count) -> tuple[float, int]:
    """What a sentence is worth for its length, and its tokens. A question or a pasted block is worth least."""
    part = text[piece.start : piece.end]
    tokens = count(part) + 2
    return rarity.score(part) / math.pow(tokens + 4, 0.7) * (0.25 if piece.minor else 1.0), tokens


def _range(entries: Sequence[Said], note: str = "not shown") -> Said:
    return Said(min(entry.number for entry in entries), note=note, last=max(entry.end for entry in entries))
