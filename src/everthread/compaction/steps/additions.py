"""Facts a summary lacks, as lines that are added to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from everthread.compaction.steps.verify import beginning
from everthread.core.facts import COMMAND, DECISION, FIGURE, NOTE, Fact
from everthread.core.mentions import ERROR

LONGEST = 330
"""Characters of a fact."""
LONGEST_ERROR = 170
NAMED, OTHER = "named", "other"
SHARES = {DECISION: 8.0, NOTE: 6.0, ERROR: 16.0, NAMED: 4.0, FIGURE: 4.0, COMMAND: 2.5, OTHER: 0.2}
"""How the room is shared while all have facts."""


class Additions:
    """Lines within so many tokens. What needs no line of its own shares one with others of its kind."""

    def __init__(self, room: int, count: Callable[[str], int]) -> None:
        self.room = room
        self.decisions: list[str] = []
        self.added = 0
        self._lines: list[str] = []
        self._grouped: dict[str, list[str]] = {}
        self._told = ""
        self._count = count

    def share_out(self, facts: Iterable[Fact]) -> None:
        """Adds facts, the first of each group first; every group gets its share as long as it has facts."""
        queues: dict[str, list[Fact]] = {}
        for fact in facts:
            queues.setdefault(group_of(fact), []).append(fact)
        spent = dict.fromkeys(queues, 0.0)
        waiting = {group: iter(found) for group, found in queues.items()}
        while waiting:
            group = min(waiting, key=lambda name: spent[name] / SHARES[name])
            following = next(waiting[group], None)
            if following is None:
                del waiting[group]
            else:
                spent[group] += self.add(following)

    def add(self, fact: Fact) -> int:
        """Puts a fact in if it fits and is not told by now; the tokens it takes."""
        told = beginning(fact) if fact.kind == COMMAND else _BARE.sub("", fact.quote or fact.value)
        told = told[: LONGEST_ERROR if fact.kind == ERROR else LONGEST]
        if self.room < MIN or fact.value in self._told or told in self._told:
            return 0
        alone = fact.kind in (DECISION, NOTE, FIGURE) or fact.quote != ""
        cost = (
            self._count(f"- {told}" if alone else f"{told}, ") + 1 + (0 if alone or fact.kind in self._grouped else 4)
        )
        if cost > self.room:
            return 0
        self.room -= cost
        self.added += 1
        self._told += f"\n{told}"
        if alone:
            (self.decisions if fact.kind == DECISION else self._lines).append(f"- {told}")
        else:
            self._grouped.setdefault(fact.kind, []).append(told)
        return cost

    @property
    def lines(self) -> list[str]:
        """Those that are no decisions."""
        grouped = (
            f"- errors: {' | '.join(values)}" if kind == ERROR else f"- {kind}: {', '.join(values)}"
            for kind, values in self._grouped.items()
        )
        return [*self._lines, *grouped]


_BARE = re.compile(r"^E {2,}")
"""What a test runner writes before an error."""
MIN = 4
"""With fewer tokens left nothing is tried."""


def group_of(fact: Fact) -> str:
    return fact.kind if fact.kind in SHARES else NAMED if fact.by_user or fact.held else OTHER
