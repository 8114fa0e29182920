"""Which messages of the middle matter most, and their words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everthread.core.facts import DECISION, NOTE, RULE, Fact, MessageFacts
from everthread.core.mentions import ERROR
from everthread.core.messages import Message, text_of
from everthread.core.transcript import user_text

HEADING = "Quoted from earlier messages:"
EXCERPT = 360
"""Characters of one quote."""
SHORT = 15
"""So few characters say nothing."""
LEAST = 6.0
"""A message with a lower score says nothing that must be quoted."""
LIKE = 40
"""So many characters at both ends tell a text."""
"""How much more a message is worth that brought back what an earlier compaction had taken out."""
KINDS = {RULE: 3.0, DECISION: 3.0, NOTE: 2.0, ERROR: 1.5}


def scores(found: Sequence[MessageFacts], ranked: Sequence[Fact]) -> list[float]:
    """A score for each message: what it states, weighed by how that ranks in the whole conversation.

    A fact that later messages come back to counts once, for the message that was first to state it.
    """
    weight = {(fact.kind, fact.value): fact.weight for fact in ranked}
    seen: set[tuple[str, str]] = set()
    result: list[float] = []
    for facts in found:
        total = 8.0 * len(facts.rules)
        for fact in facts.facts:
            key = (fact.kind, fact.value)
            if key not in seen:
                seen.add(key)
                total += weight.get(key, 0.0) * KINDS.get(fact.kind, 1.0)
        result.append(total)
    return result


@dataclass(frozen=True, slots=True)
class Quote:
    """A message worth quoting."""

    place: int
    said: str
    """Its words, on one line."""
    line: str
    """As it is quoted."""


def worth_quoting(
    messages: Sequence[Message],
    ids: Sequence[int],
    points: Sequence[float],
    found: Sequence[MessageFacts],
) -> list[Quote]:
    """The messages that matter, the best first: the user's words, and the assistant's that settle something."""
    weighed: list[tuple[float, Quote]] = []
    for place, message in enumerate(messages):
        role = message.get("role")
        settles = role == "assistant" and any(fact.kind == DECISION for fact in found[place].facts)
        text = user_text(message) if role == "user" else text_of(message) if settles else ""
        said = " ".join(text.split())
        if len(said) > SHORT and points[place] >= LEAST:
            text = said if len(said) <= EXCERPT else f"{said[: EXCERPT - 60].rstrip()} … {said[-50:].lstrip()}"
            weight = points[place] * (3.0 if role == "user" else 1.0)
            weighed.append((weight, Quote(place, said, f"> #{ids[place]} {role}: {text}")))
    return [quote for _, quote in sorted(weighed, key=lambda entry: -entry[0])]


def quotes(candidates: Sequence[Quote], told: str, room: int, count: Callable[[str], int]) -> str:
    """The best messages that are not told already, in order, within so many tokens."""
    known = " ".join(told.split())
    chosen: list[Quote] = []
    left = room - count(HEADING)
    for quote in candidates:
        cost = count(quote.line) + 1
        if cost <= left and not _is_told(quote.said, known):
            left -= cost
            chosen.append(quote)
    in_order = sorted(chosen, key=lambda quote: quote.place)
    return "\n".join([HEADING, *(quote.line for quote in in_order)]) if chosen else ""


def _is_told(said: str, known: str) -> bool:
    """Whether a text holds a message's beginning and end, give or take a few words."""
    return said[:LIKE].rstrip() in known and said[-LIKE:].lstrip() in known
