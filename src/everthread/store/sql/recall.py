"""Recall: stored texts and results that may answer a message, the best first.

Each word of the message is looked up on its own, in all its forms. The best pieces and their neighbours are weighed
by the index and a few columns; only the texts that are shown are read.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from everthread.core.redaction import redact_part
from everthread.core.search.query import (
    NEAR,
    OF_A_DAY,
    Question,
    SearchWord,
    closeness,
    dilution,
    is_telling,
    rarity,
    spread,
)
from everthread.core.search.terms import encode_term, query_terms
from everthread.core.transcript import is_lookup, is_user_message
from everthread.store.database import Query, Tx, decode_json, placeholders
from everthread.store.index import IndexQuery, filter_name
from everthread.store.models import RecallPassage, RecallQuery, SearchQuery
from everthread.store.sql.search import (
    SECRET_MARGIN,
    Piece,
    TextKey,
    find_richest_position,
    list_sources,
    load_pieces,
    read_pieces,
    search_scope,
    sentence_start,
)

# --- the turns of a thread --------------------------------------------------------------------------------------------


MOST_THREADS = 64


@dataclass(frozen=True, slots=True)
class _ThreadTurns:
    """The user's messages of a thread (`is_user_message`): their ids and their times, both in order."""

    last: int = 0
    """The id of the newest message that was read, of any thread."""
    ids: Sequence[int] = ()
    times: Sequence[float] = ()


class TurnIndex:
    """The turns of threads, cached: stored messages do not change, so only new ones are read.

    Shared by reader threads. Each update makes a new entry, so that no reader sees a half-made one.
    """

    def __init__(self) -> None:
        self._threads: dict[str, _ThreadTurns] = {}

    def forget(self) -> None:
        """Drop the cache: a thread was deleted, and others may have inherited its messages."""
        self._threads.clear()

    def of(self, tx: Tx, piece: Piece) -> int:
        """The turn of a message, or of a stored output by its time; 0 before the first."""
        entry = self._threads.get(piece.thread)
        if entry is None or piece.message is None or piece.message > entry.last:
            if len(self._threads) >= MOST_THREADS:
                self._threads.clear()
            entry = self._threads[piece.thread] = _read_turns(tx, piece.thread, entry or _ThreadTurns())
        if piece.message is None:
            return bisect.bisect(entry.times, piece.created)
        return bisect.bisect(entry.ids, piece.message)


def _read_turns(tx: Tx, thread: str, earlier: _ThreadTurns) -> _ThreadTurns:
    last = tx.value("SELECT MAX(id) FROM messages") or 0
    if last <= earlier.last:
        return earlier
    of_user = "m.role = 'user' AND m.kind = 'message'"
    # By id where the cache has some: few messages are newer, the thread may have many.
    of_thread = "m.thread_id || '' = ?" if earlier.last else "m.thread_id = ?"
    rows = tx.all(
        f"SELECT m.id, m.created, m.body FROM messages m WHERE {of_thread} AND m.id > ? AND m.id <= ? AND {of_user}",
        (thread, earlier.last, last),
    )
    if not earlier.last and len(list_sources(tx, thread)) > 1:  # a branch goes on counting where it left its parent
        rows += tx.all(
            "SELECT m.id, m.created, m.body FROM places p JOIN messages m ON m.id = p.message_id "
            f"WHERE p.session_id = ? AND m.thread_id <> ? AND {of_user}",
            (thread, thread),
        )
    spoken = sorted(row[:2] for row in rows if is_user_message(decode_json(row[2])))
    times = sorted([*earlier.times, *(created for _, created in spoken)])
    return _ThreadTurns(last, [*earlier.ids, *(number for number, _ in spoken)], times)


# --- the words of a question ------------------------------------------------------------------------------------------


POSTINGS = 1_000
"""The most pieces read for a word, the newest: a word with more says little."""
MOST_WORDS = 10
"""The most words that are looked up in all their forms, the rarest ones."""
COMMON_COUNT = 64
"""A word that so many pieces hold as typed is looked up last."""


@dataclass(frozen=True, slots=True)
class RecallWord:
    """A word of the question, its weight, and the pieces that hold it."""

    sought: SearchWord
    weight: float
    pieces: frozenset[int]
    telling: bool
    """Whether the word tells texts apart: it is neither in most of them nor part of a date."""
    of_users: frozenset[int] = frozenset()
    """The pieces of the user's messages that hold it, where these are asked for."""


def look_up_words(
    tx: Tx, scope: IndexQuery, sought: Sequence[SearchWord], thread: str | None, *, by_role: bool
) -> list[RecallWord]:
    """The words with the pieces that hold them; of many words the rarest."""
    total = _count_pieces(tx, thread)
    chosen, absent = _pick_telling_words(tx, scope, sought) if len(sought) > MOST_WORDS else (sought, ())
    words = []
    for item in chosen:
        wanted = replace(scope, one_of=(_encode_forms(item),))
        pieces = frozenset(tx.match_ids(wanted, POSTINGS))
        telling = item.counted and is_telling(len(pieces), total)
        wanted = replace(wanted, names=(*wanted.names, (filter_name("role", "user"),)))
        of_users = frozenset(tx.match_ids(wanted, POSTINGS) if by_role else ())
        words.append(RecallWord(item, item.weight * rarity(len(pieces), total), pieces, telling, of_users))
    words = _complete_postings(tx, scope, words)
    nowhere = rarity(0, total)
    return words + [RecallWord(item, item.weight * nowhere, frozenset(), item.counted) for item in absent]


def _complete_postings(tx: Tx, scope: IndexQuery, words: Sequence[RecallWord]) -> list[RecallWord]:
    """Add to frequent words the older pieces that hold other words of the question too.

    These are pieces with one of the rarer words, with all frequent ones, or with all of these but one.
    """
    frequent = [word for word in words if len(word.pieces) == POSTINGS]
    rare = tuple(term for word in words if 0 < len(word.pieces) < POSTINGS for term in _encode_forms(word.sought))
    more: dict[int, set[int]] = {id(word): set() for word in frequent}

    def hold_together(some: Sequence[RecallWord], *others: tuple[str, ...]) -> None:
        wanted = replace(scope, one_of=(*(_encode_forms(word.sought) for word in some), *others))
        pieces = tx.match_ids(wanted, POSTINGS)
        for word in some:
            more[id(word)].update(pieces)

    for word in frequent if rare else ():
        hold_together([word], rare)
    if len(frequent) > 1:
        hold_together(frequent)
        for without in frequent if len(frequent) > 2 else ():
            hold_together([word for word in frequent if word is not without])
    return [replace(word, pieces=word.pieces | more.get(id(word), set())) for word in words]


def _discount_parts(words: Sequence[RecallWord]) -> list[RecallWord]:
    """An identifier counts only what its parts do not: they stand wherever it does."""
    weights = {word.sought.forms[0]: word.weight for word in words}
    reduced = []
    for word in words:
        name = word.sought.forms[0]
        parts = sum(weights.get(part, 0.0) for part in query_terms(name) if part != name)
        reduced.append(replace(word, weight=max(word.weight - parts, word.weight / 4)) if parts else word)
    return reduced


def _encode_forms(item: SearchWord) -> tuple[str, ...]:
    return tuple(map(encode_term, item.forms))


def _pick_telling_words(
    tx: Tx, scope: IndexQuery, sought: Sequence[SearchWord]
) -> tuple[list[SearchWord], Sequence[SearchWord]]:
    """The words to look up, and the rest of those that no piece holds as typed."""
    counts: list[tuple[int, SearchWord]] = []
    for item in sought:
        wanted = replace(scope, one_of=((encode_term(item.forms[0]),),))
        counts.append((len(tx.match_ids(wanted, COMMON_COUNT)), item))
    here = sorted((pair for pair in counts if 0 < pair[0] < COMMON_COUNT), key=lambda pair: pair[0])
    nowhere = [item for count, item in counts if count == 0]
    ordered = [*(item for _, item in here), *nowhere, *(item for count, item in counts if count == COMMON_COUNT)]
    return ordered[:MOST_WORDS], nowhere[max(0, MOST_WORDS - len(here)) :]


def _count_pieces(tx: Tx, thread: str | None) -> int:
    """How many pieces there are; of all threads about how many."""
    if thread is None:
        return int(tx.value("SELECT MAX(id) FROM pieces") or 0)
    sources = list_sources(tx, thread)
    return int(tx.value(f"SELECT COUNT(*) FROM pieces WHERE thread_id IN ({placeholders(sources)})", sources))


def weigh_pieces(words: Sequence[RecallWord], most: int) -> dict[int, float]:
    """Pieces with the weights of the words they hold; so many of the best are surely among them.

    The words that count most come first. Once so many pieces have more than all words left can give, no other piece
    can be among the best, and the remaining words only count for the pieces found so far.
    """
    weights: dict[int, float] = {}
    remaining = sum(word.weight for word in words)
    closed = False
    for word in sorted(words, key=lambda word: -word.weight):
        closed = closed or (len(weights) >= most and sum(value >= remaining for value in weights.values()) >= most)
        for piece in weights.keys() & word.pieces if closed else word.pieces:
            weights[piece] = weights.get(piece, 0.0) + word.weight
        remaining -= word.weight
    return weights


# --- the ranking ------------------------------------------------------------------------------------------------------


SILENCE_SECONDS = 1_800.0
"""Seconds of silence after which a message does not answer the one before."""
NEIGHBOUR_REACH = 2
"""How many texts before and after a text are its neighbours."""
RECALL_CANDIDATES = 150
"""How many pieces are scored with their neighbours."""
ROUGH_CANDIDATES = 4 * RECALL_CANDIDATES
"""How many pieces with the most words these are chosen from."""
MOST_RARE = 32
"""A word in so many pieces or fewer is rare."""
DECIDING_PLACES = 10
"""One of so many first candidates must be close enough."""
ROLE_WEIGHTS = {"user": 1.0, "assistant": 0.5, "tool": 0.4}
"""The weight of a text by its role (`benchmarks retention`): users mostly ask for what users wrote."""
_SIDES = {-1: "id < ? AND start = 0 ORDER BY id DESC", 1: "id > ? AND start = 0 ORDER BY id"}


@dataclass(frozen=True, slots=True)
class RecallRanking:
    """A ranking: pieces, the best first, what each is worth and how close it is. Empty where none is close enough."""

    first: Sequence[Piece] = ()
    scores: Mapping[int, float] = field(default_factory=dict)
    close: Mapping[int, float] = field(default_factory=dict)
    exchanges: Sequence[CallPieces] = ()
    """Calls with their results, where both were looked at."""


@dataclass(slots=True)
class CallPieces:
    """Pieces of an assistant's message with calls, and of the results that follow it."""

    calls: list[Piece] = field(default_factory=list)
    results: list[Piece] = field(default_factory=list)


def recall_passages(tx: Tx, query: RecallQuery, question: Question, turns: TurnIndex) -> list[RecallPassage]:
    scope = search_scope(tx, SearchQuery("", tenant=query.tenant, thread=query.thread)) if question.sought else None
    if scope is None or query.limit <= 0:
        return []
    if query.thread is not None:  # it is the tenant's: `search_scope` checks that
        scope = replace(scope, names=scope.names[1:])
    words = look_up_words(tx, scope, question.sought, query.thread, by_role=query.as_page)
    ranking = _rank_by_words(tx, scope, words, question, query)
    return _make_passages(tx, ranking, words, query, turns)


def _rank_by_words(
    tx: Tx, scope: IndexQuery, words: Sequence[RecallWord], question: Question, query: RecallQuery
) -> RecallRanking:
    weighed = _discount_parts(words)
    weights = weigh_pieces(weighed, ROUGH_CANDIDATES)
    best = _vary_pieces(_best_pieces(weights, len(weights)), words, ROUGH_CANDIDATES)
    certain: list[int] = []
    rare: set[int] = set()
    if query.as_page:
        spoken = weigh_pieces([replace(word, pieces=word.of_users) for word in weighed], RECALL_CANDIDATES)
        weights |= spoken
        rare = weights.keys() & _rarest_pieces(words)
        certain = [*_best_pieces(spoken, RECALL_CANDIDATES // 2), *sorted(rare)]
    best = list(dict.fromkeys([*certain, *best]))
    pieces = _load_with_neighbours(tx, scope, weights, best, set(certain), words)
    own = {piece.id: weights[piece.id] / dilution(piece.length) for piece in pieces if piece.id in weights}
    of_day = {piece.id for piece in pieces if any(piece.created in span for span in question.spans)}
    scores = _share_scores(pieces, own, of_day)
    # A page leaves out texts that repeat others, so all candidates are ranked for it.
    most = len(pieces) if query.as_page else max(query.limit, DECIDING_PLACES)
    first = list(islice(_rank_candidates(pieces, scores, query), most))
    if query.as_page:
        by_role = _share_scores(pieces, {p.id: own[p.id] * _role_weight(p) for p in pieces if p.id in own}, of_day)
        by_rarest = _rank_candidates([piece for piece in pieces if piece.id in rare], scores, query)
        first = _take_turns([islice(_rank_candidates(pieces, by_role, query), most), first, by_rarest], most)
    # For a page frequent words count if there are no others.
    counted = [word for word in words if word.telling] or [word for word in words if query.as_page]
    wanted = [word.weight for word in counted]
    close = {
        piece.id: closeness([word.weight for word in counted if _holds_word(piece.id, word, of_day)], wanted)
        for piece in first
    }
    if max(list(close.values())[:DECIDING_PLACES], default=0.0) < query.least:
        return RecallRanking()
    return RecallRanking(first, scores, close, _find_exchanges(pieces) if query.as_page else ())


def _holds_word(piece: int, word: RecallWord, of_day: Collection[int]) -> bool:
    """Whether a piece has a word. What was said on a named day need not say the day."""
    return piece in word.pieces or (not word.sought.counted and piece in of_day)


def _role_weight(piece: Piece) -> float:
    return ROLE_WEIGHTS.get("tool" if piece.is_result else piece.role, 1.0)


def _rarest_pieces(words: Sequence[RecallWord]) -> frozenset[int]:
    """The pieces that hold the rarest identifier of the question: it is mostly asked for what stands beside it."""
    counts = [
        word.pieces
        for word in words
        if word.telling and 0 < len(word.pieces) <= MOST_RARE and not word.sought.forms[0].isalpha()
    ]
    return min(counts, key=len, default=frozenset())


def _best_pieces(weights: Mapping[int, float], most: int) -> list[int]:
    return sorted(weights, key=lambda piece_id: (-weights[piece_id], -piece_id))[:most]


def _vary_pieces(ordered: Iterable[int], words: Sequence[RecallWord], most: int) -> list[int]:
    """The first so many pieces; those with the same words have a quarter of the room before others had their turn.

    The name of a tool puts the same words into thousands of calls, and these must not shut out all other pieces.
    """
    varied: list[int] = []
    rest: list[int] = []
    counts: Counter[tuple[bool, ...]] = Counter()
    for piece_id in ordered:
        held = tuple(piece_id in word.pieces for word in words)
        counts[held] += 1
        (varied if counts[held] <= most // 4 else rest).append(piece_id)
        if len(varied) == most:
            break
    return [*varied, *rest][:most]


def _load_with_neighbours(
    tx: Tx,
    scope: IndexQuery,
    weights: Mapping[int, float],
    best: Sequence[int],
    certain: Collection[int],
    words: Sequence[RecallWord],
) -> list[Piece]:
    """The best pieces and their neighbours, by thread and in order."""
    pieces = _keep_best(load_pieces(tx, best, scope.where, scope.values), weights, certain, words)
    around = _find_neighbours(tx, pieces) - {piece.id for piece in pieces}
    return sorted(
        [*pieces, *load_pieces(tx, sorted(around), scope.where, scope.values)],
        key=lambda piece: (piece.thread, piece.id),
    )


def _keep_best(
    pieces: list[Piece], weights: Mapping[int, float], certain: Collection[int], words: Sequence[RecallWord]
) -> list[Piece]:
    """The best `RECALL_CANDIDATES` pieces, the certain ones among them.

    Where one word decides, hundreds of pieces hold the same words: then their length and their neighbours decide,
    not which of them is newest.
    """
    if len(pieces) <= RECALL_CANDIDATES:
        return pieces
    own = {piece.id: weights[piece.id] / dilution(piece.length) for piece in pieces}
    of_message: dict[int, float] = {}
    for piece in pieces:
        if piece.message is not None:
            of_message[piece.message] = max(own[piece.id], of_message.get(piece.message, 0.0))

    def rough_score(piece: Piece) -> tuple[bool, float, int]:
        near = sum(share * of_message.get((piece.message or 0) + step, 0.0) for step, share in NEAR.items())
        return piece.id in certain, own[piece.id] + near * (piece.message is not None), piece.id

    by_id = {piece.id: piece for piece in sorted(pieces, key=rough_score, reverse=True)}
    return [by_id[piece_id] for piece_id in _vary_pieces(by_id, words, RECALL_CANDIDATES)]


def _find_neighbours(tx: Tx, pieces: Sequence[Piece]) -> set[int]:
    """The ids of the first pieces of the nearest texts in the same threads.

    Messages of one turn mostly have ids in a row, so these are read first. Only where another thread wrote in between,
    or the thread begins or ends there, is the index asked for the neighbours.
    """
    texts = {piece.message: piece for piece in pieces if piece.message is not None}
    steps = range(1, NEIGHBOUR_REACH + 1)
    near = sorted({message + side * step for message in texts for side in _SIDES for step in steps})
    beginnings = "SELECT message_id, thread_id, id FROM pieces WHERE message_id IN ({}) AND start = 0"
    nearby: dict[int, tuple[str, int]] = {row[0]: row[1:] for row in tx.all_in(beginnings, near)}
    neighbours: set[int] = set()
    apart: list[Query] = []
    for piece in [*texts.values(), *(piece for piece in pieces if piece.message is None)]:
        for side, condition in _SIDES.items():
            beside = [nearby.get((piece.message or 0) + side * step) for step in steps]
            inside = [other[1] for other in beside if other is not None and other[0] == piece.thread]
            if piece.message is not None and len(inside) == NEIGHBOUR_REACH:
                neighbours.update(inside)
            else:
                sql = f"SELECT id FROM pieces WHERE thread_id = ? AND {condition} LIMIT {NEIGHBOUR_REACH}"
                apart.append((sql, (piece.thread, piece.id)))
    neighbours.update(row[0] for rows in (tx.ask(apart) if apart else ()) for row in rows)
    return neighbours


def _share_scores(pieces: Sequence[Piece], own: Mapping[int, float], of_day: Collection[int]) -> dict[int, float]:
    """The score of each piece: its own, a share of the best piece of each neighbouring text, and for its day."""
    texts = [list(group) for _, group in itertools.groupby(pieces, key=lambda piece: piece.text)]
    best = [max(own.get(piece.id, 0.0) for piece in text) for text in texts]
    values = spread(best, list(_number_sittings(text[0] for text in texts)))
    return {
        piece.id: own.get(piece.id, 0.0) + value - alone + OF_A_DAY * (piece.id in of_day)
        for text, value, alone in zip(texts, values, best, strict=True)
        for piece in text
    }


def _number_sittings(pieces: Iterable[Piece]) -> Iterator[int]:
    """A number for each piece, the same for those of one thread without a long silence between them."""
    number, thread, last = 0, "", 0.0
    for piece in pieces:
        if piece.thread != thread or abs(piece.created - last) > SILENCE_SECONDS:
            number += 1
        thread, last = piece.thread, piece.created
        yield number


def _rank_candidates(pieces: Iterable[Piece], scores: Mapping[int, float], query: RecallQuery) -> Iterator[Piece]:
    """The candidates, the best first, each text once; without texts in view and without searches."""
    shown: set[TextKey] = set()
    worth = (piece for piece in pieces if scores[piece.id] > 0)
    for piece in sorted(worth, key=lambda piece: (-scores[piece.id], -piece.id)):
        tools = piece.tool.split(",")
        if piece.text in shown or piece.message in query.seen or any(map(is_lookup, tools)):
            continue
        if query.spoken and (piece.tool or piece.role == "tool"):
            continue
        if query.role not in (None, piece.role) or query.tool not in (None, *tools):
            continue
        shown.add(piece.text)
        yield piece


def _take_turns(rankings: Sequence[Iterable[Piece]], most: int) -> list[Piece]:
    """Several rankings as one: in turn each gives its best candidate that is not chosen yet."""
    waiting = [iter(ranking) for ranking in rankings]
    chosen: dict[int, Piece] = {}
    while waiting and len(chosen) < most:
        ranking = waiting.pop(0)
        piece = next((piece for piece in ranking if piece.id not in chosen), None)
        if piece is not None:
            chosen[piece.id] = piece
            waiting.append(ranking)
    return list(chosen.values())


def _find_exchanges(pieces: Iterable[Piece]) -> list[CallPieces]:
    """The exchanges among pieces in order. Messages of one exchange follow each other."""
    exchanges = [CallPieces()]
    last = -1
    for piece in pieces:
        follows = piece.message is not None and piece.message - last in (0, 1)
        last = piece.message if piece.message is not None else -1
        if not follows or not (piece.is_result or (piece.role == "assistant" and not exchanges[-1].results)):
            exchanges.append(CallPieces())
        if piece.is_result:
            exchanges[-1].results.append(piece)
        elif piece.role == "assistant":
            exchanges[-1].calls.append(piece)
        else:
            last = -1
    return [exchange for exchange in exchanges if exchange.calls and exchange.results]


# --- the texts that are shown -----------------------------------------------------------------------------------------


ALIKE, WITHIN = 0.6, 0.9
"""A text repeats another where they share this part of all their words (`ALIKE`), or where the other holds this part of
its words (`WITHIN`); words of the question aside."""
LEAST_WITHIN = 8
"""`WITHIN` holds for texts of so many words or more."""
GLIMPSE_CHARS = 200
"""Characters of a call or result that is shown only beside a better one."""
MOST_ALIKE = 2
"""How many texts that nearly repeat another are shown with it, a glimpse of each: where only a name or a figure
differs, that may be what is asked for."""
_WORD = re.compile(r"\w+")
WordsIn = Mapping[int, Sequence[RecallWord]]
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
    tx: Tx, ranking: RecallRanking, words: Sequence[RecallWord], query: RecallQuery, turns: TurnIndex
) -> list[RecallPassage]:
    looked_at = (*ranking.first, *(piece for exchange in ranking.exchanges for piece in exchange.results))
    words_in = {piece.id: [word for word in words if piece.id in word.pieces] for piece in looked_at}
    if query.as_page:
        drafts = _choose_drafts(tx, ranking, words_in, query)
        sizes = [len(text) for draft in drafts for text in draft.parts.values()]
        room = _share_room(sizes, query.limit * query.chars)
        _add_partners(tx, drafts, ranking, words_in)
    else:
        chosen = ranking.first[: query.limit]
        drafts = [
            _PassageDraft(piece, {piece: text}) for piece, text in zip(chosen, read_pieces(tx, chosen), strict=True)
        ]
        room = query.chars
    passages = []
    for draft in drafts:
        piece = draft.first
        shown = "\n→ ".join(
            _make_glimpse(text, part, words_in.get(part.id, ()))
            if part == draft.glimpse
            else _make_excerpt(text, part, words_in[part.id], room)
            for part, text in sorted(draft.parts.items())
        )
        alike = (_make_glimpse(text, part, words_in.get(part.id, ())) for part, text in draft.alike.items())
        shown += "".join(f"\n≈ {glimpse}" for glimpse in alike if glimpse.strip("…") not in shown)
        passages.append(
            RecallPassage(
                piece.message, piece.output, piece.thread, piece.role, piece.tool, turns.of(tx, piece), piece.created,
                shown, round(ranking.scores[piece.id], 4),
                round(max(ranking.close.get(part.id, 0.0) for part in draft.parts), 4),
            )
        )  # fmt: skip
    return passages


def _choose_drafts(tx: Tx, ranking: RecallRanking, words_in: WordsIn, query: RecallQuery) -> list[_PassageDraft]:
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
            words, number, is_call = words_in[piece.id], exchanges.get(piece.id), piece.role == "assistant"
            partner = open_exchanges.get((number, is_call)) if number is not None else None
            if partner is not None:
                if words:  # else it is shown as a glimpse
                    partner.parts[piece] = text
                    del open_exchanges[number, is_call]
                continue
            own = _own_words(_make_excerpt(text, piece, words, query.chars), words)
            same = next((draft for draft in drafts if _is_repeated(own, draft.own)), None)
            if same is not None:
                if len(same.alike) < MOST_ALIKE:
                    same.alike[piece] = text
                continue
            if len(drafts) == query.limit:
                return drafts
            drafts.append(_PassageDraft(piece, {piece: text}, own))
            open_exchanges.setdefault((number, not is_call), drafts[-1])
    return drafts


def _add_partners(tx: Tx, drafts: Sequence[_PassageDraft], ranking: RecallRanking, words_in: WordsIn) -> None:
    """Add its result to a call that is shown alone, and its call to a result: a command is asked for by its outcome."""
    alone = {draft.first.id: draft for draft in drafts if len(draft.parts) == 1}
    wanted: dict[Piece, _PassageDraft] = {}
    for exchange in ranking.exchanges:
        call = next((alone[piece.id] for piece in exchange.calls if piece.id in alone), None)
        result = next((alone[piece.id] for piece in exchange.results if piece.id in alone), None)
        if call is not None:
            best = max(exchange.results, key=lambda piece: ranking.scores.get(piece.id, 0.0))
            if not words_in[best.id]:  # how it ended stands at the end
                last = tx.value("SELECT MAX(id) FROM pieces WHERE message_id = ?", (best.message,))
                [best] = load_pieces(tx, [last])
            wanted[best] = call
        elif result is not None:
            wanted[exchange.calls[-1]] = result
    for partner, text in zip(wanted, read_pieces(tx, list(wanted)), strict=True):
        wanted[partner].parts[partner] = text
        wanted[partner].glimpse = partner


def _is_repeated(own: frozenset[str], other: frozenset[str]) -> bool:
    shared = len(own & other)
    within = len(own) >= LEAST_WITHIN and shared >= WITHIN * len(own)
    return within or shared >= ALIKE * len(own | other)


def _own_words(text: str, words: Sequence[RecallWord]) -> frozenset[str]:
    """The words of a text, those of the question aside."""
    forms = {form for word in words for form in word.sought.forms}
    return frozenset(_WORD.findall(text.casefold())) - forms


def _share_room(sizes: Sequence[int], room: int) -> int:
    """The most room for each text of these sizes so that all fit; what short texts leave is for the others."""
    remaining = room
    for index, size in enumerate(sorted(sizes)):
        share = remaining // (len(sizes) - index)
        if size > share:
            return share
        remaining -= size
    return room


def _make_excerpt(text: str, piece: Piece, words: Sequence[RecallWord], chars: int) -> str:
    """All of a short text; of a longer one the part with the most words of the question."""
    if len(text) <= chars * 5 // 4:
        start, end = 0, len(text)
    else:
        position = find_richest_position(text, [word.sought.forms for word in words], chars * 3 // 4)
        start = sentence_start(text, max(0, min(position - chars // 4, len(text) - chars)))
        end = start + chars if len(text) - start > chars * 5 // 4 else len(text)
    return _show_part(text, piece, start, end)


def _make_glimpse(text: str, piece: Piece, words: Sequence[RecallWord]) -> str:
    """The text around the words; without words the beginning of a call, or the end of a result."""
    if words:
        return _make_excerpt(text, piece, words, GLIMPSE_CHARS)
    if piece.role == "assistant":
        return _show_part(text, piece, 0, GLIMPSE_CHARS)
    return _show_part(text, piece, sentence_start(text, max(0, len(text) - GLIMPSE_CHARS)), len(text))


def _show_part(text: str, piece: Piece, start: int, end: int) -> str:
    shown = redact_part(text, start, end, margin=SECRET_MARGIN).strip()
    if piece.role == "assistant" and piece.tool:  # arguments of a call as they were meant, without JSON's escapes
        shown = shown.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    return ("…" if start or piece.start else "") + shown + ("…" if end < len(text) else "")
