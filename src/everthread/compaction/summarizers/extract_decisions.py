"""Key Decisions with their why; one that a later word of the user takes back is no longer told as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everthread.compaction.summarizers.extract_lines import Line, Scale, once, recalled
from everthread.compaction.summarizers.extract_reading import Story
from everthread.compaction.summarizers.extract_text import trim
from everthread.core import decisions as core
from everthread.core.facts import DECISION


@dataclass(frozen=True, slots=True)
class Decision:
    """What was settled, in the words it was settled in."""

    text: str
    order: float
    by_user: bool
    holds: bool = True


def decisions(story: Story, previous: str) -> tuple[list[Decision], list[Decision]]:
    """The decisions that hold, and those a later one has taken back."""
    texts = recalled(previous)
    known = [
        Decision(text, place - len(texts), by_user=True, holds=not text.endswith(core.SUPERSEDED))
        for place, text in enumerate(texts)
    ]
    for where, facts in enumerate(story.facts):
        if story.by_user[where]:
            known = _heard(known, story.said[where], where)
        else:
            stated = (fact.value for fact in facts.facts if fact.kind == DECISION)
            known += (Decision(text, where, by_user=False) for text in stated if core.reasoned(text))
    return [decision for decision in known if decision.holds], [decision for decision in known if not decision.holds]


def _heard(known: list[Decision], said: str, where: int) -> list[Decision]:
    """The decisions after the user said something: what it takes back holds no longer, what it settles does."""
    settled = {decision.text for decision in core.decided_by_user(said)}
    for place, statement in enumerate(core.statements(said)):
        before = [decision.text for decision in known]
        gone = {number for number in core.taken_back(statement, before) if known[number].holds}
        known = [
            Decision(decision.text, decision.order, decision.by_user, decision.holds and number not in gone)
            for number, decision in enumerate(known)
        ]
        if gone or statement.text in settled:
            known.append(Decision(statement.text, where + place / 1e3, by_user=True))
    return known


def decision_lines(holding: Sequence[Decision], story: Story, scale: Scale) -> list[Line]:
    return once(_lines(holding, story, scale))


def _lines(holding: Sequence[Decision], story: Story, scale: Scale) -> Iterator[Line]:
    for decision in holding:
        worth = 3.0 if decision.by_user else 1.5
        worth *= story.recency(int(decision.order)) if decision.order >= 0 else 0.6
        yield Line(trim(decision.text, scale.decision), worth, decision.order)
