"""Lines into a budget of tokens: every section gets a share by its importance, and what one leaves the others take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from everthread.compaction.summarizers.extract_lines import NAMED, SEPARATORS, Line
from everthread.compaction.summarizers.extract_text import trim
from everthread.core.summary import (
    ANSWERED,
    ASKS,
    BLOCKED,
    CRITICAL,
    DECISIONS,
    DONE,
    FILES,
    GOAL,
    PROGRESS,
    REMAINING,
    RULES,
    STATE,
)

Count = Callable[[str], int]

SHARES = {
    RULES: 0.08, GOAL: 0.08, BLOCKED: 0.07, PROGRESS: 0.05, STATE: 0.07, FILES: 0.12, DONE: 0.25, DECISIONS: 0.07,
    CRITICAL: 0.13, ANSWERED: 0.05, ASKS: 0.015, REMAINING: 0.015,
}  # fmt: skip
"""By importance: where room is very short the later ones go without."""
FIRST = {RULES: 0.12, DECISIONS: 0.12, FILES: 0.30}
"""Up to this share, rules and decisions get all they take before anything else, and files what their names take."""
AMPLE = 1_000
"""In a smaller budget than this that share of files is smaller too; in a smaller room, names get more of it."""
IN_FULL = 0.6
"""This part of a section's room is for whole lines, before names that share a line get theirs."""
LEAST = 40
"""A section with less room than this many tokens is not worth its heading."""
SHORTEST = 15
"""Rather than nothing, a section tells the beginning of its first line in so many tokens."""
CROWD = 100
"""Tokens of names of one kind after which the next one weighs half."""
NUMBER = 3
"""Tokens for a bullet or a number, and the end of the line."""


@dataclass(slots=True)
class Chosen:
    """What made it into one section."""

    lines: list[Line] = field(default_factory=list)
    names: list[Line] = field(default_factory=list)
    """Those of which only the name did."""
    whole: list[Line] = field(default_factory=list)
    """Those of which only the beginning did, as they were."""

    def texts(self) -> list[str]:
        """The lines in order, then the names, those of a kind together."""
        shown = [line.text for line in sorted(self.lines, key=lambda line: line.order)]
        kinds: dict[str, list[str]] = {}
        for line in self.names:
            kinds.setdefault(line.kind, []).append(line.brief)
        return shown + [f"{kind}: {(SEPARATORS.get(kind) or ', ').join(names)}" for kind, names in kinds.items()]


def rooms(drafts: Mapping[str, Sequence[Line]], budget: int) -> dict[str, int]:
    """Tokens for each section, by share; what one does not want is shared among the others."""
    needed = {name: (_named if name == FILES else wants)(drafts.get(name, ())) for name in FIRST}
    ample = {FILES: min(1.0, budget / AMPLE)}
    found = {
        name: min(tokens, int(FIRST[name] * ample.get(name, 1.0) * budget)) for name, tokens in needed.items() if tokens
    }
    budget -= sum(found.values())
    wanted = {name: wants(lines) - found.get(name, 0) for name, lines in drafts.items() if lines}
    names = [name for name in SHARES if wanted.get(name, 0) > 0][: max(2, budget // LEAST)]
    while names:
        whole = sum(SHARES[name] for name in names)
        modest = [name for name in names if wanted[name] <= budget * SHARES[name] / whole]
        given = {name: wanted[name] if modest else int(budget * SHARES[name] / whole) for name in modest or names}
        found |= {name: found.get(name, 0) + tokens for name, tokens in given.items()}
        budget -= sum(given.values())
        names = [name for name in names if name not in given]
    return found


def wants(lines: Sequence[Line]) -> int:
    """About how many tokens all of these lines are."""
    return sum(len(line.text.encode()) // 3 + NUMBER for line in lines)


def _named(lines: Sequence[Line]) -> int:
    """About how many tokens their names are; files that were only spoken of do not count."""
    return sum(len(line.brief.encode()) // 3 + 2 for line in lines if line.brief and line.kind != NAMED)


def choose(
    lines: Sequence[Line], room: int, count: Count, in_full: float = IN_FULL, *, shorten: bool = True
) -> tuple[Chosen, int]:
    """The weightiest lines that fit, then the names of further ones, then lines again; and the tokens left over.

    `shorten`: where nothing fits, the beginning of the first line does.
    """
    ranked = sorted(lines, key=lambda line: -line.weight)
    chosen = Chosen()
    left, skipped = _whole(ranked, room, min(int(room * (1 - in_full)), _named(ranked)), chosen, count)
    left = _names(skipped, left, chosen, count)
    named = {id(line) for line in chosen.names}
    left, skipped = _whole([line for line in skipped if id(line) not in named], left, 0, chosen, count)
    if shorten and not chosen.lines and not chosen.names and left >= SHORTEST and skipped:
        short = replace(skipped[0], text=trim(skipped[0].text, 2 * left))
        left, unfit = _whole([short], left, 0, chosen, count)
        chosen.whole = [] if unfit else skipped[:1]
    return chosen, _upgrade(chosen, left, count)


def _whole(ranked: Sequence[Line], room: int, reserve: int, chosen: Chosen, count: Count) -> tuple[int, list[Line]]:
    """Puts in whole lines as long as the reserve is not touched; the tokens left and the lines that had no room."""
    left = room
    skipped: list[Line] = []
    for line in ranked:
        enough = left - reserve > NUMBER and len(line.text) < 8 * left and not line.is_name
        cost = count(line.text) + NUMBER if enough else left + 1
        if cost <= left - reserve:
            chosen.lines.append(line)
            left -= cost
        else:
            skipped.append(line)
    return left, skipped


def _names(ranked: Sequence[Line], left: int, chosen: Chosen, count: Count) -> int:
    """Puts in names, the weightiest first; the more room a kind has taken, the less its next one weighs."""
    queues: dict[str, list[Line]] = {}
    for line in reversed(ranked):
        if line.brief:
            queues.setdefault(line.kind, []).append(line)
    spent = dict.fromkeys(queues, 0)
    while queues and left > 0:
        kind = max(queues, key=lambda kind: queues[kind][-1].weight / (1 + spent[kind] / CROWD))
        line = queues[kind].pop()
        if not queues[kind]:
            del queues[kind]
        price = count(f"{line.brief}, ") + (0 if spent[kind] else NUMBER)
        if price <= left:
            chosen.names.append(line)
            spent[kind] += price
            left -= price
    return left


def _upgrade(chosen: Chosen, left: int, count: Count) -> int:
    """Names become whole lines while there is room; the tokens left."""
    names: list[Line] = []
    for line in chosen.names:
        more = count(line.text) + NUMBER - count(f"{line.brief}, ") if left > NUMBER and not line.is_name else left + 1
        if more <= left:
            chosen.lines.append(line)
            left -= more
        else:
            names.append(line)
    chosen.names = names
    return left


@dataclass(slots=True)
class Page:
    """A summary being filled."""

    count: Count
    chosen: dict[str, Chosen] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n".join(text for chosen in self.chosen.values() for text in chosen.texts())

    def fill(self, drafts: Mapping[str, Sequence[Line]], budget: int) -> int:
        """Puts in what fits, by share; Critical Context last, what is said by then left out. The tokens left."""
        shared = rooms(drafts, budget)
        left = budget - sum(shared.values())
        modest = sorted(shared, key=lambda name: (name == CRITICAL, wants(drafts[name]) / max(shared[name], 1)))
        for name in modest:
            lines = drafts[name]
            if name == CRITICAL:
                told = self.text
                lines = [line for line in lines if not line.value or line.value not in told]
            left = self._add(name, lines, shared[name] + left)
        return left

    def _add(self, name: str, lines: Sequence[Line], room: int) -> int:
        in_full = IN_FULL if room > AMPLE else IN_FULL * 2 / 3
        if name == FILES:
            in_full = IN_FULL / 4 if room > AMPLE else IN_FULL / 8
        shorten = name not in self.chosen
        known = self.chosen.setdefault(name, Chosen())
        found, left = choose(lines, room, self.count, in_full, shorten=shorten)
        known.lines += found.lines
        known.names += found.names
        known.whole += found.whole
        return left

    def rest(self, drafts: Mapping[str, Sequence[Line]]) -> dict[str, list[Line]]:
        """What has not been put in."""
        found: dict[str, list[Line]] = {}
        for name, lines in drafts.items():
            here = self.chosen.get(name, Chosen())
            taken = {id(line) for line in (*here.lines, *here.names, *here.whole)}
            found[name] = [line for line in lines if id(line) not in taken]
        return found

    def left_out(self, drafts: Mapping[str, Sequence[Line]]) -> int:
        """How many lines were not put in, of those that say something of their own."""
        told = self.text
        lines = (line for lines in self.rest(drafts).values() for line in lines)
        return sum(not line.is_name and not (line.value and line.value in told) for line in lines)

    def drop(self, tokens: int) -> bool:
        """Takes out the least important lines, so many tokens' worth; whether there were any."""
        order = [
            (line.weight * SHARES[name], name, line)
            for name, chosen in self.chosen.items()
            for line in (*chosen.lines, *chosen.names)
        ]
        for _, name, line in sorted(order, key=lambda entry: entry[0]):
            chosen = self.chosen[name]
            (chosen.lines if line in chosen.lines else chosen.names).remove(line)
            tokens -= self.count(line.text) + NUMBER
            if tokens <= 0:
                break
        return bool(order)
