"""A model's summary is held against its sources: names and figures that no source has are marked.

Names are URLs, paths, hashes, identifiers and quoted errors. A figure is true or false only together with what it
measures: it counts as found where it stands in a source near half of the line's other words. Prose is never marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from everthread.compaction.names import ERROR, HASH, Name, checkable_names
from everthread.compaction.sentences import words_of
from everthread.compaction.summary import Sections
from everthread.core.messages import Message, calls_of, results_of, strings_in, text_of
from everthread.core.transcript import without_summary

UNVERIFIED = "(unverified)"
REFUSED_SHARE, REFUSED_LEAST = 0.25, 3
"""A summary of whose checked names more than this share, and at least so many, are unverified is refused."""
_NEAR = 400
"""Characters before and after a figure in which the line's other words are looked for."""
_LOOKED_AT, _WORDS, _FIGURES, _LINE = 50, 40, 12, 1_000
"""What is looked at: places of a figure in the sources, words and figures of a line, characters of a line. A longer
line is no sentence about a figure."""
_FIGURE = re.compile(
    r"(?<![\w.,:/#-])(?:[$€£¥]\s?)?(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(\s?(?:%|‰|°C|°F|[A-Za-zµ]{1,12}\b)?)(?![\w/:-])"
)
_NUMBERING = re.compile(r"^\s*(?:[-*]\s+)?(?:\d{1,4}[.)]\s+|\[\d[^\]]{0,40}\]\s*)?")


def source_text(messages: Iterable[Message], earlier: str) -> str:
    """Everything the sources say, as one text to look names up in.

    What an earlier summary said and no source did is no source: told again without its mark it is marked again.
    """
    known = "\n".join(line for line in earlier.split("\n") if not line.endswith(UNVERIFIED))
    spoken = (rest for message in messages if (rest := without_summary(message)) is not None)
    return "\n".join([known, *map(_said, spoken)])


def _said(message: Message) -> str:
    parts = [text_of(message)]
    for call in calls_of(message):
        parts.append(call.name)
        parts += strings_in(call.parsed, keys=True) if "\\" in call.arguments else (call.arguments,)
    return "\n".join([*parts, *(result.text for result in results_of(message))])


def mark_sections(sections: Mapping[str, str], sources: str) -> tuple[Sections, int, int]:
    """The sections with a mark at the end of each line that names what no source says; how many were checked, and
    how many of those are in no source."""
    checker = _Checker(sources)
    marked = {name: "\n".join(map(checker.line, text.split("\n"))) for name, text in sections.items()}
    return marked, checker.checked, checker.unknown


def is_refused(checked: int, unknown: int) -> bool:
    """Whether so much of a summary is in no source that it is not used."""
    return unknown >= REFUSED_LEAST and unknown > REFUSED_SHARE * checked


class _Checker:
    def __init__(self, sources: str) -> None:
        self._sources = sources
        self._lowered = sources.casefold()
        self._known: dict[str, bool] = {}
        self.checked = self.unknown = 0

    def line(self, line: str) -> str:
        """The line, marked where it names what the sources do not hold."""
        if line.startswith("#") or not line.strip():
            return line
        names = checkable_names(line)
        bad = 0
        for name in names:
            if name.value not in self._known:
                self._known[name.value] = self._stands(name)
            bad += not self._known[name.value]
        figures = self._figures(line, names)
        bad += sum(not self._is_near(figure, line) for figure in figures)
        self.checked += len(names) + len(figures)
        self.unknown += bad
        return f"{line.rstrip()} {UNVERIFIED}" if bad and not line.rstrip().endswith(UNVERIFIED) else line

    def _stands(self, name: Name) -> bool:
        """Whether the sources hold the name itself, not only a longer one that it is a part of; a hash may be short."""
        sources = self._sources
        place = sources.find(name.value)
        while place >= 0:
            end = place + len(name.value)
            if name.kind == ERROR or not (
                _continues(sources, place - 1) or (name.kind != HASH and _continues(sources, end))
            ):
                return True
            place = sources.find(name.value, place + 1)
        return False

    def _figures(self, line: str, names: Iterable[Name]) -> list[str]:
        """Numbers that say something: with a unit, a currency or a word behind them, or of several digits."""
        if len(line) > _LINE:
            return []
        body = _NUMBERING.sub("", line, count=1)
        offset = len(line) - len(body)
        taken = [(name.start, name.end) for name in names]
        found = []
        for match in _FIGURE.finditer(body):
            start, end = match.start() + offset, match.end(1) + offset
            if any(begin < end and start < stop for begin, stop in taken):
                continue
            if match[2].strip() or len(match[1]) > 1 or match[0][0] in "$€£¥":
                found.append(match[1])
        return found[:_FIGURES]

    def _is_near(self, figure: str, line: str) -> bool:
        """Whether the figure stands somewhere in the sources near half of the line's other words."""
        words = (word for word in words_of(line) if len(word) > 2 and not word[0].isdigit())
        others = list(dict.fromkeys(words))[:_WORDS]
        forms = {figure, figure.replace(",", "")}
        for form in forms:
            place, looked = self._lowered.find(form), 0
            while place >= 0 and looked < _LOOKED_AT:
                looked += 1
                if not _digit(self._lowered, place - 1) and not _digit(self._lowered, place + len(form)):
                    around = self._lowered[max(place - _NEAR, 0) : place + len(form) + _NEAR]
                    if not others or 2 * sum(word in around for word in others) >= len(others):
                        return True
                place = self._lowered.find(form, place + 1)
        return False


def _digit(text: str, place: int) -> bool:
    return 0 <= place < len(text) and text[place].isdigit()


def _continues(text: str, place: int) -> bool:
    """Whether a name goes on here: a letter, digit or underscore, unless it is part of an escape (`\\n`)."""
    char = text[place] if 0 <= place < len(text) else ""
    return char.isascii() and (char.isalnum() or char == "_") and (place == 0 or text[place - 1] != "\\")
