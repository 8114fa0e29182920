"""Split a summary into sections and lines for a page, and find the source messages of each line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from everthread.core.secrets.redaction import redact
from everthread.gateway.dashboard.page_text import clean


@dataclass(frozen=True, slots=True)
class SummaryLine:
    """One line of a summary, with its text in pieces and the messages that it was taken from."""

    pieces: tuple[tuple[str, str], ...]
    """Pairs of a kind (`text`, `code` or `strong`) and a text."""
    is_item: bool
    sources: tuple[int, ...]
    """Ids of the messages."""


@dataclass(frozen=True, slots=True)
class SummarySection:
    """A heading of a summary and the lines below it."""

    name: str
    lines: tuple[SummaryLine, ...]


_HEADING_PATTERN = re.compile(r"#{1,4}[ \t]+(.+)")
_ITEM_PATTERN = re.compile(r"[ \t]*(?:[-*•]|\d{1,5}[.)])[ \t]+")
_MARKED_TEXT_PATTERN = re.compile(r"`([^`\n]{1,400})`|\*\*([^*\n]{1,400})\*\*")


def split_summary(text: str, sources: Sequence[tuple[int, str]] = ()) -> list[SummarySection]:
    """Split a summary into sections and lines, each line with the messages that share its rarest words."""
    line_sources = LineSources(sources)
    sections: list[tuple[str, list[SummaryLine]]] = []
    for raw_line in redact(text).split("\n"):
        line = clean(raw_line).rstrip()
        heading = _HEADING_PATTERN.fullmatch(line.strip())
        if heading:
            sections.append((heading[1].strip("*: "), []))
        elif line.strip():
            if not sections:
                sections.append(("", []))
            # The gateway wrote the text before the first heading.
            sources_of_line = line_sources.find(line) if sections[-1][0] else ()
            sections[-1][1].append(
                SummaryLine(
                    split_markup(line), _ITEM_PATTERN.match(line) is not None, sources_of_line
                )
            )
    return [SummarySection(name, tuple(lines)) for name, lines in sections]


def split_markup(line: str) -> tuple[tuple[str, str], ...]:
    """Split a line into `text`, `code` and `strong` pieces."""
    pieces: list[tuple[str, str]] = []
    position = 0
    for match in _MARKED_TEXT_PATTERN.finditer(line):
        pieces.append(("text", line[position : match.start()]))
        pieces.append(("code", match[1]) if match[1] is not None else ("strong", match[2]))
        position = match.end()
    return tuple(
        (kind, piece_text)
        for kind, piece_text in (*pieces, ("text", line[position:]))
        if piece_text
    )


class LineSources:
    """Finds the messages that a line may come from, because they contain several of its rarest words."""

    MAX_READ_CHARS = 6_000
    """Maximum characters read of each message."""
    MAX_SOURCES = 3

    def __init__(self, sources: Sequence[tuple[int, str]]) -> None:
        self._message_ids_by_word: dict[str, set[int]] = {}
        for message_id, text in sources:
            for word in set(_split_words(text[: self.MAX_READ_CHARS])):
                self._message_ids_by_word.setdefault(word, set()).add(message_id)

    def find(self, line: str) -> tuple[int, ...]:
        known_words = {word for word in _split_words(line) if word in self._message_ids_by_word}
        rarest_words = sorted(known_words, key=lambda word: len(self._message_ids_by_word[word]))
        weight_by_message_id: dict[int, float] = {}
        for word in rarest_words[:12]:
            message_ids = self._message_ids_by_word[word]
            if len(message_ids) > 40:
                break
            for message_id in message_ids:
                weight_by_message_id[message_id] = (
                    weight_by_message_id.get(message_id, 0.0) + 1.0 / len(message_ids) ** 2
                )
        ranked_sources = sorted(
            weight_by_message_id.items(), key=lambda source: (-source[1], source[0])
        )
        min_weight = max(0.2, 0.5 * ranked_sources[0][1]) if ranked_sources else 0.0
        best_sources = ranked_sources[: self.MAX_SOURCES]
        return tuple(
            sorted(message_id for message_id, weight in best_sources if weight >= min_weight)
        )


_WORD_PATTERN = re.compile(r"[^\W_][\w./-]{3,60}")


def _split_words(text: str) -> list[str]:
    return [word.strip("./-").lower() for word in _WORD_PATTERN.findall(text)]
