"""Facts that later summaries must not lose, though the messages that stated them are long gone.

Decisions, what the user named, and the errors of the last third. They are no second summary: those that the next one
lacks are added to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from everthread.core.facts import DECISION, Fact
from everthread.core.mentions import ERROR, HASH, IDENTIFIER, URL, VALUE
from everthread.core.terms import query_terms

MOST = 400
AGED = 0.95
"""What a fact weighs after each compaction, of what it weighed before."""
SAME = 0.4
"""A decision was spoken of again where so many of its terms come up, and at least two."""
_NAMED = frozenset({IDENTIFIER, HASH, URL, VALUE})

Spoken = Sequence[tuple[int, str]]
"""What the user said, each with its place in the thread."""


def carry(known: Sequence[Fact], new: Sequence[Fact], spoken: Spoken, size: int) -> tuple[Fact, ...]:
    """What to hold on to, the weightiest first. `size`: how many messages the thread has; `where` counts in them."""
    facts = {(fact.kind, fact.value): replace(fact, weight=round(fact.weight * AGED, 4)) for fact in known}
    for fact in new:
        if fact.kind == DECISION or (fact.by_user and fact.kind in _NAMED):
            facts[fact.kind, fact.value] = fact
    for fact in _telling(new):
        facts[fact.kind, fact.value] = fact
    terms = [(place, frozenset(query_terms(said))) for place, said in spoken]
    kept = (
        fact
        for fact in facts.values()
        if not (fact.kind == ERROR and 5 * fact.where < 3 * size)
        and not (fact.kind == DECISION and _spoken_of_again(fact, terms))
    )
    return tuple(sorted(kept, key=lambda fact: -fact.weight)[:MOST])


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


def _spoken_of_again(decision: Fact, spoken: Sequence[tuple[int, frozenset[str]]]) -> bool:
    """Whether the user came back to it: it may hold no longer, and whoever writes the summary has read why."""
    own = {term for term in query_terms(decision.value) if len(term) > 3 or not term.isascii()}
    return any(place > decision.where and len(own & later) >= max(2, SAME * len(own)) for place, later in spoken)
