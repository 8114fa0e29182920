"""The search index on PostgreSQL: terms as a `tsvector` no parser touches, asked for window by window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from everthread.store.database import Row, Tx
from everthread.store.indexing import MOST_REPEATS, MOST_TERMS
from everthread.store.queries import Match, Phrase


def window(tx: Tx, question: Match, bits: int | None, first: int, before: int, limit: int, *, seen: bool) -> list[Row]:
    """The newest matches between two ids."""
    names = [" | ".join(f"'{name}'" for name in names) for names in question.names]
    if bits is not None:
        blocks = range(first >> bits, (before - 1 >> bits) + 1)
        names.append(" | ".join(f"'{block(number << bits, bits)}'" for number in blocks))
    has_terms = "(s.terms @@ ?::tsquery) IS TRUE" if seen else "s.terms @@ ?::tsquery"
    where = f"AND (SELECT {question.where} FROM pieces p WHERE p.id = s.piece_id)" if question.where else ""
    ranks = "".join(", ts_rank('{1, 1, 1, 1}', f.terms, ?::tsquery)" for _ in question.weighed)
    return tx.all(
        f"SELECT f.piece_id{ranks} FROM (SELECT s.piece_id, s.terms FROM search s "
        # `+ 0`: never by the primary key, which would be to look at every text.
        f"WHERE {has_terms} AND s.filters @@ ?::tsquery AND s.piece_id + 0 >= ? AND s.piece_id + 0 < ? {where} "
        "ORDER BY s.piece_id + 0 DESC LIMIT ?) f ORDER BY f.piece_id DESC",
        (
            *(f"'{term}'" for term in question.weighed), _words(question),
            " & ".join(f"({one_of})" for one_of in names), first, before, *question.values, limit,
        ),
    )  # fmt: skip


def windows(first: int, before: int) -> Iterator[tuple[int | None, int, int]]:
    """From the newest ids to the oldest, ever wider: how large the blocks to name are, the first id, the one behind."""
    for bits, reach in ((10, 10), (10, 13), (13, 16), (16, 20)):
        if before <= first:
            return
        start = max(first, ((before >> reach) - 1) << reach)
        yield bits, start, before
        before = start
    if before > first:
        yield None, first, before


BLOCKS = (10, 13, 16)
"""Every piece is indexed under the block of ids it is in, of these sizes in bits: so one can ask for the newest."""


def block(piece_id: int, bits: int) -> str:
    return f"block{bits}_{piece_id >> bits}"


def _words(question: Match) -> str:
    """What the terms of a piece must hold."""
    one_of = " | ".join(f"'{term}'" for term in question.one_of)
    return " & ".join([*map(_phrase, question.phrases), *([f"({one_of})"] if one_of else [])])


def _phrase(phrase: Phrase) -> str:
    """Terms in a row, as a `tsquery` is written. Terms hold no quotes: they are encoded."""
    run = " <-> ".join(f"'{term}'" for term in phrase.terms)
    return f"({run}{':*' if phrase.prefix else ''})"


def as_tsvector(terms: Sequence[str]) -> str:
    """The terms with their positions, as a literal no parser touches."""
    places: dict[str, list[str]] = {}
    for position, term in enumerate(terms[:MOST_TERMS], 1):
        places.setdefault(term, []).append(str(position))
    return " ".join(f"'{term}':{','.join(at[:MOST_REPEATS])}" for term, at in places.items())
