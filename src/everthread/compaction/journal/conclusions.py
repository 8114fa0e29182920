"""Pick the conclusions of a turn in few tokens: the most informative sentences, list items and table rows.

Statements with figures, hashes, paths or names in code quotes are kept first, and so are emphasised statements. A first
sentence without any of these, lines that only announce others, questions and the last sentence before calls are dropped
first. The choice depends on the shape of a line, so it works in any language.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from everthread.compaction.summary.sentences import (
    GAP,
    CountTokens,
    WordRarity,
    split_sentences,
    split_words,
)

LINE_SEPARATOR = " / "
"""Separates the lines of an answer that is shown on one line."""

SIGN_FACTOR = 2.0
"""The factor of a score for each sign of a conclusion: a figure or name, emphasis, the beginning of an answer."""
MAX_SEARCHED_CHARS = 400
"""Characters of a statement to search for figures and names."""

_LIST_ITEM_PATTERN = re.compile(r"(?:[-*•+]|\d{1,3}[.)]|[①-⑳])\s|\|")
_HEADING_PATTERN = re.compile(r"#{1,6}\s|\*\*[^*]{1,80}\*\*:?$")
_SPECIFIC_PATTERN = re.compile(r"\d|`[^`]{2,}`|\w/\w|[a-z][A-Z]|\w_\w|\w\.\w")
_COLONS = (":", "：")
_EMPHASIS = "**"


class Statement(NamedTuple):
    """A sentence of an answer, or a whole list item or table row."""

    line: int
    text: str
    follows_gap: bool
    """Whether something before it on its line was left out by an earlier compaction."""
    is_question: bool
    is_specific: bool
    """Whether it has a figure, a path or a name."""
    has_no_content: bool
    """Whether it only announces others, asks, or opens the answer."""
    words: tuple[str, ...]
    """The words of the statement, each once."""


class ScoredStatement(NamedTuple):
    """A statement with its score and its tokens."""

    statement: Statement
    score: float
    size: int


def score_statements(
    text: str, count: CountTokens, rarity: WordRarity, *, is_note: bool = False
) -> list[ScoredStatement]:
    """Return the statements of an answer, each with a score for its size.

    A statement that only announces others, or asks, has the score 0. `is_note`: whether calls follow the text;
    then its last sentence only announces them.
    """
    scored: list[ScoredStatement] = []
    for statement in split_statements(text):
        size = count(statement.text) + 3
        score = 0.0
        if not statement.has_no_content:
            word_score = rarity.score_words(statement.words) / math.pow(size + 4, 0.7)
            sign_count = statement.is_specific + (_EMPHASIS in statement.text)
            score = word_score * SIGN_FACTOR**sign_count
        scored.append(ScoredStatement(statement, score, size))
    if scored and is_note and not text.endswith(GAP):
        scored[-1] = scored[-1]._replace(score=0.0)
    if scored and not is_note and scored[0].statement.is_specific:
        scored[0] = scored[0]._replace(score=scored[0].score * SIGN_FACTOR)
    return scored


def count_specifics(text: str) -> int:
    """Return the number of figures, paths and names in a sentence, without the number of a list item."""
    mark = _LIST_ITEM_PATTERN.match(text)
    return len(_SPECIFIC_PATTERN.findall(text, mark.end() if mark else 0, MAX_SEARCHED_CHARS))


@lru_cache(maxsize=4_096)
def split_statements(text: str) -> Sequence[Statement]:
    """Split an answer into sentences, list items and table rows."""
    statements: list[Statement] = []
    was_cut = False
    for number, line in enumerate(text.split(LINE_SEPARATOR)):
        if _LIST_ITEM_PATTERN.match(line) and GAP not in line:
            is_question = line.rstrip().endswith(("?", "？"))
            item = line.strip()
            statements.append(
                _make_statement(number, item, follows_gap=was_cut, is_question=is_question)
            )
            was_cut = False
            continue
        position = 0
        for sentence in split_sentences(line):
            was_cut = was_cut or GAP in line[position : sentence.start]
            sentence_text = line[sentence.start : sentence.end].strip()
            statements.append(
                _make_statement(
                    number,
                    sentence_text,
                    follows_gap=was_cut,
                    is_question=sentence.is_minor,
                )
            )
            was_cut = False
            position = sentence.end
        was_cut = was_cut or GAP in line[position:]
    if len(statements) > 1 and not statements[0].is_specific:
        statements[0] = statements[0]._replace(has_no_content=True)
    return tuple(statements)


def _make_statement(line: int, text: str, *, follows_gap: bool, is_question: bool) -> Statement:
    """Return a statement with its properties, which are read from its text."""
    specifics = count_specifics(text)
    return Statement(
        line=line,
        text=text,
        follows_gap=follows_gap,
        is_question=is_question,
        is_specific=specifics > 0,
        has_no_content=is_question or _only_announces(text, specifics),
        words=tuple(dict.fromkeys(split_words(text))),
    )


def _only_announces(text: str, specifics: int) -> bool:
    """Return whether a statement is a heading, the head of a table, or a line without a name that announces others."""
    if _HEADING_PATTERN.match(text):
        return True
    return not specifics and (text.endswith(_COLONS) or text.startswith("|"))


def drop_announcement(note: str) -> str:
    """Return a text that comes right before calls without its last sentence, which only announces them."""
    statements = split_statements(note)
    earlier_numbers = range(len(statements) - 1)
    # The other statements may only open the announcement: "Good point."
    if all(statements[number].has_no_content for number in earlier_numbers):
        return ""
    return join_statements(statements, earlier_numbers)


def join_statements(statements: Sequence[Statement], chosen_numbers: Iterable[int]) -> str:
    """Join the chosen statements in order, with a mark for each gap."""
    numbers = sorted(chosen_numbers)
    if not numbers:
        return ""
    first_statement = statements[numbers[0]]
    parts = [
        f"{GAP} " if numbers[0] or first_statement.follows_gap else "",
        first_statement.text,
    ]
    for previous_number, number in pairwise(numbers):
        statement = statements[number]
        is_cut = number > previous_number + 1 or statement.follows_gap
        between = LINE_SEPARATOR if statement.line != statements[previous_number].line else " "
        parts += (f" {GAP} " if is_cut else between, statement.text)
    if numbers[-1] < len(statements) - 1:
        parts.append(f" {GAP}")
    return "".join(parts)
