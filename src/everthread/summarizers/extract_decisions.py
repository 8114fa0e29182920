"""Key Decisions with their why; one that a later word takes back is no longer told as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everthread.core.facts import DECISION
from everthread.summarizers.extract_lines import Line, Scale, once, recalled
from everthread.summarizers.extract_reading import Story
from everthread.summarizers.extract_text import READ_CHARS, identity, joined, trim
from everthread.summarizers.extract_text import spoken as spoken_sentences
from everthread.summarizers.extract_topic import shared, subject
from everthread.summarizers.extract_wording import CHANGED_MIND, REASON, REVISES, SETTLES


@dataclass(frozen=True, slots=True)
class Decision:
    """What was settled, in the words it was settled in."""

    text: str
    sentence: str
    order: float
    by_user: bool
    revises: bool = False


def decisions(story: Story, previous: str) -> tuple[list[Decision], list[Decision]]:
    """The decisions that hold, and those a later one has taken back."""
    texts = recalled(previous)
    found = [Decision(text, text, place - len(texts), by_user=True) for place, text in enumerate(texts)]
    for where, facts in enumerate(story.facts):
        stated = [fact.value for fact in facts.facts if fact.kind == DECISION]
        by_user = story.by_user[where]
        said = story.said[where][:READ_CHARS]
        if stated or (by_user and (REVISES.search(said) or SETTLES.search(said))):
            found += _stated(story.said[where], stated, where, found, by_user=by_user)
    holding: list[Decision] = []
    gone: list[Decision] = []
    revising = [decision for decision in found if decision.revises]
    for decision in found:
        taken_back = any(_takes_back(later, decision) for later in revising if later.order > decision.order)
        (gone if taken_back else holding).append(decision)
    return holding, gone


def _stated(
    said: str, stated: Sequence[str], where: int, before: Sequence[Decision], *, by_user: bool
) -> Iterator[Decision]:
    """The decisions of one message, each with the sentence beside it that gives the reason."""
    spoken = [sentence.text for sentence in spoken_sentences(said)]
    known = {identity(text) for text in stated}
    used: set[int] = set()
    for place, sentence in enumerate(spoken):
        revises = REVISES.search(sentence) is not None
        settles = identity(sentence) in known or (by_user and SETTLES.search(sentence) is not None)
        if by_user and revises and not settles:
            settles = any(_shares(sentence, " ".join(spoken), decision) for decision in before)
        if not settles or place in used:
            continue
        span = [place]
        if sentence.endswith((";", "；", ":", "：")) and place + 1 < len(spoken):
            span.append(place + 1)
        elif not REASON.search(sentence):
            span += (near for near in (place - 1, place + 1) if 0 <= near < len(spoken) and _gives_reason(spoken[near]))
        elif revises and place + 1 < len(spoken):
            span.append(place + 1)
        used |= set(span)
        text = joined([spoken[near] for near in sorted(span)])
        yield Decision(
            text, sentence, where + place / 1e3, by_user, revises or any(REVISES.search(spoken[n]) for n in span)
        )


def _gives_reason(sentence: str) -> bool:
    return REASON.search(sentence) is not None or REVISES.search(sentence) is not None


def _shares(sentence: str, message: str, decision: Decision) -> bool:
    return shared(sentence, decision.sentence) >= 1 or shared(message, decision.sentence) >= 2


def _takes_back(later: Decision, earlier: Decision) -> bool:
    """Whether a later word revises this decision: it speaks of the same, and says that it is otherwise now."""
    if earlier.by_user and not later.by_user:
        return False
    enough = 1 if CHANGED_MIND.search(later.text) or len(subject(earlier.sentence)) <= 4 else 2
    return shared(later.text, earlier.sentence) >= enough


def decision_lines(holding: Sequence[Decision], story: Story, scale: Scale) -> list[Line]:
    lines = []
    for decision in holding:
        worth = 3.0 if decision.by_user else 1.5
        worth *= story.recency(int(decision.order)) if decision.order >= 0 else 0.6
        lines.append(Line(trim(decision.text, scale.decision), worth, decision.order))
    return once(lines)
