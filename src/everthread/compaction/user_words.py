"""What the user said, word for word: a section that the engine fills and no model touches.

Every message of the user that stands in neither head nor tail is an entry, in order, under its number in the thread.
Where not all fit, each gets its share of the room. The section can be read back exactly: a line of the user's that
looks like one of ours gets a backslash in front.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.compaction.sentences import Count, Rarity, clip_tokens, shorten, split_sentences
from everthread.compaction.summary import section_name

NO_WORDS = "an image or a file without words"
SHORTENED = ", shortened"
_HEAD = re.compile(r"\[(\d{1,9})(?:–(\d{1,9}))?(?:(, shortened)\] |\] |: ([^\]\n]{1,80})\]$)")
_MARKER = re.compile(r"\[(?:END OF )?EVERTHREAD SUMMARY")
_REPEAT = re.compile(r"the same as (\d{1,9})")
_NUMBER_TOKENS = 6
"""About what an entry's number and a mark cost."""
_OPENINGS = (60, 30, 14)
"""Tokens of a first sentence that are kept where all messages have to share a small room: less before none."""
_WORTH_POINTING = 60
"""A repeated message of fewer characters is simply said again."""


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
    given = _point_to_repeats(sorted(entries, key=lambda entry: entry.number))
    if not given:
        return ""
    text = "\n".join(map(_line, given))
    if count(text) <= room:
        return text
    best, left = _line(_range(given)), room
    for _ in range(5):
        text = "\n".join(map(_line, _share(given, left, count)))
        spare = room - count(text)
        if spare >= 0:
            best = text
        if 0 <= spare <= room // 50:
            break
        left += spare
    return best


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


def total_tokens(entries: Sequence[Said], count: Count) -> int:
    """What the entries take when all of them are shown whole."""
    return sum(entry_tokens(entry, count) for entry in entries)


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


def _point_to_repeats(entries: list[Said]) -> list[Said]:
    """Of messages with the same words only the latest is shown: a later line holds where two differ."""
    latest = {entry.text: entry.number for entry in entries if entry.text and not entry.is_short}
    numbers = {entry.number for entry in entries if entry.text}
    pointed: list[Said] = []
    for entry in entries:
        again = latest.get(entry.text, entry.number)
        repeat = _REPEAT.fullmatch(entry.note)
        if again != entry.number and len(entry.text) >= _WORTH_POINTING:
            pointed.append(Said(entry.number, note=f"the same as {again}"))
        elif repeat and int(repeat[1]) not in numbers:
            pointed.append(replace(entry, note="not shown"))
        else:
            pointed.append(entry)
    return pointed


def _share(entries: list[Said], room: int, count: Count) -> list[Said]:
    """Each message gets the same share; what short ones leave goes to the others, and at last to the newer ones."""
    sizes = [entry_tokens(entry, count) for entry in entries]
    hidden = len(entries)
    for most in _OPENINGS:
        openings = [min(size, _opening(entry, most, count)) for entry, size in zip(entries, sizes, strict=True)]
        hidden = _hidden(openings, room)
        if not hidden:
            break
    if hidden == len(entries):
        return [_range(entries)]
    kept, sizes = entries[hidden:], sizes[hidden:]
    left = room - (3 * _NUMBER_TOKENS if hidden else 0)
    share = _level(sizes, left)
    rarity = Rarity(entry.text for entry in entries)
    shown: list[Said] = []
    spare = left - sum(min(size, share) for size in sizes)
    for entry, size in zip(kept, sizes, strict=True):
        allowed = share + spare
        if size <= allowed:
            spare -= max(size - share, 0)
            shown.append(entry)
            continue
        text = shorten(entry.text, max(int(allowed) - _NUMBER_TOKENS, 4), count, rarity)
        short = Said(entry.number, text, is_short=True)
        spare = max(allowed - entry_tokens(short, count) - 3, 0)
        shown.append(short)
    return [_range(entries[:hidden]), *shown] if hidden else shown


def _opening(entry: Said, most: int, count: Count) -> int:
    """What the first sentence takes, long ones cut to so many tokens."""
    pieces = split_sentences(entry.text[:2_000])
    first = entry.text[pieces[0].start : pieces[0].end] if pieces else ""
    return min(count(clip_tokens(first, most, count)), most) + _NUMBER_TOKENS


def _hidden(openings: list[int], room: int) -> int:
    """How many of the oldest cannot be shown even by their first sentences."""
    left = room
    for place in range(len(openings) - 1, -1, -1):
        left -= openings[place]
        if left < 0:
            left_for_note = room - sum(openings[place + 1 :])
            extra = 1 if left_for_note < 3 * _NUMBER_TOKENS and place + 1 < len(openings) else 0
            return min(place + 1 + extra, len(openings))
    return 0


def _range(entries: Sequence[Said]) -> Said:
    return Said(entries[0].number, note="not shown", last=max(entry.end for entry in entries))


def _level(sizes: list[int], room: int) -> float:
    """The share at which everybody's need, cut to it, fills the room."""
    left, waiting = float(room), len(sizes)
    for size in sorted(sizes):
        if size * waiting >= left:
            return max(left / waiting, 1.0)
        left -= size
        waiting -= 1
    return float(max(sizes, default=1))
