"""Split a line of a summary into claims: its sentences, each with its names, its figures and its other words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from everthread.compaction.summary.sentences import split_sentences
from everthread.compaction.verification.checkable_names import (
    CheckableName,
    find_checkable_names,
)
from everthread.compaction.verification.source_index import (
    FIGURE_PATTERN,
    list_tokens,
    normalize_figure,
    read_tokens,
)

MAX_FIGURES = 12
"""Maximum figures of a sentence to check."""
MAX_SENTENCE_CHARS = 1_000
"""A longer sentence is not checked, because it is a list or a table."""
MAX_NAME_DISTANCE_CHARS = 10
"""A name belongs to a figure if at most this many characters are between them: "`save()` (line 82)"."""
_NUMBERING_PATTERN = re.compile(r"^\s*(?:[-*•]\s+)?(?:\d{1,4}[.)]\s+|\[\d[^\]]{0,40}\]\s*)?")
_ACTION_PATTERN = re.compile(r"^(?:[A-Z]{2,}\b[ ,/&+-]*){1,3}")
"""The word in capitals that begins a line of Completed Actions."""
_TOOL_NOTE_PATTERN = re.compile(r"\[tools?: [^\]\n]{1,80}\]")
_COMMAND_PATTERN = re.compile(r"`[^`\n]*\s[^`\n]*`")
_FIGURE_WITH_UNIT_PATTERN = re.compile(
    rf"(?<![\w.,:/#~≈-])(?:[$€£¥]\s?)?({FIGURE_PATTERN.pattern})(?:\s?(?:%|‰|°[CF])|[a-zA-Zµ]{{1,3}}\b)?(?![\w/:-])"
)


@dataclass(frozen=True, slots=True)
class ClaimedFigure:
    """A figure with the words right before and after it, and the names close to it."""

    value: str
    adjacent_words: tuple[str, ...]
    nearby_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence of a summary."""

    text: str
    words: Mapping[str, bool]
    """Each word that is not part of a name or a command, and whether it is negated."""
    names: tuple[CheckableName, ...]
    figures: tuple[ClaimedFigure, ...]


def read_claims(line: str, stop_words: Set[str]) -> Iterator[Claim]:
    """Yield the sentences of a line, without its numbering, its action word and the tool it names."""
    body = _TOOL_NOTE_PATTERN.sub(
        " ", _ACTION_PATTERN.sub("", _NUMBERING_PATTERN.sub("", line, count=1))
    )
    for sentence in split_sentences(body):
        text = body[sentence.start : sentence.end].strip()
        names = tuple(find_checkable_names(text))
        text_without_names = _blank_names(text, names)
        spans = [
            *((name.start, name.end) for name in names),
            *(match.span() for match in _COMMAND_PATTERN.finditer(text)),
        ]
        yield Claim(
            text,
            _find_words(text, spans, stop_words),
            names,
            _find_figures(text_without_names, names, stop_words),
        )


def is_meaningful_word(token: str, stop_words: Set[str]) -> bool:
    """Return whether a token is a word with meaning, not a figure or a stop word."""
    return not token[0].isdigit() and token not in stop_words


def _find_words(
    text: str, spans: Sequence[tuple[int, int]], stop_words: Set[str]
) -> dict[str, bool]:
    """Return the words of a sentence outside these spans, and whether each is negated."""
    skipped = bytearray(2 * len(text))  # a text can grow when its case is folded
    for start, end in spans:
        skipped[start:end] = b"\1" * (end - start)
    words: dict[str, bool] = {}
    for token in read_tokens(text.casefold(), stop_words):
        if not skipped[token.start] and is_meaningful_word(token.text, stop_words):
            words.setdefault(token.text, token.is_negated)
    return words


def _find_figures(
    text: str, names: Sequence[CheckableName], stop_words: Set[str]
) -> tuple[ClaimedFigure, ...]:
    """Return the meaningful figures: all except single digits without a word or a name beside them."""
    if len(text) > MAX_SENTENCE_CHARS:
        return ()
    figures = []
    for match in _FIGURE_WITH_UNIT_PATTERN.finditer(text):
        words_before = [
            token
            for token in list_tokens(text[: match.start()])[-2:]
            if is_meaningful_word(token, stop_words)
        ]
        words_after = [
            token
            for token in list_tokens(text[match.end(1) :])[:2]
            if is_meaningful_word(token, stop_words)
        ]
        beside = (*words_before[-1:], *words_after[:1])
        close_names = [
            name.value
            for name in names
            if match.start() - MAX_NAME_DISTANCE_CHARS <= name.end
            and name.start <= match.end() + MAX_NAME_DISTANCE_CHARS
        ]
        if beside or close_names or len(match[1]) > 1:
            figures.append(ClaimedFigure(normalize_figure(match[1]), beside, tuple(close_names)))
    return tuple(figures[:MAX_FIGURES])


def _blank_names(text: str, names: Sequence[CheckableName]) -> str:
    """Replace the names in the text by blanks, so that all other text keeps its position."""
    parts: list[str] = []
    position = 0
    for name in names:
        parts += (text[position : name.start], " " * len(name.value))
        position = name.end
    return "".join([*parts, text[position:]])
