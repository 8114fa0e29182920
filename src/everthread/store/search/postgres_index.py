"""The search index of PostgreSQL: a `tsvector` of each chunk's terms, and one of its filter terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everthread.store.database import Row, Tx
from everthread.store.search.index_query import IndexQuery, make_detail_condition
from everthread.store.search.text_chunks import MAX_CHUNK_TERMS, MAX_TERM_REPEATS

BLOCK_SIZES_BITS = (10, 13, 16)
"""Every chunk is indexed under the block of ids it is in, of these sizes in bits, to find the newest."""


def match_newest_first(tx: Tx, query: IndexQuery, limit: int) -> list[Row]:
    """Return the newest matches, newest first.

    Ids are read in windows, so that the cost grows with the matches, not with the store.
    """
    newest_id: int | None = tx.value("SELECT MAX(chunk_id) FROM search")
    end_id = 0 if newest_id is None else min(query.end_id, newest_id + 1)
    matches: list[Row] = []
    # A prefix is costly to look up in the index, and cheap to find in the few texts of the first window.
    scan_texts = any(phrase.last_is_prefix for phrase in query.phrases)
    for block_bits, first_id, window_end_id in split_id_windows(query.first_id, end_id):
        matches += match_id_window(
            tx,
            query,
            block_bits=block_bits,
            first_id=first_id,
            end_id=window_end_id,
            limit=limit - len(matches),
            scan_texts=scan_texts,
        )
        scan_texts = False
        if len(matches) == limit:
            break
    return matches


def match_id_window(
    tx: Tx,
    query: IndexQuery,
    block_bits: int | None,
    first_id: int,
    end_id: int,
    limit: int,
    *,
    scan_texts: bool,
) -> list[Row]:
    """Return the newest matches between two ids. `scan_texts`: read the texts instead of the index."""
    filters = [_match_any(terms) for terms in query.filter_terms if terms]
    if block_bits is not None:
        blocks = range(first_id >> block_bits, (end_id - 1 >> block_bits) + 1)
        block_terms = [make_id_block_term(number << block_bits, block_bits) for number in blocks]
        filters.append(_match_any(block_terms))
    has_terms = "(s.terms @@ ?::tsquery) IS TRUE" if scan_texts else "s.terms @@ ?::tsquery"
    has_filters = "AND s.filters @@ ?::tsquery" if filters else ""
    where = make_detail_condition(query, "s.chunk_id")
    ranks = "".join(", ts_rank('{1, 1, 1, 1}', f.terms, ?::tsquery)" for _ in query.ranking_terms)
    return tx.all(
        f"SELECT f.chunk_id{ranks} FROM (SELECT s.chunk_id, s.terms FROM search s "
        # `+ 0` keeps the planner from the primary key, which would read every text.
        f"WHERE {has_terms} {has_filters} AND s.chunk_id + 0 >= ? AND s.chunk_id + 0 < ? {where} "
        "ORDER BY s.chunk_id + 0 DESC LIMIT ?) f ORDER BY f.chunk_id DESC",
        (
            *(f"'{term}'" for term in query.ranking_terms),
            _make_tsquery(query),
            *([" & ".join(filters)] if filters else []),
            first_id,
            end_id,
            *query.values,
            limit,
        ),
    )


def split_id_windows(first_id: int, end_id: int) -> Iterator[tuple[int | None, int, int]]:
    """Yield ever wider windows, from the newest ids to the oldest: block size in bits, first id, id after the last."""
    for block_bits, window_bits in ((10, 10), (10, 13), (13, 16), (16, 20)):
        if end_id <= first_id:
            return
        window_start = max(first_id, ((end_id >> window_bits) - 1) << window_bits)
        yield block_bits, window_start, end_id
        end_id = window_start
    if end_id > first_id:
        yield None, first_id, end_id


def make_id_block_term(chunk_id: int, block_bits: int) -> str:
    """Return the filter term of a block of ids."""
    return f"block{block_bits}_{chunk_id >> block_bits}"


def _make_tsquery(query: IndexQuery) -> str:
    """Return the condition on a chunk's terms as a `tsquery`. Terms contain no quotes: they are encoded."""
    conditions = []
    for phrase in query.phrases:
        terms = " <-> ".join(f"'{term}'" for term in phrase.terms)
        conditions.append(f"({terms}{':*' if phrase.last_is_prefix else ''})")
    conditions += map(_match_any, query.any_of)
    return " & ".join(conditions)


def _match_any(terms: Sequence[str]) -> str:
    """Return the `tsquery` of texts that have one of the terms."""
    quoted_terms = (f"'{term}'" for term in terms)
    return f"({' | '.join(quoted_terms)})"


def make_tsvector(terms: str) -> str:
    """Return the terms with their positions as a `tsvector` literal."""
    positions_by_term: dict[str, list[str]] = {}
    for position, term in enumerate(terms.split()[:MAX_CHUNK_TERMS], 1):
        positions_by_term.setdefault(term, []).append(str(position))
    return " ".join(
        f"'{term}':{','.join(positions[:MAX_TERM_REPEATS])}"
        for term, positions in positions_by_term.items()
    )
