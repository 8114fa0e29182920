"""Facts that later summaries must not lose, though the messages that stated them are long gone.

Decisions, what the user named or wants remembered, figures, commands, and the errors of the last third. They are no
second summary: those that the next one lacks are added to it, as far as there is room.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from everthread.core.decisions import reasoned, statements, taken_back
from everthread.core.facts import COMMAND, DECISION, FIGURE, NOTE, Fact
from everthread.core.figures import shape
from everthread.core.mentions import ERROR, HASH, IDENTIFIER, PATH, URL, VALUE

MOST = {DECISION: 80, ERROR: 160, FIGURE: 120, COMMAND: 200, NOTE: 60}
"""So many facts of a kind are held on to; of names of all kinds `NAMES`."""
NAMES = 240
AGED = 0.95
"""What a fact weighs after each compaction, of what it weighed before."""
LATE = 0.6
"""Errors before this part of the thread are past."""
TWINS = 3.0
"""What it adds to a name's weight that the user told it apart from one that looks like it."""
DECIDED = 10.0
"""What a statement weighs that took back a decision."""
MOST_GONE = 60
_NAMED = frozenset({NOTE, IDENTIFIER, HASH, URL, VALUE, PATH})

Spoken = Sequence[tuple[int, str]]
"""What the user said, each with its place in the thread."""


@dataclass(frozen=True, slots=True)
class Carried:
    facts: tuple[Fact, ...]
    gone: tuple[str, ...]
    """Decisions that were taken back, in their words: a summary that still tells one says so."""


def carry(known: Sequence[Fact], new: Sequence[Fact], spoken: Spoken, gone: Sequence[str], size: int) -> Carried:
    """What to hold on to, the weightiest first. `size`: how many messages the thread has; `where` counts in them."""
    facts = {_key(fact): replace(fact, weight=round(fact.weight * AGED, 4)) for fact in known}
    for fact in new:
        if fact.kind == FIGURE:
            facts[_key(fact)] = _again(facts.get(_key(fact)), fact)
        elif fact.kind == DECISION:
            if fact.by_user or reasoned(fact.value):
                facts[_key(fact)] = fact
        elif fact.kind == COMMAND or (fact.held and not fact.by_user):
            facts[_key(fact)] = fact
        elif fact.by_user and fact.kind in _NAMED:
            facts[_key(fact)] = replace(fact, weight=fact.weight * TWINS) if fact.held else fact
    for fact in _telling(new):
        facts[_key(fact)] = fact
    settled = [fact for fact in facts.values() if fact.kind == DECISION]
    again = {fact.value for fact in new if fact.kind == DECISION}
    holding, past = _settled(
        sorted(settled, key=lambda fact: fact.where), spoken, [text for text in gone if text not in again]
    )
    others = [
        fact
        for fact in facts.values()
        if fact.kind != DECISION and not (fact.kind == ERROR and fact.where < LATE * size)
    ]
    return Carried(tuple(_most([*holding, *others])), tuple(past[-MOST_GONE:]))


def _key(fact: Fact) -> tuple[str, str]:
    """Figures that are told in the same words are one: the last is what counts."""
    return fact.kind, shape(fact.value) if fact.kind == FIGURE else fact.value


def _again(before: Fact | None, fact: Fact) -> Fact:
    """A figure; what comes again and again is routine and weighs less each time."""
    times = 1 + (before.mentions if before and before.value != fact.value else 0)
    return replace(fact, mentions=times, weight=round(fact.weight / times, 4))


def _most(facts: Sequence[Fact]) -> list[Fact]:
    """The weightiest first, of each kind so many."""
    left = Counter(MOST | {"": NAMES})
    kept = []
    for fact in sorted(facts, key=lambda fact: -fact.weight):
        group = fact.kind if fact.kind in MOST else ""
        if left[group] > 0:
            left[group] -= 1
            kept.append(fact)
    return kept


def _settled(decisions: Sequence[Fact], spoken: Spoken, gone: Sequence[str]) -> tuple[list[Fact], list[str]]:
    """The decisions that hold after all the user said, and the texts of those that do not."""
    holding = [fact for fact in decisions if fact.value not in gone]
    past = list(gone)
    for place, said in spoken:
        for statement in statements(said):
            before = [fact for fact in holding if fact.where <= place]
            lost = [before[number].value for number in taken_back(statement, [fact.value for fact in before])]
            holding = [fact for fact in holding if fact.value not in lost]
            past += lost
            new = all(statement.text not in fact.value for fact in holding) and statement.text not in past
            if new and (lost or taken_back(statement, past)):
                holding.append(Fact(DECISION, statement.text, DECIDED, place, by_user=True))
    return holding, list(dict.fromkeys(past))


def _telling(facts: Sequence[Fact]) -> Iterable[Fact]:
    """Of each message's errors the first that says best what went wrong, not only that something did."""
    first: dict[int, Fact] = {}
    for fact in facts:
        if fact.kind == ERROR and (fact.where not in first or _says(fact.value) > _says(first[fact.where].value)):
            first[fact.where] = fact
    return first.values()


def _says(error: str) -> int:
    """How much a line says: the error's name and text, some text, or a bare count."""
    return 0 if _COUNT.search(error) else 2 if _NAMED_ERROR.search(error) else 1


_COUNT = re.compile(r"\b\d+ (?:failed|failures?|errors?)\b|\bexit|^\W*(?:FAILED|FAIL)\b", re.IGNORECASE)
_NAMED_ERROR = re.compile(r"(?:Error|Exception|\b[Ee]rror\b.{0,12}|ERROR|FATAL|fatal):? .{8}")
