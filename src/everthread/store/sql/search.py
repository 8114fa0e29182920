"""Search for words, phrases, identifiers and Chinese, Japanese or Korean characters in messages and outputs."""

from __future__ import annotations

import json
import math
import operator
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everthread.core.messages import calls_of, results_of
from everthread.core.redaction import redact_part
from everthread.errors import UnknownIdError
from everthread.store.database import Database, Row, Tx, chunks, clean_text, placeholders
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

SNIPPET_LENGTH = 160
SNIPPET_BEFORE = SNIPPET_LENGTH // 4
SENTENCE_REACH = 150
"""Characters before a part that are shown with it where its sentence begins there."""
MOST_PLACES = 200
"""The most positions of a word that are compared with those of others."""
SECRET_MARGIN = 200
"""Characters around a snippet that are searched for secrets too."""
_CLUSTER = re.compile(r".[\u0300-\u036f\u1160-\u11ff\u3099\u309a]*", re.DOTALL)


def make_snippet(text: str, words: Sequence[Sequence[str]], *, goes_before: bool = False) -> str:
    """The part of a text with the most of the words, on one line.

    `goes_before`: the text is a piece that begins inside a longer one.
    """
    position = find_best_position(text, words, SNIPPET_LENGTH - SNIPPET_BEFORE)
    start = max(0, min(position - SNIPPET_BEFORE, len(text) - SNIPPET_LENGTH))
    end = start + SNIPPET_LENGTH
    # What is indexed holds no secrets; this looks once more, with the rules of today.
    shown = redact_part(text, start, end, margin=SECRET_MARGIN)
    return ("…" if start or goes_before else "") + " ".join(shown.split()) + ("…" if end < len(text) else "")


def find_best_position(text: str, words: Sequence[Sequence[str]], reach: int) -> int:
    """The start of the part of so many characters with the most different words; the first of several."""
    folded, places = _fold_text(text)
    hits = sorted((at, number) for number, word in enumerate(words) for at in _run_positions(folded, word))
    best = _richest_start(hits, reach)
    return places[best] if places else best


def find_richest_position(text: str, words: Sequence[Sequence[str]], reach: int) -> int:
    """Like `find_best_position`, for words with all their forms: no pattern is made, so that many cost little."""
    folded, places = _fold_text(text)
    hits = sorted(
        (at, number) for number, forms in enumerate(words) for form in forms for at in _word_positions(folded, form)
    )
    best = _richest_start(hits, reach)
    return places[best] if places else best


def sentence_start(text: str, at: int) -> int:
    """The start of the sentence or line around a position; the position itself where that is far."""
    near = max(0, at - SENTENCE_REACH)
    begins = max(text.rfind("\n", near, at), text.rfind(". ", near, at))
    return begins + 1 if begins >= 0 else near if not near else at


def _richest_start(hits: Sequence[tuple[int, int]], reach: int) -> int:
    """The start of the part with the most different words; of equals the shortest part, then the first.

    `hits`: positions and the words that stand there, in order.
    """
    best = most = first = 0
    shortest = reach
    within: Counter[int] = Counter()
    for at, number in hits:
        within[number] += 1
        while at - hits[first][0] >= reach or within[hits[first][1]] > 1:
            within[hits[first][1]] -= 1
            if not within[hits[first][1]]:
                del within[hits[first][1]]
            first += 1
        span = at - hits[first][0]
        if (len(within), -span) > (most, -shortest):
            best, most, shortest = hits[first][0], len(within), span
    return best


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


def _run_positions(folded: str, word: Sequence[str]) -> Iterator[int]:
    """The positions of a word: on its own, or else inside others."""
    run = r"[\W_]*+".join(map(re.escape, word))
    alone = _first_matches(re.compile(rf"(?<![^\W_]){run}(?![^\W_])"), folded)
    yield from (
        alone
        or _first_matches(re.compile(run), folded)
        or _first_matches(re.compile("|".join(map(re.escape, word))), folded)
    )


def _first_matches(pattern: re.Pattern[str], folded: str) -> list[int]:
    return [match.start() for match, _ in zip(pattern.finditer(folded), range(MOST_PLACES), strict=False)]


def _fold_text(text: str) -> tuple[str, list[int] | None]:
    """The text as it is searched, and where each of its characters came from; None where they stand one to one."""
    if text.isascii():
        return text.lower(), None
    folded = unicodedata.normalize("NFKC", text).casefold()
    if len(folded) == len(text):
        return folded, None
    parts = [(match.start(), unicodedata.normalize("NFKC", match[0]).casefold()) for match in _CLUSTER.finditer(text)]
    return "".join(part for _, part in parts), [start for start, part in parts for _ in part]


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
    names: list[tuple[str, ...]] = [tuple(filter_name("tenant", tenant) for tenant in _scope_tenants(tx, query.tenant))]
    if not names[0]:
        return None
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
    for bound, sign in ((query.since, ">="), (query.until, "<")):
        if bound is not None:
            where.append(f"p.created {sign} ?")
            values.append(bound)
    ids = _piece_range(tx, query)
    return ids and IndexQuery((), tuple(names), *ids, " AND ".join(where), tuple(values))


def _scope_tenants(tx: Tx, tenant: str | None) -> list[str]:
    """The tenants whose texts are searched."""
    if tenant is not None:
        return [tenant]
    return [row[0] for row in tx.all("SELECT DISTINCT tenant FROM sessions ORDER BY 1 LIMIT 500")]


def _scope_session(tx: Tx, session_id: str, tenant: str | None) -> Row:
    """Thread, start and end of a session."""
    row = tx.one("SELECT thread_id, started, ended, tenant FROM sessions WHERE id = ?", (session_id,))
    if row is None or tenant not in (None, row[3]):
        raise UnknownIdError(f"there is no thread or session {session_id!r} to search in")
    return row[:3]


def list_sources(tx: Tx, thread: str) -> list[str]:
    """The thread, and for a branch those whose messages and outputs it shares."""
    root = tx.one("SELECT kind FROM sessions WHERE id = ?", (thread,))
    if root is None or root[0] != "branch":
        return [thread]
    rows = tx.all(
        "SELECT m.thread_id FROM places p JOIN messages m ON m.id = p.message_id WHERE p.session_id = ? UNION "
        "SELECT p.thread_id FROM citations c JOIN pieces p ON p.output_id = c.output_id WHERE c.thread_id = ?",
        (thread, thread),
    )
    return [thread, *sorted({row[0] for row in rows} - {thread})]


def _piece_range(tx: Tx, query: SearchQuery) -> tuple[int, int] | None:
    """First and last id, exclusive, of the pieces that may be of the period; None where there are none."""
    if query.since is None and query.until is None:
        return 0, 2**62
    since = -1e18 if query.since is None else query.since
    until = 1e18 if query.until is None else query.until
    row = tx.one("SELECT MIN(run), MAX(run) FROM eras WHERE latest >= ? AND earliest < ?", (since, until))
    return None if row is None or row[0] is None else (row[0] * ERA_RUN, (row[1] + 1) * ERA_RUN)


MOST_CALLS = 500
"""The most messages that name the path and are read, the newest."""


@dataclass(frozen=True, slots=True)
class PathCalls:
    """Calls that name a path."""

    path: str
    ids: frozenset[str]

    def hold(self, tx: Tx, message: int | None, output: str | None, thread: str) -> bool:
        """Whether a message or a thread's output answers one of them, or makes one."""
        if output is not None:
            rows = tx.all("SELECT call_id FROM citations WHERE thread_id = ? AND output_id = ?", (thread, output))
            return not self.ids.isdisjoint(row[0] for row in rows)
        row = tx.one("SELECT body FROM messages WHERE id = ?", (message,))
        body = json.loads(row[0]) if row else {}
        if any(self.path in call.arguments for call in calls_of(body)):
            return True
        return not self.ids.isdisjoint(result.call_id for result in results_of(body))


def find_path_calls(tx: Tx, database: Database, query: SearchQuery, path: str) -> PathCalls:
    return PathCalls(path, frozenset(_path_call_ids(tx, database, query, path)))


def _path_call_ids(tx: Tx, database: Database, query: SearchQuery, path: str) -> Iterator[str]:
    scope = search_scope(tx, replace(query, role="assistant", tool=None, since=None, until=None))
    ways = parse_query(f'"{path}"').ways
    if scope is None or not ways:
        return
    pieces = [candidate.id for candidate in database.match(tx, replace(scope, phrases=ways[0]), MOST_CALLS)]
    if not pieces:
        return
    rows = tx.all(
        "SELECT m.body FROM messages m WHERE m.id IN "
        f"(SELECT p.message_id FROM pieces p WHERE p.id IN ({placeholders(pieces)}))",
        pieces,
    )
    for row in rows:
        yield from (call.id for call in calls_of(json.loads(row[0])) if path in call.arguments)


SEARCH_CANDIDATES = 500
"""The newest so many matches are ranked, then the next: a word that stands everywhere is answered by what is recent."""
RARITY_SAMPLE = 1_000
"""How rare a term is, is seen in the newest so many pieces."""
SPREAD_PIECES = 2_000
"""Where no piece has all words: of each word the newest so many pieces of long texts are put together."""
TYPICAL_LENGTH = 400
"""Characters. A match in a longer text says less."""
PIECE_COLUMNS = "id, message_id, output_id, tenant, thread_id, role, tool, start, length, said, created"
LENGTH_COLUMN = PIECE_COLUMNS.split(", ").index("length")
TextKey = tuple[int | None, str | None, str]


@dataclass(frozen=True, slots=True)
class SearchPiece:
    """A piece that matches, with its row."""

    score: float
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
    created: float

    @property
    def text(self) -> TextKey:
        """The key of its text: a message, or an output as a thread cites it."""
        return self.message, self.output, self.thread


def search_texts(tx: Tx, database: Database, query: SearchQuery) -> list[SearchHit]:
    """Messages and outputs that hold every word, phrase and prefix of the query, best first."""
    parsed, scope = parse_query(query.text), search_scope(tx, query)
    skipped, wanted = max(query.offset, 0), max(query.offset, 0) + max(query.limit, 0)
    if scope is None or not parsed.ways or skipped == wanted:
        return []
    pieces: dict[TextKey, SearchPiece] = {}
    calls = find_path_calls(tx, database, query, query.path) if query.path else None
    for piece in _match_all_ways(tx, database, parsed, scope):
        if calls is not None and not calls.hold(tx, piece.message, piece.output, piece.thread):
            continue
        pieces.setdefault(piece.text, piece)  # the first counts, so that a page does not depend on how long it is
        if len(pieces) == wanted:
            break
    return _make_hits(tx, list(pieces.values())[skipped:], parsed, query.session)


def _match_all_ways(tx: Tx, database: Database, parsed: ParsedQuery, scope: IndexQuery) -> Iterator[SearchPiece]:
    """The matches, the strictest way first, read as far as the caller iterates."""
    for rank, phrases in enumerate(parsed.ways):
        question = replace(scope, phrases=phrases)
        weights: list[float] = []
        while candidates := database.match(tx, question, SEARCH_CANDIDATES):
            weights = weights or _term_weights(tx, database, question)
            yield from _rank_pieces(tx, candidates, weights, bonus=len(parsed.ways) - rank)
            if len(candidates) < SEARCH_CANDIDATES:
                break
            question = replace(question, before=candidates[-1].id)
    if len(parsed.ways[-1]) > 1:
        yield from _match_spread(tx, database, replace(scope, phrases=parsed.ways[-1]))


def _term_weights(tx: Tx, database: Database, question: IndexQuery) -> list[float]:
    """How much each weighed term counts: the rarer the more. For a single one it makes no difference."""
    if len(question.weighed) < 2:
        return [1.0] * len(question.weighed)
    newest = tx.one("SELECT MAX(id) FROM pieces")
    sample = IndexQuery(names=question.names[:1], first=(newest[0] or 0) - RARITY_SAMPLE + 1 if newest else 0)
    counts = [
        len(database.match(tx, replace(sample, phrases=(QueryPhrase((term,)),)), RARITY_SAMPLE))
        for term in question.weighed
    ]
    weights = [math.log(1 + RARITY_SAMPLE / (1 + count)) for count in counts]
    return [weight / sum(weights) for weight in weights]


def _rank_pieces(
    tx: Tx, candidates: Sequence[IndexMatch], weights: Sequence[float], *, bonus: float
) -> list[SearchPiece]:
    """The pieces, best first; of equals the newest."""
    weighed = {
        candidate.id: sum(map(operator.mul, weights, candidate.strengths)) if weights else 1.0
        for candidate in candidates
    }

    def scored(row: Row) -> SearchPiece:
        dilution = 1 + math.log2(1 + row[LENGTH_COLUMN] / TYPICAL_LENGTH) / 4
        return SearchPiece(round(bonus + weighed[row[0]] / dilution, 2), *row)

    return sorted(map(scored, _load_pieces(tx, list(weighed))), key=_best_first)


def _best_first(piece: SearchPiece) -> tuple[float, float, int, str, int]:
    """Of equals the newest; of one text's the earliest."""
    return -piece.score, -piece.created, -(piece.message or 0), piece.output or "", piece.start


def _match_spread(tx: Tx, database: Database, question: IndexQuery) -> list[SearchPiece]:
    """Long texts that have every phrase, though no piece of them has all; the newest first."""
    texts: dict[TextKey, SearchPiece] = {}
    for number, phrase in enumerate(question.phrases):
        one = replace(question, phrases=(phrase,), names=(*question.names, (LONG_TEXT,)))
        ids = [candidate.id for candidate in database.match(tx, one, SPREAD_PIECES)]
        holding = {piece.text: piece for piece in (SearchPiece(0.0, *row) for row in _load_pieces(tx, ids))}
        texts = holding if number == 0 else {text: piece for text, piece in texts.items() if text in holding}
        if not texts:
            break
    return sorted(texts.values(), key=lambda piece: (-piece.created, -piece.id))


def _load_pieces(tx: Tx, ids: Sequence[int]) -> Iterator[Row]:
    """The rows of pieces, the newest first."""
    for some in chunks(ids):
        yield from tx.all(
            f"SELECT {PIECE_COLUMNS} FROM pieces WHERE id IN ({placeholders(some)}) ORDER BY id DESC", some
        )


def _make_hits(tx: Tx, pieces: Sequence[SearchPiece], parsed: ParsedQuery, session: str | None) -> list[SearchHit]:
    ids = [piece.message for piece in pieces if piece.message is not None]
    bodies: dict[int, str] = {}
    homes: dict[int, Row] = {}
    for some in chunks(ids):
        marks = placeholders(some)
        bodies |= dict(tx.all(f"SELECT id, body FROM messages WHERE id IN ({marks})", some))
        rows = tx.all(
            "SELECT m.id, s.id, s.thread_id FROM messages m JOIN places p ON p.message_id = m.id "
            f"JOIN sessions s ON s.id = p.session_id WHERE m.id IN ({marks}) ORDER BY {HOME_FIRST}",
            some,
        )
        homes |= {row[0]: row[1:] for row in reversed(rows)}
    hits = []
    for piece in pieces:
        home = homes.get(piece.message or 0, (piece.thread, piece.thread))
        text = piece_text(tx, piece, bodies)
        shown = make_snippet(text, parsed.shown, goes_before=piece.start > 0)
        hits.append(
            SearchHit(
                piece.message, piece.output, home[1], session or home[0], piece.role, piece.tool, piece.created,
                shown, piece.score,
            )
        )  # fmt: skip
    return hits


def piece_text(tx: Tx, piece: SearchPiece, bodies: dict[int, str]) -> str:
    """The text of a piece."""
    if piece.said is not None:
        return piece.said
    if piece.output is not None:
        text = output_text(tx, piece.output, piece.tenant)
    else:
        text = searchable_text(json.loads(bodies.get(piece.message or 0, "{}")))
    return text[piece.start : piece.start + piece.length]
