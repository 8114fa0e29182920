"""Recall: stored texts and results that may answer a message, the best first.

Each word of the message is looked up on its own, in all its forms. The best pieces and their neighbours are weighed
by the index and a few columns; only the texts that are shown are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from everthread.core.search.query import Question
from everthread.core.secrets.redaction import redact_part
from everthread.store.database import Tx
from everthread.store.records import RecallPassage, RecallQuery, SearchQuery
from everthread.store.sql.pieces import Piece, load_pieces, read_pieces
from everthread.store.sql.recall_ranking import RecallRanking, rank_by_words
from everthread.store.sql.recall_words import RecallWord, look_up_words
from everthread.store.sql.search_scope import search_scope
from everthread.store.sql.snippets import (
    SECRET_MARGIN,
    find_richest_position,
    sentence_start,
)
from everthread.store.sql.turn_numbers import number_turns


def recall_passages(
    tx: Tx, query: RecallQuery, question: Question
) -> list[RecallPassage]:
    within = SearchQuery(
        "",
        tenant=query.tenant,
        thread=query.thread,
        include_family=query.include_family,
    )
    scope = search_scope(tx, within) if question.search_words else None
    if scope is None or query.limit <= 0:
        return []
    if query.thread is not None:  # it is the tenant's: `search_scope` checks that
        scope = replace(scope, filter_names=scope.filter_names[1:])
    counted_thread = None if query.include_family else query.thread
    words = look_up_words(
        tx, scope, question.search_words, counted_thread, by_role=query.for_page
    )
    ranking = rank_by_words(tx, scope, words, question, query)
    return _make_passages(tx, ranking, words, query)


MIN_SHARED_WORDS = 0.6
MIN_CONTAINED_WORDS = 0.9
"""A text repeats another if they share the first part of all their words, or if the other holds the second part of its
words. Words of the question do not count."""
MIN_WITHIN = 8
"""The least number of words in a text for which `MIN_CONTAINED_WORDS` applies."""
GLIMPSE_CHARS = 200
"""Characters of a call or result that is shown only beside a better one."""
MAX_ALIKE = 2
"""How many texts that nearly repeat another are shown with it, a glimpse of each: where only a name or a figure
differs, that may be what is asked for."""
_WORD = re.compile(r"\w+")
WordsByPiece = Mapping[int, Sequence[RecallWord]]
"""The words of the question that each piece holds."""


@dataclass(slots=True)
class _PassageDraft:
    """A text that is shown, or a call with its result."""

    first: Piece
    """The better of the two."""
    parts: dict[Piece, str]
    """With their texts; ordered by id, a call comes before its result."""
    own: frozenset[str] = frozenset()
    """Its words, those of the question aside."""
    glimpse: Piece | None = None
    """The part that is shown only beside the other."""
    alike: dict[Piece, str] = field(default_factory=dict)


def _make_passages(
    tx: Tx,
    ranking: RecallRanking,
    words: Sequence[RecallWord],
    query: RecallQuery,
) -> list[RecallPassage]:
    all_pieces = (
        *ranking.first,
        *(piece for exchange in ranking.exchanges for piece in exchange.results),
    )
    words_in: dict[int, list[RecallWord]] = {piece.id: [] for piece in all_pieces}
    for word in words:
        for piece_id in word.pieces & words_in.keys():
            words_in[piece_id].append(word)
    if query.for_page:
        drafts = _choose_drafts(tx, ranking, words_in, query)
        sizes = [len(text) for draft in drafts for text in draft.parts.values()]
        max_chars = _share_room(sizes, query.limit * query.max_chars)
        _add_partners(tx, drafts, ranking, words_in)
    else:
        best_pieces = ranking.first[: query.limit]
        drafts = [
            _PassageDraft(piece, {piece: text})
            for piece, text in zip(
                best_pieces, read_pieces(tx, best_pieces), strict=True
            )
        ]
        max_chars = query.max_chars
    turns = number_turns(tx, [draft.first for draft in drafts])
    passages = []
    for draft in drafts:
        piece = draft.first
        excerpt = "\n→ ".join(
            _make_glimpse(text, part, words_in.get(part.id, ()))
            if part == draft.glimpse
            else _make_excerpt(text, part, words_in[part.id], max_chars)
            for part, text in sorted(draft.parts.items())
        )
        glimpses = (
            _make_glimpse(text, part, words_in.get(part.id, ()))
            for part, text in draft.alike.items()
        )
        excerpt += "".join(
            f"\n≈ {glimpse}"
            for glimpse in glimpses
            if glimpse.strip("…") not in excerpt
        )
        passages.append(
            RecallPassage(
                piece.message,
                piece.output,
                thread=piece.thread,
                role=piece.role,
                tool=piece.tool,
                turn=turns[piece.id],
                created=piece.created,
                text=excerpt,
                score=round(ranking.scores[piece.id], 4),
                closeness=round(
                    max(ranking.close.get(part.id, 0.0) for part in draft.parts), 4
                ),
            )
        )
    return passages


def _choose_drafts(
    tx: Tx, ranking: RecallRanking, words_in: WordsByPiece, query: RecallQuery
) -> list[_PassageDraft]:
    """The best texts that each say something of their own, as many as are asked for."""
    exchanges = {
        piece.id: number
        for number, exchange in enumerate(ranking.exchanges)
        for piece in (*exchange.calls, *exchange.results)
    }
    drafts: list[_PassageDraft] = []
    open_exchanges: dict[tuple[int | None, bool], _PassageDraft] = {}
    for start in range(0, len(ranking.first), query.limit):
        some = ranking.first[start : start + query.limit]
        for piece, text in zip(some, read_pieces(tx, some), strict=True):
            words = words_in[piece.id]
            number = exchanges.get(piece.id)
            is_call = piece.role == "assistant"
            partner = (
                open_exchanges.get((number, is_call)) if number is not None else None
            )
            if partner is not None:
                if words:  # else it is shown as a glimpse
                    partner.parts[piece] = text
                    del open_exchanges[number, is_call]
                continue
            span = _excerpt_span(text, words, query.max_chars)
            own_words = _own_words(text[slice(*span)], words)
            similar_draft = next(
                (draft for draft in drafts if _is_repeated(own_words, draft.own)), None
            )
            if similar_draft is not None:
                if len(similar_draft.alike) < MAX_ALIKE:
                    similar_draft.alike[piece] = text
                continue
            if len(drafts) == query.limit:
                return drafts
            drafts.append(_PassageDraft(piece, {piece: text}, own_words))
            open_exchanges.setdefault((number, not is_call), drafts[-1])
    return drafts


def _add_partners(
    tx: Tx,
    drafts: Sequence[_PassageDraft],
    ranking: RecallRanking,
    words_in: WordsByPiece,
) -> None:
    """Add its result to a call that is shown alone, and its call to a result: a command is asked for by its outcome."""
    single_drafts = {draft.first.id: draft for draft in drafts if len(draft.parts) == 1}
    drafts_by_partner: dict[Piece, _PassageDraft] = {}
    for exchange in ranking.exchanges:
        call = next(
            (
                single_drafts[piece.id]
                for piece in exchange.calls
                if piece.id in single_drafts
            ),
            None,
        )
        result = next(
            (
                single_drafts[piece.id]
                for piece in exchange.results
                if piece.id in single_drafts
            ),
            None,
        )
        if call is not None:
            best = max(
                exchange.results, key=lambda piece: ranking.scores.get(piece.id, 0.0)
            )
            if not words_in[best.id]:  # the outcome is at the end
                last_id = tx.value(
                    "SELECT MAX(id) FROM pieces WHERE message_id = ?", (best.message,)
                )
                [best] = load_pieces(tx, [last_id])
            drafts_by_partner[best] = call
        elif result is not None:
            drafts_by_partner[exchange.calls[-1]] = result
    for partner, text in zip(
        drafts_by_partner, read_pieces(tx, list(drafts_by_partner)), strict=True
    ):
        drafts_by_partner[partner].parts[partner] = text
        drafts_by_partner[partner].glimpse = partner


def _is_repeated(words: frozenset[str], other_words: frozenset[str]) -> bool:
    """Whether a text repeats another, by their words. Most pairs differ in size too much to share enough."""
    size = len(words)
    min_contained = MIN_CONTAINED_WORDS * size if size >= MIN_WITHIN else math.inf
    smaller_size, larger_size = sorted((size, len(other_words)))
    if smaller_size < min_contained and smaller_size < MIN_SHARED_WORDS * larger_size:
        return False
    shared_count = len(words & other_words)
    return shared_count >= min_contained or shared_count >= MIN_SHARED_WORDS * (
        smaller_size + larger_size - shared_count
    )


def _own_words(text: str, words: Sequence[RecallWord]) -> frozenset[str]:
    """The words of a text, those of the question aside."""
    forms = {form for word in words for form in word.search_words.forms}
    return frozenset(_WORD.findall(text.casefold())) - forms


def _share_room(sizes: Sequence[int], max_chars: int) -> int:
    """The most room for each text of these sizes so that all fit; what short texts leave is for the others."""
    remaining = max_chars
    for index, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - index)
        if size > share:
            return share
        remaining -= size
    return max_chars


def _make_excerpt(
    text: str, piece: Piece, words: Sequence[RecallWord], chars: int
) -> str:
    """Return a short text whole, and of a longer one the part with the most words of the question."""
    return _show_part(text, piece, *_excerpt_span(text, words, chars))


def _excerpt_span(
    text: str, words: Sequence[RecallWord], chars: int
) -> tuple[int, int]:
    if len(text) <= chars * 5 // 4:
        return 0, len(text)
    position = find_richest_position(
        text, [word.search_words.forms for word in words], chars * 3 // 4
    )
    start = sentence_start(text, max(0, min(position - chars // 4, len(text) - chars)))
    is_cut = len(text) - start > chars * 5 // 4
    return start, start + chars if is_cut else len(text)


def _make_glimpse(text: str, piece: Piece, words: Sequence[RecallWord]) -> str:
    """The text around the words; without words the beginning of a call, or the end of a result."""
    if words:
        return _make_excerpt(text, piece, words, GLIMPSE_CHARS)
    if piece.role == "assistant":
        return _show_part(text, piece, 0, GLIMPSE_CHARS)
    return _show_part(
        text, piece, sentence_start(text, max(0, len(text) - GLIMPSE_CHARS)), len(text)
    )


def _show_part(text: str, piece: Piece, start: int, end: int) -> str:
    excerpt = redact_part(text, start, end, margin=SECRET_MARGIN).strip()
    # Show arguments of a call without JSON's escapes.
    if piece.role == "assistant" and piece.tool:
        excerpt = excerpt.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    return (
        ("…" if start or piece.start else "")
        + excerpt
        + ("…" if end < len(text) else "")
    )
