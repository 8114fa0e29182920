"""Check a model's summary against its sources, and mark the lines that no source supports.

A name (URL, path, hash, identifier, quoted error) is known if a source holds it. A figure is only meaningful together
with the thing it measures: it counts as found if a source has it beside its unit or name ("3 failed", "line 82"), or
near half of the other words of its sentence. A known name, figure or negation is still marked if the closest statement
of the sources contradicts it (`contradictions`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from everthread.compaction.summary.sections import Sections
from everthread.compaction.verification.checkable_names import (
    ERROR_KIND,
    HASH_KIND,
    CheckableName,
)
from everthread.compaction.verification.claims import (
    Claim,
    ClaimedFigure,
    is_meaningful_word,
    read_claims,
)
from everthread.compaction.verification.contradictions import (
    count_contradictions,
)
from everthread.compaction.verification.source_index import (
    SourceIndex,
    list_tokens,
)
from everthread.core.json_values import iterate_strings
from everthread.core.messages import Message, calls_of, results_of, text_of
from everthread.core.search.word_forms import choose_stop_words
from everthread.core.summary_marks import without_summary

UNVERIFIED_MARK = "(unverified)"
REFUSED_SHARE = 0.25
"""A summary is refused if more than this share of its checked names is unverified."""
MIN_REFUSED_NAMES = 3
"""A summary is refused only if it has at least this many unverified names."""


def join_sources(messages: Iterable[Message], earlier_summary: str) -> str:
    """Return the text of all sources.

    Lines of an earlier summary that are marked as unverified are left out, so that they are marked again if repeated.
    """
    verified = "\n".join(
        line for line in earlier_summary.split("\n") if not line.endswith(UNVERIFIED_MARK)
    )
    messages_without_summaries = (
        remainder for message in messages if (remainder := without_summary(message)) is not None
    )
    return "\n".join([verified, *map(_join_message_texts, messages_without_summaries)])


def _join_message_texts(message: Message) -> str:
    """Return all text of a message: its own, its calls and its results."""
    parts = [text_of(message)]
    for call in calls_of(message):
        parts.append(call.name)
        if "\\" in call.arguments:
            parts += iterate_strings(call.parsed, with_keys=True)
        else:
            parts.append(call.arguments)
    return "\n".join([*parts, *(result.text for result in results_of(message))])


@dataclass(frozen=True, slots=True)
class MarkedSections:
    """The sections of a summary, in which each line that no source supports is marked."""

    sections: Sections
    checked_count: int
    """The number of names and figures that were looked up in the sources."""
    unverified_count: int
    """The number of them that no source confirms."""

    @property
    def should_be_refused(self) -> bool:
        """Whether too much of the summary is unverified to use it."""
        return (
            self.unverified_count >= MIN_REFUSED_NAMES
            and self.unverified_count > REFUSED_SHARE * self.checked_count
        )


def mark_sections(sections: Mapping[str, str], sources: str) -> MarkedSections:
    """Mark each line that no source supports."""
    checker = _LineChecker(sources, "\n".join(sections.values()))
    marked_sections = {
        name: "\n".join(map(checker.mark_line, text.split("\n"))) for name, text in sections.items()
    }
    return MarkedSections(marked_sections, checker.checked_count, checker.unknown_count)


class _LineChecker:
    """A checker for the lines of a summary."""

    def __init__(self, sources: str, summary: str) -> None:
        self._sources = sources
        tokens = list_tokens(summary)
        self._stop_words = choose_stop_words(tokens)
        words = {token for token in tokens if is_meaningful_word(token, self._stop_words)}
        self._index = SourceIndex(sources, words, self._stop_words)
        self._is_known_by_name: dict[str, bool] = {}
        self.checked_count = 0
        self.unknown_count = 0

    def mark_line(self, line: str) -> str:
        """Return the line, with a mark at its end if the sources do not support it."""
        body = line.rstrip().removesuffix(UNVERIFIED_MARK).rstrip()
        if line.startswith("#") or not body:
            return line
        unknown_count = 0
        for claim in read_claims(body, self._stop_words):
            self.checked_count += len(claim.names) + len(claim.figures)
            missing_count = sum(not self._is_known(name) for name in claim.names)
            missing_count += sum(not self._is_found(figure, claim) for figure in claim.figures)
            unknown_count += missing_count or count_contradictions(claim, self._index)
        self.unknown_count += unknown_count
        return f"{body} {UNVERIFIED_MARK}" if unknown_count else line

    def _is_known(self, name: CheckableName) -> bool:
        """Return whether the sources hold the name. Each name is looked up once."""
        if name.value not in self._is_known_by_name:
            self._is_known_by_name[name.value] = self._is_in_sources(name)
        return self._is_known_by_name[name.value]

    def _is_in_sources(self, name: CheckableName) -> bool:
        """Return whether the sources hold the name, not only as part of a longer name. A hash may be shortened."""
        source_text = self._sources
        start = source_text.find(name.value)
        while start >= 0:
            end = start + len(name.value)
            if name.kind == ERROR_KIND or not (
                _is_name_char(source_text, start - 1)
                or (name.kind != HASH_KIND and _is_name_char(source_text, end))
            ):
                return True
            start = source_text.find(name.value, start + 1)
        return False

    def _is_found(self, figure: ClaimedFigure, claim: Claim) -> bool:
        """Return whether a source has the figure beside its unit or name, or near half of the claim's other words."""
        segments = self._index.find_segments(figure.value)
        if not segments:
            return False
        if any(self._index.is_beside(figure.value, word) for word in figure.adjacent_words):
            return True
        statements = self._index.find_statements(figure.value)
        if any(
            statements & self._index.find_statements_naming(name) for name in figure.nearby_names
        ):
            return True
        nearby_segments = [self._index.find_segments_near_word(word) for word in claim.words]
        nearby_segments += [self._index.find_segments_near_name(name.value) for name in claim.names]
        counts_by_segment = Counter(
            segment
            for segments_near_one in nearby_segments
            for segment in segments_near_one & segments
        )
        return not nearby_segments or 2 * max(counts_by_segment.values(), default=0) >= len(
            nearby_segments
        )


def _is_name_char(text: str, index: int) -> bool:
    """Return whether the character at this index continues a name. A character of an escape (`\\n`) does not."""
    char = text[index] if 0 <= index < len(text) else ""
    return (
        char.isascii()
        and (char.isalnum() or char == "_")
        and (index == 0 or text[index - 1] != "\\")
    )
