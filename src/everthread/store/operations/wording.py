"""The words of a message, looked up: which pieces hold them, and how much each counts.

Which pieces hold which words is all that is needed: how often one stands there adds nothing in messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from everthread.core.questions import Sought
from everthread.core.ranking import closeness, is_telling, rarity
from everthread.core.terms import encode_term
from everthread.store.database import Database, Tx
from everthread.store.operations.scope import sources_of
from everthread.store.operations.sessions import placeholders
from everthread.store.queries import Match

POSTINGS = 1_000
"""Of each word the newest so many pieces are looked at: one that has more says little."""
LOOKED_UP = 10
"""So many words are looked up in all their forms, the most telling ones."""
COMMON = 64
"""A word that so many pieces hold as it was typed is looked up last."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word that was looked up, and how much it counts."""

    sought: Sought
    weight: float
    pieces: frozenset[int]
    telling: bool
    """Whether it tells one place from another: not one that stands everywhere, nor one of a date."""


def looked_up(tx: Tx, database: Database, scope: Match, sought: Sequence[Sought], thread: str | None) -> list[Word]:
    """The words with the pieces that hold them; of many words the most telling."""
    total = _total(tx, thread)
    chosen, absent = _most_telling(tx, database, scope, sought) if len(sought) > LOOKED_UP else (sought, ())
    words = []
    for item in chosen:
        asked = replace(scope, one_of=tuple(map(encode_term, item.forms)))
        pieces = frozenset(database.holding(tx, asked, POSTINGS))
        telling = item.counted and is_telling(len(pieces), total)
        words.append(Word(item, item.weight * rarity(len(pieces), total), pieces, telling))
    nowhere = rarity(0, total)
    return words + [Word(item, item.weight * nowhere, frozenset(), item.counted) for item in absent]


def _most_telling(
    tx: Tx, database: Database, scope: Match, sought: Sequence[Sought]
) -> tuple[list[Sought], Sequence[Sought]]:
    """Those to be looked up; and those that stand nowhere as typed, which a place that answers lacks."""
    held: list[tuple[int, Sought]] = []
    for item in sought:
        asked = replace(scope, one_of=(encode_term(item.forms[0]),))
        held.append((len(database.holding(tx, asked, COMMON)), item))
    here = sorted((pair for pair in held if 0 < pair[0] < COMMON), key=lambda pair: pair[0])
    nowhere = [item for count, item in held if count == 0]
    ordered = [*(item for _, item in here), *nowhere, *(item for count, item in held if count == COMMON)]
    return ordered[:LOOKED_UP], nowhere[max(0, LOOKED_UP - len(here)) :]


def _total(tx: Tx, thread: str | None) -> int:
    """How many pieces there are; of all threads about how many."""
    if thread is None:
        row = tx.one("SELECT MAX(id) FROM pieces")
    else:
        sources = sources_of(tx, thread)
        row = tx.one(f"SELECT COUNT(*) FROM pieces WHERE thread_id IN ({placeholders(sources)})", sources)
    return int(row[0] or 0) if row else 0


def weighed(words: Sequence[Word], most: int) -> dict[int, float]:
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


def held_by(piece: int, words: Sequence[Word]) -> float:
    """How much of what was asked a piece holds itself, 0 to 1."""
    counted = [word for word in words if word.telling]
    held = [word.weight for word in counted if piece in word.pieces]
    return closeness(held, [word.weight for word in counted])
