"""Find names, figures and negations that the closest statement of the sources contradicts.

A name or a figure may appear in the sources and still be wrong in the summary's sentence. So for each name and figure,
the statement of the sources is looked up that is closest to the other words of the sentence. The sentence is
contradicted if that statement is close, has another name or figure of the same kind instead, and no nearly as close
statement has the one in the summary. A word is contradicted if the closest statement negates it and the summary does
not, or the other way round ("use A instead of B" negates B).

Only words are compared: a wrong fact in words that the sources do not use is not found.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from everthread.compaction.verification.checkable_names import (
    CheckableName,
    find_checkable_names,
)
from everthread.compaction.verification.claims import (
    MAX_SENTENCE_CHARS,
    Claim,
    ClaimedFigure,
)
from everthread.compaction.verification.source_index import (
    SourceIndex,
    add_neighbours,
    find_opposites,
    list_tokens,
    normalize_figure,
)
from everthread.core.search.word_forms import list_word_forms

_WORD = "word"
_FIGURE = "figure"
_NAME = "name"
_ClaimPart = tuple[str, str]
"""A part of a claim: its kind and its text."""
MIN_OTHER_PARTS = 3
"""A sentence is compared only if it has more than this many words, names and figures."""
MAX_MISSING_SHARE = 0.5
"""A close statement lacks less than this share of the claim's weight."""
MAX_CANDIDATES = 2_000
"""A claim that resembles more statements than this is too ordinary to be contradicted by one of them."""
MAX_MEASURE_DISTANCE_WORDS = 6
"""A figure of the sources measures the same thing if the name or unit is at most this many words away."""
NEIGHBOUR_STATEMENTS = 1
"""A statement supports the names and figures in it and in this many statements on either side."""


@dataclass(frozen=True, slots=True)
class RequiredCloseness:
    """The closeness that a statement needs to contradict a claim."""

    min_share: float
    """The statement must have at least this share of the weight of the claim's other words, names and figures."""
    max_support_ratio: float
    """Every statement that supports the claim must have less than this ratio of the contradicting one's share."""
    min_parts: int
    """The statement must have at least this many of the claim's words, names and figures."""


NAME_CLOSENESS = RequiredCloseness(min_share=0.8, max_support_ratio=0.6, min_parts=4)
FIGURE_CLOSENESS = RequiredCloseness(min_share=0.65, max_support_ratio=0.8, min_parts=3)
POLARITY_CLOSENESS = RequiredCloseness(min_share=0.75, max_support_ratio=0.7, min_parts=4)


class _Comparison:
    """A comparison of a claim with the statements of the sources: which share of the claim does each one hold?"""

    def __init__(self, claim: Claim, index: SourceIndex) -> None:
        self._statements_by_part: dict[_ClaimPart, Set[int]] = {}
        for word in claim.words:
            self._statements_by_part[_WORD, word] = index.find_statements(word)
        for figure in claim.figures:
            self._statements_by_part[_FIGURE, figure.value] = index.find_statements(figure.value)
        for name in claim.names:
            self._statements_by_part[_NAME, name.value] = index.find_statements_naming(name.value)
        # A part that no statement holds does not help to find the closest one.
        self._weights = {
            part: index.rarity(statements) if statements else 0.0
            for part, statements in self._statements_by_part.items()
        }
        self._total_weight = sum(self._weights.values())
        self._scores = (
            self._score_statements() if len(self._statements_by_part) > MIN_OTHER_PARTS else {}
        )

    @property
    def has_candidates(self) -> bool:
        """Whether any statement is close enough to compare."""
        return bool(self._scores)

    def _score_statements(self) -> dict[int, float]:
        """Return the weight of the claim in each statement that may be close, or an empty mapping if there are too
        many.

        A close statement lacks less than `MAX_MISSING_SHARE` of the weight. So of any parts that weigh more together,
        it holds at least one.
        """
        rarest_first = sorted(
            self._statements_by_part,
            key=lambda part: (len(self._statements_by_part[part]), part),
        )
        needed_weight = MAX_MISSING_SHARE * self._total_weight + max(self._weights.values())
        candidates: set[int] = set()
        weight = 0.0
        while rarest_first and weight <= needed_weight:
            part = rarest_first.pop(0)
            weight += self._weights[part]
            candidates |= self._statements_by_part[part]
        if len(candidates) > MAX_CANDIDATES:
            return {}
        scores = dict.fromkeys(candidates, 0.0)
        for part, statements in self._statements_by_part.items():
            for statement in statements & candidates:
                scores[statement] += self._weights[part]
        return scores

    def find_closest_statement(
        self, statements: Iterable[int], part: _ClaimPart
    ) -> tuple[float, int]:
        """Return the largest share of the claim, without this part, that a statement holds, and the statement."""
        statements_with_part = self._statements_by_part[part]
        part_weight = self._weights[part]
        best_score = 0.0
        closest = -1
        for statement in statements:
            score = self._scores.get(statement, 0.0) - (
                part_weight if statement in statements_with_part else 0.0
            )
            if score > best_score:
                best_score = score
                closest = statement
        other_weight = self._total_weight - part_weight
        return best_score / other_weight if other_weight else 0.0, closest

    def find_contradicting_statement(
        self, part: _ClaimPart, required_closeness: RequiredCloseness
    ) -> int | None:
        """Return the closest statement if it lacks this part, and all statements near the part are far less close."""
        statements_with_part = self._statements_by_part[part]
        if not statements_with_part:
            return None
        share, closest = self.find_closest_statement(self._scores, part)
        if share < required_closeness.min_share:
            return None
        support_share, _ = self.find_closest_statement(
            add_neighbours(statements_with_part, NEIGHBOUR_STATEMENTS), part
        )
        if (
            support_share >= required_closeness.max_support_ratio * share
            or self.count_shared_parts(closest, part) < required_closeness.min_parts
        ):
            return None
        return closest

    def count_shared_parts(self, statement: int, part: _ClaimPart) -> int:
        """Return the number of the claim's parts, without this one, that a statement has."""
        return sum(
            statement in statements
            for other_part, statements in self._statements_by_part.items()
            if other_part != part
        )


def count_contradictions(claim: Claim, index: SourceIndex) -> int:
    """Count the names, figures and negations of a claim that the closest statement of the sources contradicts."""
    if len(claim.text) > MAX_SENTENCE_CHARS:
        return 0
    comparison = _Comparison(claim, index)
    if not comparison.has_candidates:
        return 0
    names = sum(_is_name_contradicted(name, claim, comparison, index=index) for name in claim.names)
    figures = sum(
        _is_figure_contradicted(figure, claim, comparison, index=index) for figure in claim.figures
    )
    words = sum(
        _is_word_reversed(word, comparison, index, is_negated=negated)
        for word, negated in claim.words.items()
    )
    return names + figures + words


def _is_name_contradicted(
    name: CheckableName, claim: Claim, comparison: _Comparison, *, index: SourceIndex
) -> bool:
    """Return whether the closest statement has another name of this kind instead."""
    closest = comparison.find_contradicting_statement((_NAME, name.value), NAME_CLOSENESS)
    if closest is None:
        return False
    other_names = (
        other_name
        for other_name in find_checkable_names(index.statement_text(closest))
        if other_name.kind == name.kind
    )
    return any(other_name.value not in claim.text for other_name in other_names)


def _is_figure_contradicted(
    figure: ClaimedFigure, claim: Claim, comparison: _Comparison, *, index: SourceIndex
) -> bool:
    """Return whether the closest statement has another figure instead, with the same name or unit."""
    closest = comparison.find_contradicting_statement((_FIGURE, figure.value), FIGURE_CLOSENESS)
    if closest is None:
        return False
    claimed_values = {claimed_figure.value for claimed_figure in claim.figures}
    measure_forms = {form for word in figure.adjacent_words for form in list_word_forms(word)}
    words = list_tokens(index.statement_text(closest))
    for position, word in enumerate(words):
        if word[0].isdigit() and normalize_figure(word) not in claimed_values:
            nearby_words = words[
                max(position - MAX_MEASURE_DISTANCE_WORDS, 0) : position
                + MAX_MEASURE_DISTANCE_WORDS
                + 1
            ]
            if not measure_forms or not measure_forms.isdisjoint(nearby_words):
                return True
    return False


def _is_word_reversed(
    word: str, comparison: _Comparison, index: SourceIndex, *, is_negated: bool
) -> bool:
    """Return whether a close statement has the word's opposite, or negates the word when the claim does not.

    If the claim negates the word, a close statement reverses it by not negating it.
    """
    if _is_opposite_stated(word, comparison, index):
        return True
    agreeing_statements = index.find_statements(word, is_negated=is_negated)
    reversed_statements = (
        index.find_statements(word, is_negated=not is_negated) - agreeing_statements
    )
    share, closest = comparison.find_closest_statement(reversed_statements, (_WORD, word))
    if (
        share < POLARITY_CLOSENESS.min_share
        or comparison.count_shared_parts(closest, (_WORD, word)) < POLARITY_CLOSENESS.min_parts
    ):
        return False
    support_share, _ = comparison.find_closest_statement(agreeing_statements, (_WORD, word))
    return support_share < POLARITY_CLOSENESS.max_support_ratio * share


def _is_opposite_stated(word: str, comparison: _Comparison, index: SourceIndex) -> bool:
    """Return whether the closest statement has the opposite of the word instead."""
    opposites = find_opposites(word)
    closest = (
        comparison.find_contradicting_statement((_WORD, word), POLARITY_CLOSENESS)
        if opposites
        else None
    )
    return closest is not None and not opposites.isdisjoint(
        list_tokens(index.statement_text(closest))
    )
