"""The search index: which pieces of text it holds, how a query asks for them, how it follows what is stored.

A piece is its redacted terms (`core.search.terms`); its tenant, thread, role and tool are names beside them.
In a query words, "phrases" and prefix* are syntax and nothing else, so every text is a query. It is asked in up to
three ways, the strictest first: identifiers as whole words; everything as typed, also inside something longer; and
every word anywhere in the text. What stands in quotes stays as typed throughout.

A message or output is queued with what stores it, and indexed in a later batch.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from everthread.core.messages import calls_of, results_of, text_of
from everthread.core.redaction import redact
from everthread.core.search.terms import encode_term, identifier_terms, phrase_terms, query_terms, terms
from everthread.errors import StoreDamagedError
from everthread.store.database import Row, Tx, chunks, clean_text, placeholders
from everthread.store.sql.messages import load_output

# --- what it holds, and how it is asked -------------------------------------------------------------------------------


PIECE_CHARS = 1_500
LEAST_CHARS = 250
OVERLAP = 200
"""Neighbouring pieces share so many characters, so that a phrase at the seam is found."""
MOST_TERMS = 16_383
MOST_REPEATS = 255
"""So many terms in a text, and repetitions of one, PostgreSQL tells apart. Keeping to that, both find the same."""


@dataclass(frozen=True, slots=True)
class TextCut:
    """A piece of a text."""

    start: int
    text: str
    terms: list[str]


class IndexPiece(NamedTuple):
    """A piece as the index takes it."""

    id: int
    terms: Sequence[str]
    names: Sequence[str]


def searchable_text(message: Mapping[str, Any]) -> str:
    """Everything a message says and does: words, calls with their arguments, results."""
    words = [text_of(message)] if message.get("role") != "tool" else []
    called = [f"{call.name} {call.arguments}" for call in calls_of(message)]
    return "\n".join(text for text in (*words, *called, *(result.text for result in results_of(message))) if text)


def redact_and_cut(text: str) -> tuple[list[TextCut], bool]:
    """The pieces of a text, secrets gone before anything else; and whether there were any."""
    clean = redact(text)
    return [cut for cut in cut_text(clean) if cut.terms], clean is not text


def cut_text(text: str) -> Iterator[TextCut]:
    """The text in pieces, smaller ones where terms are too many to be told apart."""
    start, size = 0, PIECE_CHARS
    while True:
        overlap = min(OVERLAP, size // 4)
        end = _find_seam(text, start + size, overlap) if start + size < len(text) else len(text)
        cut = TextCut(start, text[start:end], [encode_term(term) for term in terms(text[start:end])])
        if size > LEAST_CHARS and not _has_few_repeats(cut.terms):
            size //= 2
            continue
        yield cut
        if end == len(text):
            return
        start = _find_seam(text, end - overlap, overlap)
        size = min(2 * size, PIECE_CHARS)


def _find_seam(text: str, at: int, reach: int) -> int:
    """Behind the last white space before this place; the place itself where there is none near."""
    space = max(text.rfind(mark, at - reach, at) for mark in " \n")
    return space + 1 if space >= 0 else at


def _has_few_repeats(words: Sequence[str]) -> bool:
    if len(words) <= MOST_REPEATS:
        return True
    return len(words) <= MOST_TERMS and max(Counter(words).values()) <= MOST_REPEATS


def filter_name(kind: str, value: str) -> str:
    """A property as one name no tokenizer splits, folds or shortens: `role` and `user` become `role_user`."""
    if len(value) <= 64 and value.isascii() and value.isalnum() and value == value.lower():
        return f"{kind}_{value}"
    return f"{kind}__{hashlib.sha256(value.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


LONG_TEXT = filter_name("part", "of")
"""The name of pieces whose text has others."""
MOST_WORDS = 32
"""Of a longer query the first so many words are looked for, of a longer phrase its first `MOST_RUN` terms."""
MOST_RUN = 64
_QUERY_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True, slots=True)
class QueryPhrase:
    """Terms that stand in a row, the last of them perhaps only begun."""

    terms: tuple[str, ...]
    prefix: bool = False

    @property
    def weighed(self) -> str | None:
        """The term a text is ranked by: the longest, as the rarest. A beginning stands for too many."""
        return max(self.terms[:-1] if self.prefix else self.terms, key=len, default=None)


QueryPhrases = tuple[QueryPhrase, ...]


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query."""

    ways: tuple[QueryPhrases, ...]
    """The ways to ask it, the strictest first; none where it has no words."""
    shown: tuple[tuple[str, ...], ...]
    """What a reader looks for in a result: for every word its terms in a row."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A question to an index: pieces with all the phrases, one of each list of names, within ids and a condition."""

    phrases: QueryPhrases = ()
    names: tuple[tuple[str, ...], ...] = ()
    first: int = 0
    before: int = 2**62
    where: str = ""
    """A condition on `pieces p`; empty where there is none."""
    values: tuple[Any, ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()
    """Lists of terms: of each a piece must have one."""

    @property
    def weighed(self) -> list[str]:
        """The terms a piece is ranked by."""
        return list(dict.fromkeys(phrase.weighed for phrase in self.phrases if phrase.weighed is not None))


class IndexMatch(NamedTuple):
    """A piece that matches, and how strong each weighed term of the question is in it."""

    id: int
    strengths: tuple[float, ...]


def round_strength(value: float) -> float:
    """A strength as both databases compute it: one of them does so with six digits."""
    return round(value, 4)


_SUMS = accumulate(1 / n**2 for n in range(1, MOST_REPEATS + 1))
TERM_STRENGTHS = [0.0, *(round_strength(total / 1.64493406685) for total in _SUMS)]
"""From 0 to 1 for a term that stands there so often: every further time adds less. PostgreSQL's `ts_rank`."""


def parse_query(text: str) -> ParsedQuery:
    exact: list[QueryPhrase] = []
    typed: list[QueryPhrase] = []
    loose: list[QueryPhrase] = []
    shown: list[tuple[str, ...]] = []
    for quoted, word in _QUERY_WORD.findall(text):
        typed_text, begun = quoted or word, word.endswith("*")
        run = phrase_terms(typed_text)[:MOST_RUN]
        if not run or tuple(run) in shown:
            continue
        as_typed = _typed_phrases(typed_text, run, begun=begun)
        typed += as_typed
        exact += as_typed if quoted or begun else _whole_phrases(word) or as_typed
        loose += as_typed if quoted or begun else _single_terms(query_terms(word, loose=True)[:MOST_RUN])
        shown.append(tuple(run))
        if len(shown) == MOST_WORDS:
            break
    ways = (tuple(dict.fromkeys(phrases)) for phrases in (exact, typed, loose))
    return ParsedQuery(tuple(dict.fromkeys(way for way in ways if way)), tuple(shown))


def _typed_phrases(typed: str, run: list[str], *, begun: bool) -> list[QueryPhrase]:
    """The phrases of a text that contains this. Pairs of characters are rarer than characters, so they are added."""
    pairs = [first + second for first, second in pairwise(run)]
    words = query_terms(typed)
    if pairs and all(map(_is_single, run)) and set(pairs) <= set(words):
        return [_make_phrase(pairs)]
    prefix = begun and not _is_single(run[-1])
    return [_make_phrase(run, prefix=prefix), *_single_terms(term for term in words if term in pairs)]


def _whole_phrases(word: str) -> list[QueryPhrase]:
    """The identifiers in a word, and the rest of its terms; nothing where there is no identifier."""
    identifiers = identifier_terms(word)
    covered = {term for identifier in identifiers for term in query_terms(identifier)}
    rest = [term for term in query_terms(word) if term not in covered]
    return _single_terms([*identifiers, *rest][:MOST_RUN]) if identifiers else []


@functools.lru_cache(maxsize=1024)
def _is_single(term: str) -> bool:
    """Whether this is a character of a script without spaces: every one is a term, so it is never only begun."""
    return len(term) == 1 and len(phrase_terms(term + term)) == 2


def _make_phrase(run: Iterable[str], *, prefix: bool = False) -> QueryPhrase:
    return QueryPhrase(tuple(map(encode_term, run)), prefix)


def _single_terms(words: Iterable[str]) -> list[QueryPhrase]:
    return [_make_phrase([term]) for term in words]


# --- how it follows what is stored ------------------------------------------------------------------------------------


log = logging.getLogger(__name__)
INDEX_BATCH = 500
BATCH_CHARS = 1_000_000
"""The most entries of the queue, and the most text, that are prepared at once."""
GENTLE_CHARS = 20_000
"""The most text at once in the background: some milliseconds of work."""
READ_ENTRIES = 50
"""So many messages are read at once: of those that wait often only a few are prepared."""
WRITE_PIECES = 250
"""So many pieces are indexed in one transaction: other writes wait for it."""
ERA_RUN = 4_096
"""Ids of pieces whose times are known together."""


class IndexEntry(NamedTuple):
    """A message or output that waits to be indexed."""

    id: int
    done: int
    """How many of its pieces are indexed already."""
    message: int | None
    output: str | None
    tenant: str = ""
    thread: str = ""
    role: str = ""
    tool: str = ""
    created: float = 0.0
    text: str = ""
    """Empty where the message was deleted."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Neighbouring pieces of one entry, to be indexed together."""

    entry: IndexEntry
    first: int
    """The number of the first of these pieces."""
    cuts: Sequence[TextCut]
    last: bool
    """Whether nothing of the entry is left."""
    long: bool
    """Whether the entry has several pieces."""
    redacted: bool
    """Whether secrets were taken out of the entry."""


def prepare_index(tx: Tx, most: int = BATCH_CHARS) -> list[list[IndexPart]]:
    """What waits, oldest first, ready to be indexed: a list for each transaction. Empty when nothing waits.

    Up to about `most` characters.
    """
    batches: list[list[IndexPart]] = []
    room = chars = 0
    for entry in _list_waiting(tx):
        for part in _split_entry(entry):
            if room < len(part.cuts) or not batches:
                batches.append([])
                room = WRITE_PIECES
            batches[-1].append(part)
            room -= len(part.cuts)
        chars += len(entry.text)
        if chars > most:
            break
    return batches


def _split_entry(entry: IndexEntry) -> Iterator[IndexPart]:
    cuts, redacted = redact_and_cut(entry.text)
    start, last = entry.done, False
    while not last:
        some = cuts[start : start + WRITE_PIECES]
        last = start + len(some) >= len(cuts)
        yield IndexPart(entry, start, some, last, len(cuts) > 1, redacted)
        start += len(some)


def _list_waiting(tx: Tx) -> Iterator[IndexEntry]:
    rows = tx.all(
        "SELECT id, done, message_id, output_id, thread_id FROM unindexed ORDER BY id LIMIT ?", (INDEX_BATCH,)
    )
    for some in chunks(rows, READ_ENTRIES):
        messages = tx.all_in(
            "SELECT m.id, s.tenant, m.thread_id, m.role, m.tool, m.created, m.body FROM messages m "
            "JOIN sessions s ON s.id = m.thread_id WHERE m.id IN ({})",
            [row[2] for row in some if row[2] is not None],
        )
        texts = {row[0]: (*row[1:6], searchable_text(json.loads(row[6]))) for row in messages}
        for row in some:
            output, thread = row[3:]
            yield IndexEntry(*row[:4], *(texts.get(row[2], ()) if output is None else _load_cited(tx, thread, output)))


def _load_cited(tx: Tx, thread: str, output_id: str) -> Row:
    """Tenant, thread, role, tool, time and text of an output, as a thread cites it; nothing where it does not."""
    row = tx.one(
        "SELECT tenant, MIN(tool), MIN(created) FROM citations WHERE thread_id = ? AND output_id = ? GROUP BY tenant",
        (thread, output_id),
    )
    return () if row is None else (row[0], thread, "tool", row[1], row[2], output_text(tx, output_id, row[0]))


def output_text(tx: Tx, output_id: str, tenant: str) -> str:
    """The text of an output. A damaged one is empty for a search; reading it raises the error."""
    try:
        return load_output(tx, output_id, tenant=tenant)
    except StoreDamagedError as error:
        log.warning("a search cannot look into a stored output: %s", error)
        return ""


def index_parts(tx: Tx, parts: Sequence[IndexPart], *, wait: bool) -> None:
    """Index the parts that no other process has indexed since. The queue and the index change together.

    `wait`: until another process has done what it is at; else that is passed over.
    """
    cuts = [(part, cut) for part in _claim_parts(tx, parts, wait=wait) for cut in part.cuts]
    if not cuts:
        return
    ids = tx.all(tx.dialect.new_ids.format("pieces"), (len(cuts),))
    rows: list[Row] = []
    pieces: list[IndexPiece] = []
    times: dict[int, list[float]] = {}
    for (piece_id,), (part, cut) in zip(ids, cuts, strict=True):
        entry, said = part.entry, clean_text(cut.text) if part.redacted else None
        whose = (entry.message, entry.output, entry.tenant, entry.thread, entry.role, entry.tool)
        rows.append((piece_id, *whose, cut.start, len(cut.text), said, entry.created))
        pieces.append(IndexPiece(piece_id, cut.terms, _filter_names(part)))
        times.setdefault(piece_id // ERA_RUN, []).append(entry.created)
    tx.many(
        "INSERT INTO pieces (id, message_id, output_id, tenant, thread_id, role, tool, start, length, said, created) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
    tx.index(pieces)
    tx.many(
        "INSERT INTO eras (run, earliest, latest) VALUES (?, ?, ?) ON CONFLICT (run) DO UPDATE SET "
        "earliest = CASE WHEN excluded.earliest < eras.earliest THEN excluded.earliest ELSE eras.earliest END, "
        "latest = CASE WHEN excluded.latest > eras.latest THEN excluded.latest ELSE eras.latest END",
        [(run, min(some), max(some)) for run, some in sorted(times.items())],
    )


def _claim_parts(tx: Tx, parts: Sequence[IndexPart], *, wait: bool) -> list[IndexPart]:
    """The parts that no other process has indexed, and whose message was not deleted; they are marked as done."""
    lock = tx.dialect.lock if wait else tx.dialect.skip
    ids = [part.entry.id for part in parts]
    waiting: dict[int, int] = dict(
        tx.all(f"SELECT id, done FROM unindexed WHERE id IN ({placeholders(ids)}) ORDER BY id {lock}", ids)
    )
    mine = [part for part in parts if waiting.get(part.entry.id) == part.first]
    indexed = {part.entry.id for part in mine if part.first == 0 and _is_indexed(tx, part.entry)}
    ended = indexed | {part.entry.id for part in mine if part.last}
    going = [(part.first + len(part.cuts), part.entry.id) for part in mine if part.entry.id not in ended]
    if ended:
        tx.run(f"DELETE FROM unindexed WHERE id IN ({placeholders(list(ended))})", list(ended))
    tx.many("UPDATE unindexed SET done = ? WHERE id = ?", going)
    return [part for part in mine if part.entry.id not in indexed]


def _is_indexed(tx: Tx, entry: IndexEntry) -> bool:
    """Whether an output is indexed for its thread already: it may be cited more than once."""
    sql = "SELECT 1 FROM pieces WHERE output_id = ? AND thread_id = ? LIMIT 1"
    return entry.output is not None and tx.one(sql, (entry.output, entry.thread)) is not None


def _filter_names(part: IndexPart) -> list[str]:
    entry = part.entry
    names = [filter_name("tenant", entry.tenant), filter_name("thread", entry.thread), filter_name("role", entry.role)]
    names += [filter_name("tool", tool) for tool in dict.fromkeys(entry.tool.split(",")) if tool]
    return [*names, LONG_TEXT] if part.long else names
