"""Recall: what was said and returned earlier that may answer a message, the best first.

Each word of the message is looked up on its own, in all its forms. The best pieces and their neighbours are weighed
by what the index and a few columns tell; only what is shown is read.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from everthread.core.redaction import redact_part
from everthread.core.search.lookup import is_lookup
from everthread.core.search.query import (
    NEAR,
    OF_A_DAY,
    Question,
    Sought,
    closeness,
    dilution,
    is_telling,
    rarity,
    spread,
)
from everthread.core.search.terms import encode_term, query_terms
from everthread.store.database import Database, Tx, chunks, placeholders
from everthread.store.index import IndexQuery, filter_name
from everthread.store.models import RecallPassage, RecallQuery, SearchQuery
from everthread.store.sql.search import (
    PIECE_COLUMNS,
    SECRET_MARGIN,
    SearchPiece,
    find_richest_place,
    list_sources,
    piece_text,
    search_scope,
    sentence_start,
)

MOST_THREADS = 64


@dataclass(slots=True)
class _ThreadTurns:
    """A thread's messages of the user: their ids in order, and their times in order."""

    last: int = 0
    """The newest message that was looked at, of any thread."""
    ids: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)


class TurnIndex:
    """What was said does not change: of a thread that is known only what came since is read.

    Shared by reading threads; each makes a new entry, so that none sees one half done.
    """

    def __init__(self) -> None:
        self._threads: OrderedDict[str, _ThreadTurns] = OrderedDict()

    def forget(self) -> None:
        """A thread was deleted, and others may have inherited its messages."""
        self._threads.clear()

    def of(self, tx: Tx, thread: str, message: int | None, created: float) -> int:
        """The turn of a message, or of a stored output by its time; 0 before the first."""
        known = self._threads.get(thread)
        if known is None or (message is not None and message > known.last) or message is None:
            known = _read_turns(tx, thread, known or _ThreadTurns())
            self._threads[thread] = known
            while len(self._threads) > MOST_THREADS:
                self._threads.popitem(last=False)
        return bisect.bisect(known.ids, message) if message is not None else bisect.bisect(known.times, created)


def _read_turns(tx: Tx, thread: str, known: _ThreadTurns) -> _ThreadTurns:
    newest = tx.one("SELECT MAX(id) FROM messages")
    last = int(newest[0] or 0) if newest else 0
    if last <= known.last:
        return known
    # By id where some are known: those since are few, those of the thread may be many.
    of_thread = "thread_id || '' = ?" if known.last else "thread_id = ?"
    rows = tx.all(
        f"SELECT id, created FROM messages WHERE {of_thread} AND id > ? AND id <= ? AND role = 'user' "
        "AND kind = 'message' ORDER BY id",
        (thread, known.last, last),
    )
    times = sorted([*known.times, *(row[1] for row in rows)])
    return _ThreadTurns(last, [*known.ids, *(row[0] for row in rows)], times)


NEIGHBOUR_REACH = 2
"""How many texts before and behind it a text has neighbours."""
_SIDES = {-1: "id < ? AND start = 0 ORDER BY id DESC", 1: "id > ? AND start = 0 ORDER BY id"}


def find_neighbours(tx: Tx, pieces: Sequence[RecallCandidate]) -> set[int]:
    """The ids of the first pieces of the nearest texts in the same threads.

    What is said in one go has ids in a row, so these are looked at first; only where another thread came between, or
    the thread begins or ends there, is it asked for.
    """
    steps = [step for step in range(-NEIGHBOUR_REACH, NEIGHBOUR_REACH + 1) if step]
    texts = {piece.message: piece for piece in pieces if piece.message is not None}
    near = sorted({message + step for message in texts for step in steps})
    known: dict[int, tuple[str, int]] = {}
    for some in chunks(near):
        rows = tx.all(
            f"SELECT message_id, thread_id, id FROM pieces WHERE message_id IN ({placeholders(some)}) AND start = 0",
            some,
        )
        known |= {row[0]: row[1:] for row in rows}
    found: set[int] = set()
    apart: list[tuple[str, tuple[str, int]]] = []
    for piece in [*texts.values(), *(piece for piece in pieces if piece.message is None)]:
        for side, condition in _SIDES.items():
            beside = [known.get((piece.message or 0) + side * step) for step in range(1, NEIGHBOUR_REACH + 1)]
            inside = [other[1] for other in beside if other is not None and other[0] == piece.thread]
            if piece.message is not None and len(inside) == NEIGHBOUR_REACH:
                found.update(inside)
            else:
                sql = f"SELECT id FROM pieces WHERE thread_id = ? AND {condition} LIMIT {NEIGHBOUR_REACH}"
                apart.append((sql, (piece.thread, piece.id)))
    found.update(row[0] for rows in (tx.ask(apart) if apart else ()) for row in rows)
    return found


POSTINGS = 1_000
"""Of each word the newest so many pieces are looked at: one that has more says little."""
MOST_WORDS = 10
"""So many words are looked up in all their forms, the most telling ones."""
COMMON_COUNT = 64
"""A word that so many pieces hold as it was typed is looked up last."""


@dataclass(frozen=True, slots=True)
class RecallWord:
    """A word that was looked up, and how much it counts."""

    sought: Sought
    weight: float
    pieces: frozenset[int]
    telling: bool
    """Whether it tells one place from another: not one that stands everywhere, nor one of a date."""
    of_users: frozenset[int] = frozenset()
    """The pieces among all that people said, where that is asked for."""


def look_up_words(
    tx: Tx, database: Database, scope: IndexQuery, sought: Sequence[Sought], thread: str | None, *, by_role: bool
) -> list[RecallWord]:
    """The words with the pieces that hold them; of many words the most telling."""
    total = _count_pieces(tx, thread)
    chosen, absent = _pick_telling_words(tx, database, scope, sought) if len(sought) > MOST_WORDS else (sought, ())
    words = []
    for item in chosen:
        asked = replace(scope, one_of=(_encoded(item),))
        pieces = frozenset(database.holding(tx, asked, POSTINGS))
        telling = item.counted and is_telling(len(pieces), total)
        asked = replace(asked, names=(*asked.names, (filter_name("role", "user"),)))
        of_users = frozenset(database.holding(tx, asked, POSTINGS)) if by_role else frozenset()
        words.append(RecallWord(item, item.weight * rarity(len(pieces), total), pieces, telling, of_users))
    words = _complete_postings(tx, database, scope, words)
    nowhere = rarity(0, total)
    return words + [RecallWord(item, item.weight * nowhere, frozenset(), item.counted) for item in absent]


def _complete_postings(tx: Tx, database: Database, scope: IndexQuery, words: Sequence[RecallWord]) -> list[RecallWord]:
    """Of words that stand in too many pieces also those that hold other words of the question, however old.

    With one of the rarer words, with all of the frequent ones, with all of these but one.
    """
    frequent = [word for word in words if len(word.pieces) == POSTINGS]
    rare = tuple(term for word in words if 0 < len(word.pieces) < POSTINGS for term in _encoded(word.sought))
    more: dict[int, set[int]] = {id(word): set() for word in frequent}

    def hold_together(some: Sequence[RecallWord], *others: tuple[str, ...]) -> None:
        asked = replace(scope, one_of=(*(_encoded(word.sought) for word in some), *others))
        found = database.holding(tx, asked, POSTINGS)
        for word in some:
            more[id(word)].update(found)

    for word in frequent if rare else ():
        hold_together([word], rare)
    if len(frequent) > 1:
        hold_together(frequent)
        for without in frequent if len(frequent) > 2 else ():
            hold_together([word for word in frequent if word is not without])
    return [replace(word, pieces=word.pieces | more.get(id(word), set())) for word in words]


def _without_parts(words: Sequence[RecallWord]) -> list[RecallWord]:
    """An identifier counts what its words do not: they stand wherever it does."""
    weights = {word.sought.forms[0]: word.weight for word in words}
    found = []
    for word in words:
        name = word.sought.forms[0]
        parts = sum(weights.get(part, 0.0) for part in query_terms(name) if part != name)
        found.append(replace(word, weight=max(word.weight - parts, word.weight / 4)) if parts else word)
    return found


def _encoded(item: Sought) -> tuple[str, ...]:
    return tuple(map(encode_term, item.forms))


def _pick_telling_words(
    tx: Tx, database: Database, scope: IndexQuery, sought: Sequence[Sought]
) -> tuple[list[Sought], Sequence[Sought]]:
    """Those to be looked up; and those that stand nowhere as typed, which a place that answers lacks."""
    held: list[tuple[int, Sought]] = []
    for item in sought:
        asked = replace(scope, one_of=((encode_term(item.forms[0]),),))
        held.append((len(database.holding(tx, asked, COMMON_COUNT)), item))
    here = sorted((pair for pair in held if 0 < pair[0] < COMMON_COUNT), key=lambda pair: pair[0])
    nowhere = [item for count, item in held if count == 0]
    ordered = [*(item for _, item in here), *nowhere, *(item for count, item in held if count == COMMON_COUNT)]
    return ordered[:MOST_WORDS], nowhere[max(0, MOST_WORDS - len(here)) :]


def _count_pieces(tx: Tx, thread: str | None) -> int:
    """How many pieces there are; of all threads about how many."""
    if thread is None:
        row = tx.one("SELECT MAX(id) FROM pieces")
    else:
        sources = list_sources(tx, thread)
        row = tx.one(f"SELECT COUNT(*) FROM pieces WHERE thread_id IN ({placeholders(sources)})", sources)
    return int(row[0] or 0) if row else 0


def weigh_pieces(words: Sequence[RecallWord], most: int) -> dict[int, float]:
    """Pieces with the weights of the words they hold; so many of the best are surely among them.

    The words that count most come first. Once so many pieces have more than all words left can give, no other piece
    can be among the best, and the words left only count for those that are known.
    """
    found: dict[int, float] = {}
    left = sum(word.weight for word in words)
    closed = False
    for word in sorted(words, key=lambda word: -word.weight):
        closed = closed or (len(found) >= most and sum(value >= left for value in found.values()) >= most)
        for piece in found.keys() & word.pieces if closed else word.pieces:
            found[piece] = found.get(piece, 0.0) + word.weight
        left -= word.weight
    return found


def closeness_of(piece: int, words: Sequence[RecallWord], *, as_page: bool) -> float:
    """How much of what was asked a piece holds itself, 0 to 1. A page is asked for also by words that tell nothing."""
    counted = [word for word in words if word.telling] or [word for word in words if as_page]
    held = [word.weight for word in counted if piece in word.pieces]
    return closeness(held, [word.weight for word in counted])


SILENCE_SECONDS = 1_800.0
"""Seconds of silence after which what is said next is no answer to what was said before."""


class RecallCandidate(NamedTuple):
    id: int
    thread: str
    message: int | None
    output: str | None
    role: str
    tool: str
    length: int
    created: float

    @property
    def text(self) -> tuple[int | None, str | None, str]:
        """What it is a piece of."""
        return self.message, self.output, self.thread

    @property
    def is_result(self) -> bool:
        """In whichever message it came."""
        return self.role != "assistant" and (bool(self.tool) or self.role == "tool")


def load_with_neighbours(
    tx: Tx, scope: IndexQuery, weights: Mapping[int, float], best: Sequence[int], certain: Collection[int]
) -> list[RecallCandidate]:
    """The best pieces and those around them in their threads, thread by thread, in the order they were said."""
    found = _keep_best(_load_candidates(tx, scope, best), weights, certain)
    known = {piece.id for piece in found}
    around = find_neighbours(tx, found)
    return sorted(
        [*found, *_load_candidates(tx, scope, sorted(around - known))], key=lambda piece: (piece.thread, piece.id)
    )


def _keep_best(
    pieces: Sequence[RecallCandidate], weights: Mapping[int, float], certain: Collection[int]
) -> list[RecallCandidate]:
    """As many as are weighed with their neighbours, the certain ones among them.

    Where one word decides, hundreds of pieces hold the same: then their length tells, and what the messages next to
    them hold, not which of them is newest.
    """
    if len(pieces) <= RECALL_CANDIDATES:
        return list(pieces)
    own = {piece.id: weights[piece.id] / dilution(piece.length) for piece in pieces}
    of_message: dict[int, float] = {}
    for piece in pieces:
        if piece.message is not None:
            of_message[piece.message] = max(own[piece.id], of_message.get(piece.message, 0.0))

    def rough_score(piece: RecallCandidate) -> tuple[bool, float, int]:
        near = sum(share * of_message.get((piece.message or 0) + step, 0.0) for step, share in NEAR.items())
        return piece.id in certain, own[piece.id] + near * (piece.message is not None), piece.id

    return sorted(pieces, key=rough_score, reverse=True)[:RECALL_CANDIDATES]


def share_scores(pieces: Sequence[RecallCandidate], own: Mapping[int, float]) -> dict[int, float]:
    """What each piece is worth by itself and by the texts next to its own: of these the best piece counts."""
    texts = [list(group) for _, group in itertools.groupby(pieces, key=lambda piece: piece.text)]
    best = [max(own.get(piece.id, 0.0) for piece in text) for text in texts]
    values = spread(best, list(_number_sittings(text[0] for text in texts)))
    return {
        piece.id: own.get(piece.id, 0.0) + value - alone
        for text, value, alone in zip(texts, values, best, strict=True)
        for piece in text
    }


def rank_candidates(
    pieces: Iterable[RecallCandidate], scores: Mapping[int, float], query: RecallQuery
) -> Iterator[RecallCandidate]:
    """The best first, each text once; not what is in view, nor what only looked things up."""
    known: set[tuple[int | None, str | None, str]] = set()
    worth = (piece for piece in pieces if scores[piece.id] > 0)
    for piece in sorted(worth, key=lambda piece: (-scores[piece.id], -piece.id)):
        if piece.text in known or piece.message in query.seen or any(map(is_lookup, piece.tool.split(","))):
            continue
        if query.spoken and (piece.tool or piece.role == "tool"):
            continue
        if query.role not in (None, piece.role) or query.tool not in (None, *piece.tool.split(",")):
            continue
        known.add(piece.text)
        yield piece


def _load_candidates(tx: Tx, scope: IndexQuery, ids: Sequence[int]) -> list[RecallCandidate]:
    within = f" AND {scope.where}" if scope.where else ""
    return [
        RecallCandidate(*row)
        for some in chunks(ids)
        for row in tx.all(
            "SELECT p.id, p.thread_id, p.message_id, p.output_id, p.role, p.tool, p.length, p.created "
            f"FROM pieces p WHERE p.id IN ({placeholders(some)}){within}",
            (*some, *scope.values),
        )
    ]


def _number_sittings(pieces: Iterable[RecallCandidate]) -> Iterator[int]:
    """A number for each piece, the same for those of one thread without a long silence between them."""
    number, thread, last = 0, "", 0.0
    for piece in pieces:
        if piece.thread != thread or abs(piece.created - last) > SILENCE_SECONDS:
            number += 1
        thread, last = piece.thread, piece.created
        yield number


RECALL_CANDIDATES = 150
"""So many pieces are weighed, and their neighbours."""
ROUGH_CANDIDATES = 4 * RECALL_CANDIDATES
"""They are chosen among so many that hold the most of the words."""
DECIDING_PLACES = 10
"""Among so many first places one must be close enough."""


@dataclass(frozen=True, slots=True)
class RecallRanking:
    """A ranking: pieces, the best first, what each is worth and how close it is. Empty where none is close enough."""

    first: list[RecallCandidate] = field(default_factory=list)
    scores: Mapping[int, float] = field(default_factory=dict)
    close: Mapping[int, float] = field(default_factory=dict)
    exchanges: Sequence[Exchange] = ()
    """Calls with their results, where both were looked at."""


def recall_passages(
    tx: Tx, database: Database, query: RecallQuery, question: Question, turns: TurnIndex
) -> list[RecallPassage]:
    scope = search_scope(tx, SearchQuery("", tenant=query.tenant, thread=query.thread)) if question.sought else None
    if scope is None or query.limit <= 0:
        return []
    if query.thread is not None:  # which is the tenant's: `scope_of` has seen to it
        scope = replace(scope, names=scope.names[1:])
    words = look_up_words(tx, database, scope, question.sought, query.thread, by_role=query.as_page)
    arm = _rank_by_words(tx, scope, words, question, query)
    return _make_passages(tx, arm, words, query, turns)


ROLE_WEIGHTS = {"user": 1.0, "assistant": 0.5, "tool": 0.4}
"""What a text counts by who said it (`benchmarks retention`): people ask for what people said."""


def role_weight(piece: RecallCandidate) -> float:
    return ROLE_WEIGHTS.get("tool" if piece.is_result else piece.role, 1.0)


def _best_pieces(weights: Mapping[int, float], most: int) -> list[int]:
    return sorted(weights, key=lambda piece_id: (-weights[piece_id], -piece_id))[:most]


def _take_turns(rankings: Sequence[Iterable[RecallCandidate]], most: int) -> list[RecallCandidate]:
    """Several rankings as one: each gives its best in turn that no other gave."""
    waiting = [iter(ranking) for ranking in rankings]
    found: dict[int, RecallCandidate] = {}
    while waiting and len(found) < most:
        ranking = waiting.pop(0)
        piece = next((piece for piece in ranking if piece.id not in found), None)
        if piece is not None:
            found[piece.id] = piece
            waiting.append(ranking)
    return list(found.values())


def _rank_by_words(
    tx: Tx, scope: IndexQuery, words: Sequence[RecallWord], question: Question, query: RecallQuery
) -> RecallRanking:
    weighed = _without_parts(words)
    weights = weigh_pieces(weighed, ROUGH_CANDIDATES)
    best = _best_pieces(weights, ROUGH_CANDIDATES)
    of_users: list[int] = []
    if query.as_page:
        spoken = weigh_pieces([replace(word, pieces=word.of_users) for word in weighed], RECALL_CANDIDATES)
        of_users = _best_pieces(spoken, RECALL_CANDIDATES // 2)
        weights |= spoken
    pieces = load_with_neighbours(tx, scope, weights, list(dict.fromkeys([*of_users, *best])), set(of_users))
    own = {piece.id: weights[piece.id] / dilution(piece.length) for piece in pieces if piece.id in weights}
    scores = share_scores(pieces, own)
    for piece in pieces if question.spans else ():
        if any(piece.created in span for span in question.spans):
            scores[piece.id] += OF_A_DAY
    most = max(query.limit * (PAGE_DEPTH if query.as_page else 1), DECIDING_PLACES)
    first = list(islice(rank_candidates(pieces, scores, query), most))
    if query.as_page:
        by_role = share_scores(pieces, {p.id: own[p.id] * role_weight(p) for p in pieces if p.id in own})
        first = _take_turns([islice(rank_candidates(pieces, by_role, query), most), first], most)
    close = {piece.id: closeness_of(piece.id, words, as_page=query.as_page) for piece in first}
    if max(list(close.values())[:DECIDING_PLACES], default=0.0) < query.least:
        return RecallRanking()
    return RecallRanking(first, scores, close, _find_exchanges(pieces) if query.as_page else ())


@dataclass(slots=True)
class Exchange:
    """What the assistant said and called, and the results that follow: pieces of both that were looked at."""

    asked: list[RecallCandidate] = field(default_factory=list)
    results: list[RecallCandidate] = field(default_factory=list)


def _find_exchanges(pieces: Iterable[RecallCandidate]) -> list[Exchange]:
    """Of pieces in the order they were said. Messages of one exchange follow each other."""
    found = [Exchange()]
    last = -1
    for piece in pieces:
        follows = piece.message is not None and piece.message - last in (0, 1)
        last = piece.message if piece.message is not None else -1
        if not follows or not (piece.is_result or (piece.role == "assistant" and not found[-1].results)):
            found.append(Exchange())
        if piece.is_result:
            found[-1].results.append(piece)
        elif piece.role == "assistant":
            found[-1].asked.append(piece)
        else:
            last = -1
    return [exchange for exchange in found if exchange.asked and exchange.results]


PAGE_DEPTH = 6
"""So many times as many places as are asked for are looked at for some that say something of their own."""
ALIKE, WITHIN = 0.6, 0.9
"""A place says nothing of its own where it shares so many of all words with another, those of the question aside, or
where the other shows so many of its words."""
LEAST_WITHIN = 8
"""A place of fewer words is not told to stand within another: it says the same in short."""
_WORD = re.compile(r"\w+")


GLIMPSE_CHARS = 200
"""Of a call or result that only stands beside a better one."""
MOST_ALIKE = 2
"""Short texts that say nearly the same are shown with the place they repeat: where only a figure differs, that figure
may be what is asked for."""


@dataclass(slots=True)
class _Place:
    """A text that is shown, or a call with its result."""

    first: RecallCandidate
    """The better of the two."""
    parts: dict[int, tuple[SearchPiece, str]] = field(default_factory=dict)
    """By the ids of the pieces: a call comes before its result."""
    glimpse: int = 0
    """Of these the piece that was not found itself."""
    alike: list[tuple[SearchPiece, str]] = field(default_factory=list)


def _make_passages(
    tx: Tx, arm: RecallRanking, words: Sequence[RecallWord], query: RecallQuery, turns: TurnIndex
) -> list[RecallPassage]:
    looked_at = (*arm.first, *(piece for exchange in arm.exchanges for piece in exchange.results))
    held = {piece.id: [word for word in words if piece.id in word.pieces] for piece in looked_at}
    if query.as_page:
        places = _choose_places(tx, arm, held, query)
        room = _share_room(
            [len(text) for place in places for _, text in place.parts.values()], query.limit * query.chars
        )
        _add_partners(tx, places, arm, held)
    else:
        chosen = arm.first[: query.limit]
        read = zip(chosen, _read_pieces(tx, [piece.id for piece in chosen]), strict=True)
        places = [_Place(piece, {piece.id: part}) for piece, part in read]
        room = query.chars
    passages = []
    for place in places:
        piece = place.first
        shown = "\n→ ".join(
            _make_glimpse(text, part, held.get(part.id, ()))
            if part.id == place.glimpse
            else _make_excerpt(text, part, held[part.id], room)
            for _, (part, text) in sorted(place.parts.items())
        )
        shown += "".join(f"\n≈ {_show_part(text, part, 0, len(text))}" for part, text in place.alike)
        turn = turns.of(tx, piece.thread, piece.message, piece.created)
        passages.append(
            RecallPassage(
                piece.message, piece.output, piece.thread, piece.role, piece.tool, turn, piece.created,
                shown, round(arm.scores[piece.id], 4), round(arm.close[piece.id], 4),
            )
        )  # fmt: skip
    return passages


def _choose_places(
    tx: Tx, arm: RecallRanking, held: Mapping[int, Sequence[RecallWord]], query: RecallQuery
) -> list[_Place]:
    """The best places that each say something of their own, as many as are asked for."""
    exchanges = {
        piece.id: number
        for number, exchange in enumerate(arm.exchanges)
        for piece in (*exchange.asked, *exchange.results)
    }
    places: list[_Place] = []
    known: list[frozenset[str]] = []
    open_exchanges: dict[tuple[int | None, bool], _Place] = {}
    for start in range(0, len(arm.first), query.limit):
        some = arm.first[start : start + query.limit]
        for piece, part in zip(some, _read_pieces(tx, [piece.id for piece in some]), strict=True):
            number, is_asked = exchanges.get(piece.id), piece.role == "assistant"
            partner = open_exchanges.get((number, is_asked)) if number is not None else None
            if partner is not None:
                if held[piece.id]:  # else it is given a glimpse
                    partner.parts[piece.id] = part
                    del open_exchanges[number, is_asked]
                continue
            own = _own_words(_make_excerpt(part[1], part[0], held[piece.id], query.chars), held[piece.id])
            same = next((place for place, other in zip(places, known, strict=True) if _is_repeated(own, other)), None)
            if same is not None:
                if len(part[1]) <= GLIMPSE_CHARS and len(same.alike) < MOST_ALIKE:
                    same.alike.append(part)
                continue
            if len(places) == query.limit:
                return places
            known.append(own)
            places.append(_Place(piece, {piece.id: part}))
            open_exchanges.setdefault((number, not is_asked), places[-1])
    return places


def _add_partners(
    tx: Tx, places: Sequence[_Place], arm: RecallRanking, held: Mapping[int, Sequence[RecallWord]]
) -> None:
    """Gives a call that is shown alone its result, and a result its call: a command is asked for by what came of it."""
    alone = {place.first.id: place for place in places if len(place.parts) == 1}
    wanted: dict[int, _Place] = {}
    for exchange in arm.exchanges:
        asked = next((alone[piece.id] for piece in exchange.asked if piece.id in alone), None)
        result = next((alone[piece.id] for piece in exchange.results if piece.id in alone), None)
        if asked is not None:
            best = max(exchange.results, key=lambda piece: arm.scores.get(piece.id, 0.0))
            sql = "SELECT MAX(id) FROM pieces WHERE message_id = ?"  # how it ended stands at the end
            row = None if held[best.id] else tx.one(sql, (best.message,))
            wanted[row[0] if row else best.id] = asked
        elif result is not None:
            wanted[exchange.asked[-1].id] = result
    for partner, part in zip(wanted, _read_pieces(tx, list(wanted)), strict=True):
        wanted[partner].parts[partner] = part
        wanted[partner].glimpse = partner


def _is_repeated(own: frozenset[str], other: frozenset[str]) -> bool:
    shared = len(own & other)
    within = len(own) >= LEAST_WITHIN and shared >= WITHIN * len(own)
    return within or shared >= ALIKE * len(own | other)


def _own_words(text: str, held: Sequence[RecallWord]) -> frozenset[str]:
    """The words of a text, those of the question aside."""
    asked = {form for word in held for form in word.sought.forms}
    return frozenset(_WORD.findall(text.casefold())) - asked


def _share_room(sizes: Sequence[int], room: int) -> int:
    """The most that each of texts of these sizes may have, so that all fit: what short ones leave is for the others."""
    left = room
    for place, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - place)
        if size > share:
            return share
        left -= size
    return room


def _read_pieces(tx: Tx, ids: Sequence[int]) -> list[tuple[SearchPiece, str]]:
    """Pieces with their texts."""
    shown = _load_in_order(tx, ids)
    bodies: dict[int, str] = {}
    for some in chunks([piece.message for piece in shown if piece.message is not None]):
        bodies |= dict(tx.all(f"SELECT id, body FROM messages WHERE id IN ({placeholders(some)})", some))
    return [(piece, piece_text(tx, piece, bodies)) for piece in shown]


def _load_in_order(tx: Tx, ids: Sequence[int]) -> list[SearchPiece]:
    """All that is known of pieces, in this order."""
    rows = tx.all(f"SELECT {PIECE_COLUMNS} FROM pieces WHERE id IN ({placeholders(ids)})", ids) if ids else []
    found = {row[0]: SearchPiece(0.0, *row) for row in rows}
    return [found[piece_id] for piece_id in ids]


def _make_excerpt(text: str, piece: SearchPiece, held: Sequence[RecallWord], chars: int) -> str:
    """All of a short text; of a longer one the part with the most words of the question."""
    if len(text) <= chars * 5 // 4:
        start, end = 0, len(text)
    else:
        place = find_richest_place(text, [word.sought.forms for word in held], chars * 3 // 4)
        start = sentence_start(text, max(0, min(place - chars // 4, len(text) - chars)))
        end = start + chars if len(text) - start > chars * 5 // 4 else len(text)
    return _show_part(text, piece, start, end)


def _make_glimpse(text: str, piece: SearchPiece, held: Sequence[RecallWord]) -> str:
    """What stands around the words; without any the beginning of a call, or the end of a result."""
    if held:
        return _make_excerpt(text, piece, held, GLIMPSE_CHARS)
    if piece.role == "assistant":
        return _show_part(text, piece, 0, GLIMPSE_CHARS)
    return _show_part(text, piece, sentence_start(text, max(0, len(text) - GLIMPSE_CHARS)), len(text))


def _show_part(text: str, piece: SearchPiece, start: int, end: int) -> str:
    shown = redact_part(text, start, end, margin=SECRET_MARGIN).strip()
    if piece.role == "assistant" and piece.tool:  # arguments of a call as they were meant, without JSON's escapes
        shown = shown.replace("\\n", "\n").replace('\\"', '"').replace("\\\\", "\\")
    return ("…" if start or piece.start else "") + shown + ("…" if end < len(text) else "")
