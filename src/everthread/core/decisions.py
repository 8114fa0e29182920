"""What was settled in a conversation, with the why, and what was taken back later.

A decision is a sentence, together with those beside it that belong to it: the reason, or what it replaces. The user
settles things in many words, so a user's text is read more generously than an assistant's. How all this is worded is
data (`data/rules/<language>.toml`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everthread.core.sentences import Sentence, joined, sentences
from everthread.core.topics import subject, weight
from everthread.core.wording import LANGUAGES, Wording, candidates, wording

MOST = 320
"""Characters of a decision with its why."""
LONGEST = 200
"""Characters of a sentence that settles something without one of the usual words for it: a longer one tells a story."""
READ = 4_000
"""Characters of a user's message in which decisions are looked for: who settles something says so soon."""
SUPERSEDED = "(superseded later)"
"""Ends a line that tells a decision which holds no longer."""
WORDS, CHARACTERS = 2.0, 1.0
"""So many words must be shared for two texts to be about the same; less where a word is two characters."""
SOME, MUCH = 0.37, 0.6
"""So much of what a decision was about must come up again: where words say that something changed, or none do."""
CLOSE = 0.7
"""Of the decisions a statement may take back, those count that share nearly as much with it as the closest does."""
_GOES_ON = (";", "；", ":", "：")


@dataclass(frozen=True, slots=True)
class Decision:
    """What was settled, in the words it was settled in."""

    text: str
    """With the sentences beside it that belong to it."""
    sentence: str
    retracts: bool = False
    """It says outright that something holds no longer."""
    revises: bool = False
    """It does so if what it speaks of was settled before."""


def decided(text: str) -> list[str]:
    """The sentences of anybody's text that settle something, outside of quotations and code."""
    lowered = text.lower()
    if not any(language.may_decide(lowered) for language in map(wording, LANGUAGES)):
        return []
    spoken = sentences(text)
    found = []
    for place, sentence in enumerate(spoken):
        if any(language.decides(sentence.masked) for language in _languages(sentence)):
            goes_on = sentence.text.endswith(_GOES_ON) and place + 1 < len(spoken)
            found.append(joined([part.text for part in spoken[place : place + 1 + goes_on]]))
    return found


def decided_by_user(text: str) -> list[Decision]:
    """What a user's text settles."""
    return [decision for decision in statements(text) if decision.retracts or _settles(decision.sentence)]


def reasoned(text: str) -> bool:
    """Whether a decision says why."""
    return any(wording(code).reasons.found(text) for code in candidates(text))


def told_in(text: str) -> list[str]:
    """The sentences with which a user tells something: no questions, no requests."""
    return [sentence.text for sentence in sentences(text) if not _asks(sentence) and not _requests(sentence)]


@functools.lru_cache(maxsize=1024)
def statements(text: str) -> tuple[Decision, ...]:
    """What a user's text settles, and what it says that may take back something settled before."""
    spoken = [sentence for sentence in sentences(text[:READ]) if not _asks(sentence)]
    return tuple(_statements(spoken))


def _statements(spoken: Sequence[Sentence]) -> Iterator[Decision]:
    done = -1
    for place, sentence in enumerate(spoken):
        if place <= done or len(sentence.text) > MOST:
            continue
        retracts, revises = _has(sentence, "retracts"), _has(sentence, "revises")
        if not (retracts or ((revises or _settles(sentence.masked)) and not _requests(sentence))):
            continue
        first, done = _span(spoken, place, revises=retracts or revises)
        parts = spoken[first : done + 1]
        yield Decision(
            joined([part.text for part in parts]),
            sentence.masked,
            retracts=retracts or any(_has(part, "retracts") for part in parts),
            revises=revises or any(_has(part, "revises") for part in parts),
        )


def _span(spoken: Sequence[Sentence], place: int, *, revises: bool) -> tuple[int, int]:
    """The first and last sentence that belong to the one at `place`: as long as it says no why of its own."""
    sentence = spoken[place]
    first = last = place
    room = MOST - len(sentence.text)
    open_end = sentence.text.endswith(_GOES_ON)
    if _has(sentence, "reasons") and not revises and not open_end:
        return first, last
    if (
        place + 1 < len(spoken)
        and len(spoken[place + 1].text) < room
        and (open_end or not _requests(spoken[place + 1]))
    ):
        last = place + 1
        room -= len(spoken[last].text) + 1
    if place and len(spoken[place - 1].text) < room and _gives_reason(spoken[place - 1]):
        first = place - 1
    return first, last


def _gives_reason(sentence: Sentence) -> bool:
    return not _requests(sentence) and any(_has(sentence, words) for words in ("reasons", "retracts", "revises"))


def _requests(sentence: Sentence) -> bool:
    """Whether it asks for work: that belongs to no decision."""
    return _has(sentence, "requests")


def _settles(masked: str) -> bool:
    languages = [wording(code) for code in candidates(masked)]
    if any(language.decisions.found(masked) for language in languages):
        return True
    return len(masked) <= LONGEST and any(language.settles.found(masked) for language in languages)


def _asks(sentence: Sentence) -> bool:
    return any(language.asks(sentence.masked.strip().replace("’", "'")) for language in _languages(sentence))


def _has(sentence: Sentence, words: str) -> bool:
    return any(getattr(language, words).found(sentence.masked) for language in _languages(sentence))


def _languages(sentence: Sentence) -> list[Wording]:
    return [wording(code) for code in candidates(sentence.masked)]


def taken_back(later: Decision, earlier: Sequence[str]) -> list[int]:
    """Which of the decisions that stood before a statement it takes back.

    Those that speak of the same as it does: the less outright it says that something changed, the more of it. Where
    none shares more than a word with an outright retraction, it means the one that shares most, the last of those.
    Where one shares clearly more than the others, it means that one: the others were settled in similar words, about
    something else.
    """
    found: dict[int, float] = {}
    best, most = -1, 0.0
    said = subject(later.text)
    for place, text in enumerate(earlier):
        own = subject(text)
        same = weight(own & said)
        if same <= 0 or text in later.text or later.text in text:
            continue
        if _means(later, own, same):
            found[place] = same
        elif same >= most:
            best, most = place, same
    if not found and later.retracts and most >= 1:
        return [best]
    closest = max(found.values(), default=0.0)
    return [place for place, same in found.items() if same >= CLOSE * closest]


def _means(later: Decision, own: frozenset[str], same: float) -> bool:
    """Whether a statement that shares so much with a decision is about what that settled."""
    whole = weight(own)
    enough = WORDS if all(map(str.isascii, own)) else CHARACTERS
    if later.retracts or later.revises:
        return same >= min(enough, whole) and same >= SOME * whole
    plain = frozenset(term for term in own if not any(map(str.isdigit, term)))
    return same >= enough and weight(plain) >= enough and same >= MUCH * whole
