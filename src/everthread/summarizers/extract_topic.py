"""Whether texts are about the same: by the terms they share, whatever the language."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from everthread.core.terms import query_terms
from everthread.core.wording import LATIN, candidates, wording
from everthread.summarizers.extract_lines import Line, once
from everthread.summarizers.extract_reading import Story
from everthread.summarizers.extract_text import pieces, trim

_MIN = 0.5
"""A text is about a topic when it holds so many of its terms."""


@functools.lru_cache(maxsize=4096)
def subject(text: str) -> frozenset[str]:
    """The terms that say what a text is about: no function words; plural and inflection mostly aside."""
    text = text[:1_000]
    languages = candidates(text)
    if len(languages) == 1:
        return wording(languages[0]).subject(text)
    return frozenset(_stem(term) for term in query_terms(text) if not _is_filler(term))


def shared(text: str, other: str) -> float:
    """How many terms two texts are both about; a pair of characters is half a word."""
    return sum(1.0 if term.isascii() else 0.5 for term in subject(text) & subject(other))


def _is_filler(term: str) -> bool:
    return term.isascii() and ((len(term) < 3 and not term.isdigit()) or term in _fillers())


@functools.cache
def _fillers() -> frozenset[str]:
    texts = (f"{wording(code).words.source}|{wording(code).filler.source}" for code in LATIN)
    return frozenset(word.strip("\\b(?:)") for text in texts for word in text.split("|"))


def _stem(term: str) -> str:
    """The word without its ending, roughly: `locks` and `locking`, `evicts` and `eviction` are the same."""
    if not term.isalpha() or not term.isascii():
        return term
    bare = _ENDING.sub("", term)
    return bare[: max(5, len(bare) - 3)] if len(bare) > 7 else bare


_ENDING = re.compile(r"(?<=\w{4})(?:ings?|ed|ers?|es|s|en|e)$")


def overlap(text: str, other: str) -> float:
    """Which share of what the text is about the other one is about as well."""
    own = subject(text)
    return len(own & subject(other)) / len(own) if own else 0.0


@dataclass(frozen=True, slots=True)
class Topic:
    """What a summary shall tell in full: the topic's terms, and the messages of the turns that are about it."""

    terms: frozenset[str]
    places: frozenset[int]

    def takes(self, line: Line) -> bool:
        """Whether the line is about the topic, by its words or by where it comes from."""
        return int(line.order) in self.places or self.names(f"{line.text} {line.about}")

    def names(self, text: str) -> bool:
        return len(self.terms & subject(text)) >= max(1, _MIN * len(self.terms))


def topic_of(focus: str, story: Story) -> Topic | None:
    """The topic a user named; None where its words say nothing."""
    terms = subject(focus)
    if not terms:
        return None
    topic = Topic(terms, frozenset())
    turns = (
        range(episode.start, episode.end)
        for episode in story.episodes
        if topic.names(episode.ask) or topic.names(episode.answer)
    )
    return Topic(terms, frozenset(place for turn in turns for place in turn))


def topic_lines(topic: Topic, story: Story) -> list[Line]:
    """What was said about the topic, sentence by sentence: told in full."""
    lines: list[Line] = []
    for where, text in enumerate(story.said):
        if not text:
            continue
        who, weight = ("User", 6.0) if story.by_user[where] else ("Assistant", 4.0)
        for place, piece in enumerate(pieces(text)):
            if len(piece) > 15 and (where in topic.places or topic.names(piece)):
                worth = weight * (1.5 if topic.names(piece) else 1.0) * story.recency(where)
                lines.append(Line(f"{who}: {trim(piece, 400)}", worth, where + place / 1e4, value=piece[:60]))
    return once(lines)
