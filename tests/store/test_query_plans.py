"""Query plans of a search: every query uses an index; no table is read from end to end."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from everthread.core.search.query import read_question
from everthread.store.database import Row, Tx
from everthread.store.records import NewMessage
from everthread.store.search.neighbours import find_neighbours
from everthread.store.search.recall_passages import recall_passages
from everthread.store.search.text_search import search_texts
from everthread.store.search_records import RecallQuery, SearchQuery
from everthread.store.sql.client_links import find_link, find_links_by_loose_digest
from everthread.store.sql.client_rewrites import match_rewrites
from everthread.store.store import Store
from tests.store.conftest import close_sound, open_at
from tests.store.messages import new_thread
from tests.store.searching import search
from tests.store.tables import transaction

BIG = frozenset({"search", "messages", "chunks", "places"})
"""Tables that grow with the number of messages."""
TOPICS = (
    "ledger",
    "theme",
    "parser",
    "invoice",
    "migration",
    "gateway",
    "window",
    "summary",
)


class Explaining:
    """A transaction that explains each query before running it."""

    def __init__(self, tx: Tx) -> None:
        self.tx = tx
        self.whole: list[str] = []
        """Queries that read a table from end to end."""
        self.asked = 0
        if tx.dialect.name == "postgresql":
            # All rows fit into a few pages here; a table that is still read whole has no usable index.
            tx.run("SET LOCAL enable_seqscan = off")

    def __getattr__(self, name: str) -> Any:
        # Queries made inside the inner transaction pass through this one, too.
        method = getattr(type(self.tx), name, None)
        return functools.partial(method, self) if callable(method) else getattr(self.tx, name)

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        self.asked += 1
        if any(name in BIG for name in self._scanned(sql, values)):
            self.whole.append(sql)
        return self.tx.all(sql, values)

    def one(self, sql: str, values: Sequence[Any] = ()) -> Row | None:
        rows = self.all(sql, values)
        return rows[0] if rows else None

    def all_of_each(self, queries: Sequence[tuple[str, Sequence[Any]]]) -> list[list[Row]]:
        return [self.all(*query) for query in queries]

    def _scanned(self, sql: str, values: Sequence[Any]) -> Iterator[str]:
        if self.tx.dialect.name == "sqlite":
            for row in self.tx.all(f"EXPLAIN QUERY PLAN {sql}", values):
                words = str(row[3]).split()
                is_whole = words[0] == "SCAN" and "INDEX" not in words
                yield words[1] if is_whole else ""
        else:
            (explained,) = self.tx.all(f"EXPLAIN (FORMAT JSON) {sql}", values)
            plan = explained[0]
            yield from _sequential(json.loads(plan) if isinstance(plan, str) else plan)


def _sequential(plan: Any) -> Iterator[str]:
    """Return the tables that a plan of PostgreSQL reads from end to end."""
    if isinstance(plan, list):
        for part in plan:
            yield from _sequential(part)
    elif isinstance(plan, dict):
        if plan.get("Node Type") == "Seq Scan":
            yield str(plan["Relation Name"])
        yield from _sequential([plan.get("Plan"), plan.get("Plans")])


async def fill(store: Store) -> str:
    """Create several threads, one of which is searched."""
    threads = []
    for number in range(12):
        topic = TOPICS[number % len(TOPICS)]
        new = [
            NewMessage(
                {
                    "role": "user" if at % 2 else "assistant",
                    "content": f"{topic} line_{at} of page {number} 中文",
                }
            )
            for at in range(400)
        ]
        threads.append(await new_thread(store, *new))
    await search(store, "ledger")
    await store.vacuum()
    return threads[3]


KINDS: dict[str, dict[str, Any]] = {
    "a word": {"text": "theme"},
    "a frequent word": {"text": "line"},
    "two words": {"text": "theme page"},
    "a phrase": {"text": '"of page"'},
    "an identifier": {"text": "line_77"},
    "a prefix": {"text": "migr*"},
    "one Chinese character": {"text": "中"},
    "nothing": {"text": "zzzqqq"},
    "a role": {"text": "theme", "role": "user"},
    "a time": {"text": "theme", "until": 1e12},
    "a path": {"text": "theme", "path": "src/app.py"},
}


async def test_every_kind_of_search_and_recall_is_answered_through_an_index(
    store: Store,
) -> None:
    for thread in (await fill(store), None):
        assert read_whole_by_searches(store, thread) == []
        assert read_whole_by_recall(store, thread) == []


def read_whole_by_searches(store: Store, thread: str | None) -> list[str]:
    """Return the tables that any kind of search reads from end to end."""

    tables = []
    for kind, asked in KINDS.items():
        with transaction(store) as tx:
            explaining: Any = Explaining(tx)
            search_texts(explaining, SearchQuery(**asked, thread=thread))
        assert explaining.asked, kind
        tables += [f"{kind}: {table}" for table in explaining.whole]
    return tables


async def test_the_neighbours_of_a_page_are_one_query_through_an_index(
    store: Store,
) -> None:
    await fill(store)
    hits = await search(store, "line", limit=50)

    with transaction(store) as tx:
        explaining: Any = Explaining(tx)
        found = find_neighbours(explaining, [(hit.message, hit.snippet) for hit in hits])
    assert explaining.asked == 1
    assert explaining.whole == []
    assert sum(any(pair) for pair in found) == 50


def read_whole_by_recall(store: Store, thread: str | None) -> list[str]:
    """Return the tables that a recall reads from end to end."""

    text = "what was said about the migration on page 4 in line_77?"
    tables: list[str] = []
    for as_page in (False, True):
        query = RecallQuery(
            text,
            "default",
            thread=thread,
            for_page=as_page,
        )
        with transaction(store) as tx:
            explaining: Any = Explaining(tx)
            recall_passages(explaining, query, read_question(text, 1.7e9))
        assert explaining.asked
        tables += explaining.whole
    return tables


class CountsRows(Explaining):
    """A transaction that counts the rows that are read and passed over."""

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        (explained,) = self.tx.all(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", values)
        self.asked += sum(
            _passed_over(
                json.loads(explained[0]) if isinstance(explained[0], str) else explained[0]
            )
        )
        return self.tx.all(sql, values)


def _passed_over(plan: Any) -> Iterator[int]:
    if isinstance(plan, list):
        for part in plan:
            yield from _passed_over(part)
    elif isinstance(plan, dict):
        yield int(plan.get("Rows Removed by Filter", 0))
        yield from _passed_over([plan.get("Plan"), plan.get("Plans")])


async def test_a_server_that_has_counted_no_rows_reads_those_of_one_point(
    new_url: Callable[..., str],
) -> None:
    """A new server plans without figures for its first minute, one without autovacuum always."""
    store = open_at(new_url("postgresql", empty=True))
    with transaction(store) as tx:
        tx.run(
            "INSERT INTO links SELECT 't', 's', 'd' || n, '', 'd' || n, 'k' || n, 'A' || n, n, NULL, '' "
            "FROM generate_series(1, 2000) n"
        )
        tx.run(
            "INSERT INTO rewrites SELECT 't', 'e', 'd' || n, 0, n, 'k' || n, '', 'A', '', 0, 0, '{}', 0 "
            "FROM generate_series(1, 2000) n"
        )
    with transaction(store) as tx:
        counting: Any = CountsRows(tx)
        assert find_link(counting, "t", "s", ["d7", "d8"]) is not None
        assert find_links_by_loose_digest(counting, "t", "s", ["k7", "k8"])
        loose_digests = [f"k{length}" for length in range(1, 9)]
        [(exact, _)], _ = match_rewrites(counting, "t", ["e"], ["d7", "d8"], loose_digests)
        assert exact
        [(_, similar)], _ = match_rewrites(counting, "t", ["e"], [], ["k7", "k8"])
        assert similar
    assert counting.asked < 10
    await close_sound(store)
