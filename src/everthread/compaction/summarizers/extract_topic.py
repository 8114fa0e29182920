"""A topic the user named: which turns and lines are about it, and what was said about it."""

from __future__ import annotations

from dataclasses import dataclass

from everthread.compaction.summarizers.extract_lines import Line, once
from everthread.compaction.summarizers.extract_reading import Story
from everthread.compaction.summarizers.extract_text import pieces, trim
from everthread.core.topics import subject

_MIN = 0.5
"""A text is about a topic when it holds so many of its terms."""


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
