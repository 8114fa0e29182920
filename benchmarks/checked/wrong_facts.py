"""Make a true line wrong in one respect: a figure, a name, a negation, a decision.

Half of the changed figures and names come from elsewhere in the same recording, so that a search for them in the
sources does not reveal the change.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from everthread.compaction.verification.checkable_names import (
    ERROR_KIND,
    URL_KIND,
    CheckableName,
    find_checkable_names,
)
from everthread.core.search.word_forms import choose_stop_words

FIGURE = "figure"
NAME = "name"
NEGATION = "negation"
DECISION = "decision"
KINDS = (FIGURE, NAME, NEGATION, DECISION)
WORDS = (
    "harbour",
    "quartz",
    "lantern",
    "velvet",
    "cobalt",
    "meadow",
    "falcon",
    "ember",
    "willow",
    "saffron",
    "tundra",
)
_FIGURE = re.compile(r"(?<![\w.,:/#\[-])\d+(?:[.,]\d+)*(?=\s?%|\s[A-Za-z]|(?:ms|s|[kKMG]B?)\b)")
_NUMBERING = re.compile(r"\s*(?:[-*•]\s+)?\d{1,4}[.)]\s")
_FLIPS = tuple(
    (re.compile(pattern, re.IGNORECASE), other)
    for pattern, other in (
        (r"\bno longer\b", "still"),
        (
            r"\b(do|does|did|is|are|was|were|has|have|should|must|could|would) not\b",
            r"\1",
        ),
        (
            r"\b(do|does|did|is|are|was|were|has|have|should|must|could|would)n['’]t\b",
            r"\1",
        ),
        (r"\bcan(?:not|['’]t)\b", "can"),
        (r"\bwon['’]t\b", "will"),
        (r"\bnever\b", "always"),
        (r"\balways\b", "never"),
        (r"\bwithout\b", "with"),
        (
            r"\b(should|must|will|can|could|would|is|are|was|were|has|have|does|did)\b",
            r"\1 not",
        ),
        (r"\b(fails|failed|failing)\b", "passed"),
        (r"\b(passes|passed|passing|succeeded)\b", "failed"),
        (r"\bneeds? to\b", "need not"),
        (r"\bwants?\b", "does not want"),
    )
)
_SIDES = re.compile(r"([\w./`'-]+) (instead of|rather than|over|and not) ([\w./`'-]+)")
_REVERSED = (
    ("keep", "remove"),
    ("add", "remove"),
    ("use", "avoid"),
    ("enable", "disable"),
    ("allow", "forbid"),
    ("accept", "reject"),
    ("include", "exclude"),
    ("before", "after"),
    ("start", "stop"),
    ("open", "close"),
    ("increase", "decrease"),
)
_DECIDED = re.compile(
    r"\b(use|using|keep|choose|chose|prefer|prefers|remove|add|want|wants|switch to|go with|replace|drop|skip)\s+"
    r"(?:the |a |an |to )?`?([A-Za-z][\w-]{3,})"
)


@dataclass(frozen=True, slots=True)
class WrongFact:
    kind: str
    line: str
    changed_from: str
    """The true line."""


class Recorded:
    """The names, figures and words of a recording, to take wrong ones from."""

    def __init__(self, sources: str) -> None:
        self._sources = sources
        sample = sources[:400_000]
        self._names: dict[str, list[str]] = {}
        for name in find_checkable_names(sample):
            self._names.setdefault(name.kind, []).append(name.value)
        self._figures = sorted({match[0] for match in _FIGURE.finditer(sample)})
        words = re.findall(r"\b[a-z]{4,12}\b", sample)
        stop = choose_stop_words(words)
        self._words = sorted({word for word in words if word not in stop})

    def make_wrong_facts(self, line: str, rng: random.Random) -> list[WrongFact]:
        """Return one wrong line of each possible kind, made from this line."""
        changed = {
            FIGURE: self._change_figure(line, rng),
            NAME: self._change_name(line, rng),
            NEGATION: change_polarity(line),
            DECISION: self._change_decision(line, rng),
        }
        return [
            WrongFact(kind, other, line)
            for kind, other in changed.items()
            if other and other != line
        ]

    def _change_figure(self, line: str, rng: random.Random) -> str:
        numbering = _NUMBERING.match(line)
        figures = list(_FIGURE.finditer(line, numbering.end() if numbering else 0))
        if not figures:
            return ""
        match = rng.choice(figures)
        digits = match[0]
        if rng.random() < 0.5 and self._figures:
            similar_figures = [
                figure for figure in self._figures if len(figure) == len(digits)
            ] or self._figures
            other = rng.choice(similar_figures)
        else:
            place = rng.choice([at for at, char in enumerate(digits) if char.isdigit()])
            other = (
                digits[:place]
                + rng.choice([char for char in "123456789" if char != digits[place]])
                + digits[place + 1 :]
            )
        return f"{line[: match.start()]}{other}{line[match.end() :]}"

    def _change_name(self, line: str, rng: random.Random) -> str:
        names = [name for name in find_checkable_names(line) if name.kind != ERROR_KIND]
        if not names:
            return ""
        name = rng.choice(names)
        other_names = [other for other in self._names.get(name.kind, ()) if other not in line]
        other = (
            rng.choice(other_names)
            if other_names and rng.random() < 0.5
            else self._invent(name, rng)
        )
        return f"{line[: name.start]}{other}{line[name.end :]}"

    def _invent(self, name: CheckableName, rng: random.Random) -> str:
        """Return the name with one part changed."""
        name_parts = list(
            re.finditer(
                r"[A-Za-z]{3,}|\d+",
                name.value[8:] if name.kind == URL_KIND else name.value,
            )
        )
        if len(name_parts) < 2:
            return f"{name.value}_{rng.choice(WORDS)}"
        offset = 8 if name.kind == URL_KIND else 0
        name_part = rng.choice(name_parts)
        word = str(rng.randrange(100, 999)) if name_part[0].isdigit() else rng.choice(WORDS)
        word = word.capitalize() if name_part[0][0].isupper() else word
        return f"{name.value[: name_part.start() + offset]}{word}{name.value[name_part.end() + offset :]}"

    def _change_decision(self, line: str, rng: random.Random) -> str:
        """Exchange the two sides of a choice, reverse its verb, or put another word of the recording in its place."""
        sides = _SIDES.search(line)
        if sides is not None and sides[1].casefold() != sides[3].casefold():
            return f"{line[: sides.start()]}{sides[3]} {sides[2]} {sides[1]}{line[sides.end() :]}"
        for pair in _REVERSED:
            for one, other in (pair, pair[::-1]):
                reversed_line = re.sub(rf"\b{one}(s?)\b", rf"{other}\1", line, count=1)
                if reversed_line != line:
                    return reversed_line
        choice = _DECIDED.search(line)
        if choice is None or not self._words:
            return ""
        word = rng.choice(self._words)
        return f"{line[: choice.start(2)]}{word}{line[choice.end(2) :]}" if word not in line else ""


def change_polarity(line: str) -> str:
    """Return the line with one negation removed or added; empty if it has no known verb."""
    for pattern, other in _FLIPS:
        if pattern.search(line):
            return pattern.sub(other, line, count=1)
    return ""


def take_per_kind(facts: Sequence[WrongFact], count: int, rng: random.Random) -> list[WrongFact]:
    """Choose at most this many of each kind."""
    picked: list[WrongFact] = []
    for kind in KINDS:
        of_kind = [fact for fact in facts if fact.kind == kind]
        picked += rng.sample(of_kind, min(count, len(of_kind)))
    return picked
