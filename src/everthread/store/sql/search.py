"""Search for words, phrases, identifiers and Chinese, Japanese or Korean characters in messages and outputs."""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from everthread.core.messages import calls_of, results_of
from everthread.core.redaction import redact_part
from everthread.core.search.lookup import Neighbour
from everthread.core.transcript import is_lookup
from everthread.errors import StoreDamagedError, UnknownIdError
from everthread.store.database import LAST, Row, Tx, clean_text, decode_json
from everthread.store.index import (
    ERA_RUN,
    LONG_TEXT,
    IndexMatch,
    IndexQuery,
    ParsedQuery,
    QueryPhrase,
    filter_name,
    output_text,
    parse_query,
    searchable_text,
)
from everthread.store.models import SearchHit, SearchQuery
from everthread.store.sql.messages import HOME_FIRST

# --- the part of a text that is shown ---------------------------------------------------------------------------------


SNIPPET_LENGTH = 160
SNIPPET_BEFORE = SNIPPET_LENGTH // 4
SENTENCE_REACH = 150
"""Characters before a part that are shown with it where its sentence begins there."""
MOST_PLACES = 200
"""The most positions of a word that are compared with those of others."""
SECRET_MARGIN = 200
"""Characters around a snippet that are searched for secrets too."""
RAW_MARGIN = 2_000
"""The same for a part of a message as it was said: a secret is recognised by the text beside it."""
_CLUSTER = re.compile(r".[\u0300-\u036f\u1160-\u11ff\u3099\u309a]*", re.DOTALL)


def make_snippet(text: str, words: Sequence[Sequence[str]], *, goes_before: bool = False) -> str:
    """The part of a text with the most of the words, on one line.

    `goes_before`: the text is a piece that begins inside a longer one.
    """
    folded, places = _fold_text(text)
    hits = ((at, number) for number, word in enumerate(words) for at in _run_positions(folded, word))
    position = _richest_start(hits, SNIPPET_LENGTH - SNIPPET_BEFORE, places)
    start = max(0, min(position - SNIPPET_BEFORE, len(text) - SNIPPET_LENGTH))
    end = start + SNIPPET_LENGTH
    # What is indexed holds no secrets; this looks once more, with the rules of today.
    shown = redact_part(text, start, end, margin=SECRET_MARGIN)
    return ("…" if start or goes_before else "") + " ".join(shown.split()) + ("…" if end < len(text) else "")


def find_richest_position(text: str, words: Sequence[Sequence[str]], reach: int) -> int:
    """The start of the part of so many characters with the most different words, each given by all its forms.

    No pattern is made for a word, so that many cost little.
    """
    folded, places = _fold_text(text)
    hits = ((at, n) for n, forms in enumerate(words) for form in forms for at in _word_positions(folded, form))
    return _richest_start(hits, reach, places)


def sentence_start(text: str, at: int) -> int:
    """The start of the sentence or line around a position; the position itself where that is far."""
    near = max(0, at - SENTENCE_REACH)
    begins = max(text.rfind("\n", near, at), text.rfind(". ", near, at))
    return begins + 1 if begins >= 0 else near if not near else at


def _richest_start(hits: Iterable[tuple[int, int]], reach: int, places: Sequence[int] | None) -> int:
    """The start of the part with the most different words; of equals the shortest part, then the first.

    `hits`: positions and the words that stand there. `places`: where the characters came from.
    """
    ordered = sorted(hits)
    best = most = first = 0
    shortest = reach
    within: Counter[int] = Counter()
    for at, number in ordered:
        within[number] += 1
        while at - ordered[first][0] >= reach or within[ordered[first][1]] > 1:
            within[ordered[first][1]] -= 1
            if not within[ordered[first][1]]:
                del within[ordered[first][1]]
            first += 1
        span = at - ordered[first][0]
        if (len(within), -span) > (most, -shortest):
            best, most, shortest = ordered[first][0], len(within), span
    return places[best] if places else best


def _word_positions(folded: str, word: str) -> Iterator[int]:
    """The positions of a word on its own; single characters of scripts without spaces always are."""
    at, end = folded.find(word), len(folded)
    for _ in range(MOST_PLACES):
        if at < 0:
            return
        behind = at + len(word)
        joined = (at > 0 and folded[at - 1].isalnum()) or (behind < end and folded[behind].isalnum())
        if not (joined and word.isascii()):
            yield at
        at = folded.find(word, behind)


def _run_positions(folded: str, word: Sequence[str]) -> list[int]:
    """The positions of a word: on its own, else inside others, else of one of its terms."""
    run = r"[\W_]*+".join(map(re.escape, word))
    for pattern in (rf"(?<![^\W_]){run}(?![^\W_])", run, "|".join(map(re.escape, word))):
        matches = zip(re.finditer(pattern, folded), range(MOST_PLACES), strict=False)
        if positions := [match.start() for match, _ in matches]:
            return positions
    return []


def _fold_text(text: str) -> tuple[str, list[int] | None]:
    """The text as it is searched, and where each of its characters came from; None where they stand one to one."""
    if text.isascii():
        return text.lower(), None
    folded = unicodedata.normalize("NFKC", text).casefold()
    if len(folded) == len(text):
        return folded, None
    parts = [(match.start(), unicodedata.normalize("NFKC", match[0]).casefold()) for match in _CLUSTER.finditer(text)]
    return "".join(part for _, part in parts), [start for start, part in parts for _ in part]


# --- where to search --------------------------------------------------------------------------------------------------


OF_THREAD = (
    "(p.thread_id = ? OR EXISTS (SELECT 1 FROM places q WHERE q.session_id = ? AND q.message_id = p.message_id) "
    "OR EXISTS (SELECT 1 FROM citations c WHERE c.thread_id = ? AND c.output_id = p.output_id))"
)
OF_SESSION = (
    "(EXISTS (SELECT 1 FROM places q WHERE q.session_id = ? AND q.message_id = p.message_id) "
    "OR p.output_id IS NOT NULL AND p.created >= ? AND p.created <= ?)"
)


def search_scope(tx: Tx, query: SearchQuery) -> IndexQuery | None:
    """The bounds of a search, without its words; None where nothing can be within them."""
    tenants = [query.tenant]
    if query.tenant is None:
        tenants = [row[0] for row in tx.all("SELECT DISTINCT tenant FROM sessions ORDER BY 1 LIMIT 500")]
        if not tenants:
            return None
    names = [tuple(filter_name("tenant", tenant) for tenant in tenants if tenant is not None)]
    spoken = (("role", query.role), ("tool", query.tool))
    names += [(filter_name(kind, clean_text(value)),) for kind, value in spoken if value is not None]
    where: list[str] = []
    values: list[Any] = []
    if query.thread is not None:
        thread = _scope_session(tx, query.thread, query.tenant)[0]
        sources = list_sources(tx, thread)
        names.append(tuple(filter_name("thread", source) for source in sources))
        if len(sources) > 1:
            where.append(OF_THREAD)
            values += (thread, thread, thread)
    if query.session is not None:
        thread, started, ended = _scope_session(tx, query.session, query.tenant)
        names.append(tuple(filter_name("thread", source) for source in list_sources(tx, thread)))
        where.append(OF_SESSION)
        values += (query.session, started, ended if ended is not None else 1e18)
    first, before = 0, LAST
    if query.since is not None or query.until is not None:
        since = -1e18 if query.since is None else query.since
        until = 1e18 if query.until is None else query.until
        where.append("p.created >= ? AND p.created < ?")
        values += (since, until)
        runs = tx.one("SELECT MIN(run), MAX(run) FROM eras WHERE latest >= ? AND earliest < ?", (since, until))
        if runs is None or runs[0] is None:
            return None
        first, before = runs[0] * ERA_RUN, (runs[1] + 1) * ERA_RUN
    return IndexQuery((), tuple(names), first, before, " AND ".join(where), tuple(values))


def _scope_session(tx: Tx, session_id: str, tenant: str | None) -> Row:
    """Thread, start and end of a session."""
    row = tx.one("SELECT thread_id, started, ended, tenant FROM sessions WHERE id = ?", (session_id,))
    if row is None or tenant not in (None, row[3]):
        raise UnknownIdError(f"there is no thread or session {session_id!r} to search in")
    return row[:3]


def list_sources(tx: Tx, thread: str) -> list[str]:
    """The thread, and for a branch those whose messages and outputs it shares."""
    if tx.value("SELECT kind FROM sessions WHERE id = ?", (thread,)) != "branch":
        return [thread]
    rows = tx.all(
        "SELECT m.thread_id FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? UNION "
        "SELECT p.thread_id FROM citations c JOIN pieces p ON p.output_id = c.output_id WHERE c.thread_id = ?",
        (thread, thread),
    )
    return [thread, *sorted({row[0] for row in rows} - {thread})]


MOST_CALLS = 500
"""The most messages that name the path and are read, the newest."""


def find_path_calls(tx: Tx, query: SearchQuery, path: str) -> set[str]:
    """The ids of calls that name a path."""
    scope = search_scope(tx, replace(query, role="assistant", tool=None, since=None, until=None))
    ways = parse_query(f'"{path}"').ways
    if scope is None or not ways:
        return set()
    pieces = tx.match_ids(replace(scope, phrases=ways[0]), MOST_CALLS)
    in_pieces = "SELECT m.body FROM messages m WHERE m.id IN (SELECT p.message_id FROM pieces p WHERE p.id IN ({}))"
    bodies = (json.loads(row[0]) for row in tx.all_in(in_pieces, pieces))
    return {call.id for body in bodies for call in calls_of(body) if path in call.arguments}


def _is_of_path(tx: Tx, piece: Piece, path: str, calls: set[str]) -> bool:
    """Whether a message or a thread's output answers one of the calls with this path, or makes one."""
    if piece.output is not None:
        sql = "SELECT call_id FROM citations WHERE thread_id = ? AND output_id = ?"
        return not calls.isdisjoint(row[0] for row in tx.all(sql, (piece.thread, piece.output)))
    body = json.loads(tx.value("SELECT body FROM messages WHERE id = ?", (piece.message,)) or "{}")
    makes_one = any(path in call.arguments for call in calls_of(body))
    return makes_one or not calls.isdisjoint(result.call_id for result in results_of(body))


# --- pieces -----------------------------------------------------------------------------------------------------------


TextKey = tuple[int | None, str | None, str]


class Piece(NamedTuple):
    """A row of `pieces`: a part of a message, or of an output as a thread cites it."""

    id: int
    message: int | None
    output: str | None
    tenant: str
    thread: str
    role: str
    tool: str
    start: int
    length: int
    said: str | None
    """Its text, where secrets were taken out of it."""
    created: float

    @property
    def text(self) -> TextKey:
        """The key of the text that it is a part of."""
        return self.message, self.output, self.thread

    @property
    def is_result(self) -> bool:
        """Whether this is a tool's result, in a message of any role."""
        return self.role != "assistant" and (bool(self.tool) or self.role == "tool")


PIECE_COLUMNS = (
    "p.id, p.message_id, p.output_id, p.tenant, p.thread_id, p.role, p.tool, p.start, p.length, p.said, p.created"
)


def load_pieces(tx: Tx, ids: Sequence[int], where: str = "", values: Sequence[Any] = ()) -> list[Piece]:
    """Pieces within a condition, in any order."""
    within = f" AND {where}" if where else ""
    sql = f"SELECT {PIECE_COLUMNS} FROM pieces p WHERE p.id IN ({{}}){within}"
    return [Piece(*row) for row in tx.all_in(sql, ids, *values)]


def read_pieces(tx: Tx, pieces: Sequence[Piece]) -> list[str]:
    """The texts of pieces."""
    ids = [piece.message for piece in pieces if piece.message is not None and piece.said is None]
    bodies: dict[int | None, str] = dict(tx.all_in("SELECT id, body FROM messages WHERE id IN ({})", ids))
    texts = []
    for piece in pieces:
        if piece.said is not None:
            texts.append(piece.said)
            continue
        if piece.output is not None:
            text = output_text(tx, piece.output, piece.tenant)
        else:
            text = searchable_text(json.loads(bodies.get(piece.message, "{}")))
        texts.append(text[piece.start : piece.start + piece.length])
    return texts


# --- the search -------------------------------------------------------------------------------------------------------


SEARCH_CANDIDATES = 500
"""The newest so many matches are ranked, then the next: a word that stands everywhere is answered by what is recent."""
RARITY_SAMPLE = 1_000
"""How rare a term is, is seen in the newest so many pieces."""
SPREAD_PIECES = 2_000
"""Where no piece has all words: of each word the newest so many pieces of long texts are put together."""
SPREAD_THREADS = 50
"""As many threads as are named in one question."""
TYPICAL_LENGTH = 400
"""Characters. A match in a longer text says less."""
ScoredPiece = tuple[float, Piece]


def search_texts(tx: Tx, query: SearchQuery) -> list[SearchHit]:
    """Messages and outputs that hold every word, phrase and prefix of the query, best first."""
    parsed, scope = parse_query(query.text), search_scope(tx, query)
    skipped, wanted = max(query.offset, 0), max(query.offset, 0) + max(query.limit, 0)
    if scope is None or not parsed.ways or skipped == wanted:
        return []
    matches: dict[TextKey, ScoredPiece] = {}
    calls = find_path_calls(tx, query, query.path) if query.path else set()
    for score, piece in _match_all_ways(tx, parsed, scope):
        if query.path and not _is_of_path(tx, piece, query.path, calls):
            continue
        matches.setdefault(piece.text, (score, piece))  # the first counts, so that pages of any length agree
        if len(matches) == wanted:
            break
    return _make_hits(tx, list(matches.values())[skipped:], parsed, query.session)


def _match_all_ways(tx: Tx, parsed: ParsedQuery, scope: IndexQuery) -> Iterator[ScoredPiece]:
    """The matches, the strictest way first, read as far as the caller iterates."""
    sample = _PhraseSample(tx, scope)
    for rank, phrases in enumerate(parsed.ways):
        question = replace(scope, phrases=phrases)
        weights: list[float] = []
        while candidates := tx.match(question, SEARCH_CANDIDATES):
            weights = weights or _term_weights(sample, question.weighed)
            yield from _rank_pieces(tx, candidates, weights, bonus=len(parsed.ways) - rank)
            if len(candidates) < SEARCH_CANDIDATES:
                break
            question = replace(question, before=candidates[-1].id)
    if len(parsed.ways[-1]) > 1:
        yield from _match_spread(tx, replace(scope, phrases=parsed.ways[-1]), sample)


class _PhraseSample:
    """In how many of the newest pieces a phrase stands."""

    def __init__(self, tx: Tx, scope: IndexQuery) -> None:
        self._tx = tx
        self._names = scope.names[:1]
        self._counts: dict[QueryPhrase, int] = {}

    def count(self, phrase: QueryPhrase) -> int:
        if phrase not in self._counts:
            question = IndexQuery((phrase,), self._names, self._first)
            self._counts[phrase] = len(self._tx.match_ids(question, RARITY_SAMPLE))
        return self._counts[phrase]

    @functools.cached_property
    def _first(self) -> int:
        return (self._tx.value("SELECT MAX(id) FROM pieces") or 0) - RARITY_SAMPLE + 1


def _term_weights(sample: _PhraseSample, terms: Sequence[str]) -> list[float]:
    """How much each weighed term counts: the rarer the more. For a single one it makes no difference."""
    if len(terms) < 2:
        return [1.0] * len(terms)
    weights = [math.log(1 + RARITY_SAMPLE / (1 + sample.count(QueryPhrase((term,))))) for term in terms]
    return [weight / sum(weights) for weight in weights]


def _rank_pieces(
    tx: Tx, candidates: Sequence[IndexMatch], weights: Sequence[float], *, bonus: float
) -> list[ScoredPiece]:
    """The pieces, best first; of equals the newest, of one text's the earliest."""
    weighed = {
        candidate.id: sum(map(operator.mul, weights, candidate.strengths)) if weights else 1.0
        for candidate in candidates
    }

    def score(piece: Piece) -> float:
        dilution = 1 + math.log2(1 + piece.length / TYPICAL_LENGTH) / 4
        return round(bonus + weighed[piece.id] / dilution, 2)

    def best_first(pair: ScoredPiece) -> tuple[Any, ...]:
        piece = pair[1]
        return -pair[0], -piece.created, -(piece.message or 0), piece.output or "", piece.start, -piece.id

    return sorted(((score(piece), piece) for piece in load_pieces(tx, list(weighed))), key=best_first)


def _match_spread(tx: Tx, question: IndexQuery, sample: _PhraseSample) -> list[ScoredPiece]:
    """Long texts that have every phrase, though no piece of them has all; the newest first.

    The rarest phrase comes first: the others are looked for in its threads only, where they are few.
    """
    texts: dict[TextKey, Piece] = {}
    for number, phrase in enumerate(sorted(question.phrases, key=sample.count)):
        threads = sorted({piece.thread for piece in texts.values()})
        within = [tuple(filter_name("thread", name) for name in threads)] if 0 < len(threads) <= SPREAD_THREADS else []
        names = (*question.names, (LONG_TEXT,), *within)
        one = replace(question, phrases=(phrase,), names=names)
        pieces = load_pieces(tx, tx.match_ids(one, SPREAD_PIECES))
        holding = {piece.text: piece for piece in sorted(pieces, reverse=True)}
        texts = holding if number == 0 else {text: piece for text, piece in texts.items() if text in holding}
        if not texts:
            break
    return [(0.0, piece) for piece in sorted(texts.values(), key=lambda piece: (-piece.created, -piece.id))]


def _make_hits(tx: Tx, matches: Sequence[ScoredPiece], parsed: ParsedQuery, session: str | None) -> list[SearchHit]:
    ids = [piece.message for _, piece in matches if piece.message is not None]
    rows = tx.all_in(
        "SELECT m.id, s.id, s.thread_id FROM messages m JOIN places p ON p.message_id = m.id "
        f"JOIN sessions s ON s.id = p.session_id WHERE m.id IN ({{}}) ORDER BY {HOME_FIRST}",
        ids,
    )
    homes: dict[int | None, Row] = {row[0]: row[1:] for row in reversed(rows)}
    hits = []
    for (score, piece), text in zip(matches, read_pieces(tx, [piece for _, piece in matches]), strict=True):
        home, thread = homes.get(piece.message, (piece.thread, piece.thread))
        snippet = make_snippet(text, parsed.shown, goes_before=piece.start > 0)
        found = (piece.message, piece.output, thread, session or home, piece.role, piece.tool, piece.created)
        hits.append(SearchHit(*found, snippet, score))
    return hits


# --- the messages before and after ------------------------------------------------------------------------------------


BEGINNING = 100
"""Characters of a neighbour."""
_PARTS = re.compile("\n[→≈] ")
"""Between the messages of a passage that shows several."""
NEIGHBOURS = (
    "WITH home AS (SELECT * FROM (SELECT m.id, p.session_id, p.seq, s.kind, s.parent_id, s.carried, s.next_seq, "
    f"ROW_NUMBER() OVER (PARTITION BY m.id ORDER BY {HOME_FIRST}) AS place FROM messages m "
    "JOIN places p ON p.message_id = m.id JOIN sessions s ON s.id = p.session_id WHERE m.id IN ({})) every_place "
    "WHERE place = 1), "
    "beside AS (SELECT h.id, 0 AS side, COALESCE(b.id, h.session_id) AS session_id, "
    "COALESCE(b.next_seq, h.seq) - 1 AS seq FROM home h "
    "LEFT JOIN sessions b ON b.id = h.parent_id AND h.kind = 'continuation' AND h.seq = h.carried "
    "UNION ALL SELECT h.id, 1, COALESCE(c.id, h.session_id), "
    "COALESCE(c.carried, CASE h.seq WHEN -1 THEN h.carried ELSE h.seq + 1 END) FROM home h "
    "LEFT JOIN sessions c ON c.parent_id = h.session_id AND c.kind = 'continuation' AND h.seq = h.next_seq - 1) "
    "SELECT beside.id, beside.side, m.id, m.role, m.tool, m.body FROM beside JOIN places p "
    "ON p.session_id = beside.session_id AND p.seq = beside.seq JOIN messages m ON m.id = p.message_id "
    "WHERE m.kind = 'message'"
)
"""What stands before (0) and after (1) messages where they were said, in the history: across a compaction too."""


def find_neighbours(
    tx: Tx, places: Sequence[tuple[int | None, str]]
) -> list[tuple[Neighbour | None, Neighbour | None]]:
    """The messages before and after each place, in one question. A place: a message, and what is shown of it.

    A message is left out where the place shows it itself, as are searches. An output has no neighbours.
    """
    ids = list(dict.fromkeys(message for message, _ in places if message is not None))
    neighbours = {
        (place, side): Neighbour(message, role, tool, _first_words(body))
        for place, side, message, role, tool, body in tx.all_in(NEIGHBOURS, ids)
    }

    def find(message: int | None, side: int, shown: str) -> Neighbour | None:
        neighbour = neighbours.get((message, side))
        if neighbour is None or not neighbour.text or any(map(is_lookup, neighbour.tool.split(","))):
            return None
        is_shown = _PARTS.search(shown) and neighbour.text.rstrip("…") in " ".join(shown.split())
        return None if is_shown else neighbour

    return [(find(message, 0, shown), find(message, 1, shown)) for message, shown in places]


def _first_words(body: str) -> str:
    """The beginning of a message on one line; nothing of a damaged one, which is no reason to find nothing."""
    try:
        text = searchable_text(decode_json(body))
    except StoreDamagedError:
        return ""
    words = " ".join(redact_part(text, 0, BEGINNING, margin=RAW_MARGIN).split())
    return f"{words}…" if len(text) > BEGINNING else words
