"""Lines of a summary on their way into it: what each is worth, and how an earlier summary's lines are read again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from everthread.compaction.summarizers.extract_text import identity

ALSO_RAN, ALSO_DONE, ERRORS = "also ran", "also done", "errors"
TOUCHED, NAMED = "also touched", "also named"
"""What begins a line that names share: of commands, requests, errors; of files that were read or changed, or not."""
SEPARATORS = {ALSO_DONE: " | ", ERRORS: " | "}
"""What stands between names that share a line, where it is no comma."""


@dataclass(frozen=True, slots=True)
class Line:
    """A candidate for one section."""

    text: str
    weight: float
    """What it is worth compared with others of its section."""
    order: float = 0.0
    """Where it stands among them: the index of the message it is about; negative for those of an earlier summary."""
    brief: str = ""
    """A name that still says something where the line has no room; such names share a line."""
    kind: str = ""
    """What the line begins with that such names share."""
    about: str = ""
    """More words that tell what it is about, for a topic to be found in."""
    value: str = ""
    """What the line is there for: where that is said already, the line is not needed."""
    lesser: bool = False
    """A name that only stood in some output: not told where there is more to tell than room."""

    @property
    def is_name(self) -> bool:
        """Whether the line is nothing but a name, which always shares one."""
        return bool(self.brief) and self.text == f"{self.kind}: {self.brief}"


@dataclass(frozen=True, slots=True)
class Scale:
    """How many characters a quotation may have: by the budget in tokens, and by how many turns share it."""

    budget: int
    turns: int = 1

    @property
    def request(self) -> int:
        return self._each(6.0, 70, 400)

    @property
    def asked(self) -> int:
        """Of a request that is told with its outcome."""
        return self._each(0.8, 60, 200)

    @property
    def answer(self) -> int:
        return self._each(1.2, 60, 400)

    @property
    def command(self) -> int:
        return self._all(0.03, 84, 160)

    @property
    def error(self) -> int:
        return self._all(0.05, 160, 300)

    @property
    def decision(self) -> int:
        return self._all(0.06, 320, 340)

    def _each(self, share: float, least: int, most: int) -> int:
        return round(min(max(self.budget * share / max(self.turns, 1), least), most))

    def _all(self, share: float, least: int, most: int) -> int:
        return round(min(max(self.budget * share, least), most))


_BULLET = re.compile(r"(?:[-*+•][ \t]+|(?=\d{1,6}\.[ \t]))")
_UNVERIFIED = re.compile(r"[ \t]*\(unverified\)$")


def recalled(section: str) -> list[str]:
    """The lines of an earlier summary's section, without bullets; what goes on is joined to its line."""
    found: list[str] = []
    for raw in section.split("\n"):
        text = _UNVERIFIED.sub("", raw.strip())
        if not text or text.rstrip(".").casefold() in ("none", "n/a"):
            continue
        bullet = _BULLET.match(text)
        if bullet is None and raw[:1].isspace() and found:
            found[-1] += f" {text}"
        else:
            found.append(text[bullet.end() :] if bullet else text)
    return found


def once(lines: Iterable[Line]) -> list[Line]:
    """The lines, of those that say the same the weightiest."""
    best: dict[str, Line] = {}
    for line in lines:
        key = identity(line.text) or line.text
        if key not in best or best[key].weight < line.weight:
            best[key] = line
    return list(best.values())


def aged(texts: list[str], weight: float) -> list[Line]:
    """Lines of an earlier summary: in their order, the later ones worth a little more."""
    size = len(texts)
    return [Line(text, weight * (0.9 + 0.1 * (place + 1) / size), place - size) for place, text in enumerate(texts)]
