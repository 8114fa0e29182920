"""The store on both databases: appending, loading, searching, and how that grows.

`python -m benchmarks.store [MESSAGES] [--data FOLDER] [--only sqlite|postgresql]`: 20,000 messages unless told
otherwise; a million takes an hour. What was loaded stays in the folder, and is searched again by the next run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg

from benchmarks.corpus import FREQUENT, Corpus
from benchmarks.table import Row, markdown
from everthread.core.redaction import redact
from everthread.core.search.terms import terms
from everthread.factory import open_store
from everthread.store.index import searchable_text
from everthread.store.models import NewCompaction, NewMessage, NewSession, SearchQuery
from everthread.store.store import Store
from tests.store.postgres_server import NoServerError, make_server, server_at

QUICK = 20_000
SMALL = 10_000
"""Growth is measured from this many messages on."""
THREAD = 1_000
ROUNDS, APPENDS, WRITERS = 15, 20, 32
CORPUS = Corpus()
SEARCH_MS = {"SQLite": 20, "PostgreSQL": 50}
"""What a search may take, in the middle."""
PLAIN_TABLE = "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, body TEXT)"

Body = dict[str, Any]


class Backend(Protocol):
    """A database, and the plain loops a store on it is measured against."""

    name: str
    url: str

    def insert(self, bodies: list[Body], first: int) -> None:
        """One by one into one table, each durable before the next."""

    def read(self) -> list[Body]:
        """What was inserted, up to a thread's length."""

    def size(self) -> int:
        """Bytes the store takes."""

    def server_cpu(self) -> float:
        """Seconds that a server used for it so far; none where there is no server."""


# --- backends -------------------------------------------------------------------------------------------------------


@dataclass
class Sqlite:
    folder: str
    name: str = "SQLite"

    def __post_init__(self) -> None:
        self.file = Path(self.folder) / "store.db"
        self.url = f"sqlite:///{self.file}"
        self.plain = apsw.Connection(f"{self.folder}/plain.db")
        for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", PLAIN_TABLE):
            self.plain.execute(statement)

    def insert(self, bodies: list[Body], first: int) -> None:
        for number, body in enumerate(bodies, first):
            self.plain.execute("INSERT INTO messages VALUES (?, ?)", (number, json.dumps(body)))

    def read(self) -> list[Body]:
        rows = self.plain.execute("SELECT body FROM messages ORDER BY id LIMIT ?", (THREAD,))
        return [json.loads(str(row[0])) for row in rows]

    def size(self) -> int:
        connection = apsw.Connection(str(self.file))
        pages, free, size = (int(connection.pragma(name)) for name in ("page_count", "freelist_count", "page_size"))
        connection.close()
        return (pages - free) * size

    def server_cpu(self) -> float:
        return 0.0


@dataclass
class Postgres:
    server: str
    url: str
    name: str = "PostgreSQL"
    plain: psycopg.Connection[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.plain = psycopg.connect(self.server, autocommit=True)
        if self.plain.execute("SELECT 1 FROM pg_database WHERE datname = 'store'").fetchone():
            return
        for setting in ("fsync", "autovacuum"):  # as they are on a server that is no test's
            self.plain.execute(f"ALTER SYSTEM SET {setting} = on".encode())
        for statement in ("SELECT pg_reload_conf()", "CREATE DATABASE store"):
            self.plain.execute(statement.encode())
        self.plain.execute(PLAIN_TABLE)

    def insert(self, bodies: list[Body], first: int) -> None:
        for number, body in enumerate(bodies, first):
            self.plain.execute("INSERT INTO messages VALUES (%s, %s)", (number, json.dumps(body)))

    def read(self) -> list[Body]:
        rows = self.plain.execute("SELECT body FROM messages ORDER BY id LIMIT %s", (THREAD,))
        return [json.loads(row[0]) for row in rows]

    def size(self) -> int:
        row = self.plain.execute("SELECT pg_database_size('store')").fetchone()
        return int(row[0]) if row else 0

    def server_cpu(self) -> float:
        """Of the processes that answer the store, by the scheduler's own count."""
        rows = self.plain.execute("SELECT pid FROM pg_stat_activity WHERE datname = 'store'").fetchall()
        files = [Path(f"/proc/{row[0]}/schedstat") for row in rows]
        return sum(int(file.read_text("ascii").split()[0]) for file in files if file.exists()) / 1e9


@contextlib.contextmanager
def sqlite(kept: Path | None) -> Iterator[Backend]:
    with contextlib.ExitStack() as stack:
        folder = kept or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="everthread-bench-")))
        backend = Sqlite(str(folder))
        yield backend
        backend.plain.close()


@contextlib.contextmanager
def postgresql(kept: Path | None) -> Iterator[Backend]:
    server = make_server() if kept is None else server_at(kept / "server")
    try:
        backend = Postgres(server.url(), server.url("store"))
        yield backend
        backend.plain.close()
    finally:
        server.stop()
        if kept is None:
            shutil.rmtree(server.directory)


BACKENDS = {"sqlite": sqlite, "postgresql": postgresql}


# --- measurements ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadNote:
    """Which threads a folder holds that keeps what was loaded; None: nothing is kept."""

    file: Path | None

    def read(self) -> list[str]:
        return json.loads(self.file.read_text("utf-8")) if self.file is not None and self.file.exists() else []

    def write(self, threads: list[str]) -> None:
        if self.file is not None:
            self.file.write_text(json.dumps(threads), "utf-8")


async def measure(backend: Backend, count: int, note: LoadNote) -> list[Row]:
    """All of it; of a store that was loaded before only what is asked of it."""
    store, name, at = open_store(backend.url), backend.name, f"at {count:,} messages"
    try:
        if threads := note.read():
            loaded = await load(store, backend, threads[len(threads) // 2], at)
            return [loaded, *await searches(store, backend, threads, at)]
        rows = await appends(store, backend)
        rows.append(await continuation(store, backend))
        start = backend.size()
        threads = await fill(store, 0, SMALL)
        small, before = backend.size(), await append_seconds(store)
        threads += await fill(store, SMALL, count)
        large, after = backend.size(), await append_seconds(store)
        grown = ((large - start) / count) / ((small - start) / SMALL)
        span = f"{SMALL:,} -> {count:,} messages"
        rows.append(ratio(f"{name}: {span}: time to append and index", after / before, "≤", 1.5))
        rows.append(ratio(f"{name}: {span}: bytes a message", grown, "≤", 1.2))
        rows.append(Row(f"{name}: bytes a message, index included", f"{(large - start) / count:,.0f}"))
        note.write(threads)
        rows.append(await load(store, backend, threads[len(threads) // 2], at))
        return rows + await searches(store, backend, threads, at)
    finally:
        await store.close()


def ratio(what: str, value: float, sign: str, goal: float) -> Row:
    met = value >= goal if sign == "≥" else value <= goal
    return Row(what, f"{value:.2f} ×", f"{sign} {goal:g} ×", met)


async def appends(store: Store, backend: Backend) -> list[Row]:
    """Durable appends a second, against the plain loop: in turns, as a machine is not always equally fast."""
    await store.create_session(NewSession(id="appends"))
    bodies = CORPUS.messages(APPENDS, seed=0)
    rates: list[tuple[float, float, float]] = []

    async def one(some: list[Body]) -> None:
        for body in some:
            await store.append("appends", [new(body)])

    async def many() -> None:
        await asyncio.gather(*(one(bodies[:4]) for _ in range(WRITERS)))

    for number in range(ROUNDS):
        plain = await seconds(lambda: asyncio.to_thread(backend.insert, bodies, number * APPENDS))  # noqa: B023
        single = await seconds(lambda: one(bodies))
        await indexed(store)
        several = await seconds(many)
        await indexed(store)
        rates.append((APPENDS / plain, APPENDS / single, WRITERS * 4 / several))
    plain = statistics.median(rate[0] for rate in rates)
    singly, together = (statistics.median(rate[way] / rate[0] for rate in rates) for way in (1, 2))
    return [
        Row(f"{backend.name}: plain loop of durable inserts", f"{plain:,.0f} a second"),
        ratio(f"{backend.name}: appends by one writer, against the plain loop", singly, "≥", 0.5),
        ratio(f"{backend.name}: appends by {WRITERS} concurrent writers, against the plain loop", together, "≥", 5),
    ]


async def continuation(store: Store, backend: Backend) -> Row:
    """What compacting a thread adds to it: the summary, its record, and the places of what is carried along."""
    empty = backend.size()
    threads = await fill(store, -10 * THREAD, 0)
    full = backend.size()
    summary = " ".join(str(body["content"]) for body in CORPUS.messages(60, seed=1))
    for thread in threads:
        ids = [message.id for message in await store.messages(thread)]
        record = NewCompaction(covered=ids[4:-40], summary=summary)
        made = NewMessage({"role": "user", "content": summary}, "summary")
        kept: list[int | NewMessage] = [*ids[:4], made, *ids[-40:]]
        await store.continue_session(thread, kept, seen=len(ids), compaction=record)
    added = (backend.size() - full) / (full - empty)
    what = f"{backend.name}: a continuation of {THREAD:,} messages, a summary of {len(summary):,} characters, adds"
    return Row(what, f"{100 * added:.1f} %", "< 10 %", added < 0.1)


async def fill(store: Store, start: int, stop: int) -> list[str]:
    """Threads of generated messages, stored and indexed."""
    threads = []
    for number in range(start, stop, THREAD):
        session = await store.create_session(NewSession(started=float(number)))
        bodies = CORPUS.messages(min(THREAD, stop - number), seed=number)
        await store.append(session.id, [new(body, created=float(number)) for body in bodies])
        await indexed(store)
        threads.append(session.id)
    return threads


async def append_seconds(store: Store) -> float:
    """Seconds to append and index some messages, when nothing else disturbs."""
    session = await store.create_session(NewSession())
    taken = []
    for seed in range(30):
        messages = [new(body) for body in CORPUS.messages(100, seed=-seed)]
        start = time.perf_counter()
        await store.append(session.id, messages)
        await indexed(store)
        taken.append(time.perf_counter() - start)
    return min(taken)


async def indexed(store: Store) -> None:
    """A search waits for what is not indexed yet."""
    await store.search(SearchQuery("", limit=0))


async def load(store: Store, backend: Backend, thread: str, at: str) -> Row:
    held = len(backend.read())
    backend.insert(CORPUS.messages(THREAD - held, seed=2), held)
    pairs = []
    for _ in range(9):
        plain = await seconds(lambda: asyncio.to_thread(backend.read))
        pairs.append((await seconds(lambda: store.messages(thread)), plain))
    taken, plain = (statistics.median(pair[way] for pair in pairs) for way in (0, 1))
    figure = f"{1000 * taken:.1f} ms, {taken / plain:.1f} × a plain select"
    return Row(f"{backend.name}: load of a thread of {len(await store.messages(thread)):,} messages, {at}", figure)


async def searches(store: Store, backend: Backend, threads: list[str], at: str) -> list[Row]:
    """What a search takes: CPU of this process and the server, and in brackets by the clock."""
    rows, medians, most = [], [], SEARCH_MS[backend.name]
    for kind, queries in kinds(threads).items():
        taken, used = [], []
        for query in queries * 3:
            begun = time.process_time() + backend.server_cpu()
            taken.append(1000 * await seconds(lambda: store.search(query)))  # noqa: B023
            used.append(1000 * (time.process_time() + backend.server_cpu() - begun))
        medians.append(statistics.median(used))
        figure = f"{medians[-1]:.1f} ms CPU ({statistics.median(taken):.1f} ms, slowest {max(taken):.0f} ms)"
        rows.append(Row(f"{backend.name}: search {at}: {kind}", figure, f"≤ {most} ms", medians[-1] <= most))
    middle = statistics.median(medians)
    return [
        *rows,
        Row(f"{backend.name}: search {at}: median of these", f"{middle:.1f} ms CPU", f"≤ {most} ms", middle <= most),
    ]


def kinds(threads: list[str]) -> dict[str, list[SearchQuery]]:
    """What people look for, fifteen of each kind."""
    make = random.Random(5)  # noqa: S311 - always the same queries
    rare, names, chinese = CORPUS.words[5_000:], CORPUS.identifiers, CORPUS.chinese
    characters = list(dict.fromkeys("".join(chinese)))
    texts = {
        "a frequent word": make.sample(FREQUENT, 15),
        "a rare word": make.sample(rare, 15),
        "two frequent words": [" ".join(make.sample(FREQUENT, 2)) for _ in range(15)],
        "three words, one of them rare": [" ".join([*make.sample(FREQUENT, 2), make.choice(rare)]) for _ in range(15)],
        "a phrase": [f'"{" ".join(CORPUS.text(make).split()[1:3])}"' for _ in range(15)],
        "an identifier as typed": [*names[:5], *make.sample(names, 10)],
        "a prefix of 3 to 5 letters": [word[: make.randint(3, 5)] + "*" for word in make.sample(CORPUS.words, 15)],
        "one Chinese character, frequent": characters[:15],
        "one Chinese character, rare": characters[-15:],
        "two Chinese characters": [*chinese[:8], *make.sample(chinese, 7)],
        "four Chinese characters": [chinese[number] + chinese[number + 1] for number in range(15)],
        "what is not there": ["zzzqqq", "不存在的词语组", "no-such/file.py"] * 5,
    }
    found = {kind: [SearchQuery(text) for text in queries] for kind, queries in texts.items()}
    words = make.sample(FREQUENT, 15)
    found["a word in one thread"] = [SearchQuery(word, thread=make.choice(threads)) for word in words]
    found["a word by role, tool and time"] = [
        SearchQuery(word, role="tool", tool="terminal", until=len(threads) * THREAD / 2) for word in words
    ]
    return found


def preparing() -> Row:
    """What a message costs before an index sees it."""
    texts = [searchable_text(body) for body in CORPUS.messages(2_000, seed=3)]
    figures = []
    for name, work in (("redaction", redact), ("terms", terms)):
        start = time.perf_counter()
        for text in texts:
            work(text)
        figures.append(f"{name} {(time.perf_counter() - start) / len(texts) * 1e6:.0f} µs")
    size = statistics.mean(map(len, texts))
    return Row(f"indexing a message of {size:.0f} characters on average: share of", ", ".join(figures))


# --- running --------------------------------------------------------------------------------------------------------


def new(body: Body, **more: Any) -> NewMessage:
    return NewMessage(body, **more)  # type: ignore[arg-type]  # generated bodies are plain dicts


async def seconds(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


def run(count: int = QUICK, data: Path | None = None, only: str | None = None) -> list[Row]:
    rows = [preparing()]
    for name, make in BACKENDS.items():
        if only not in (None, name):
            continue
        kept = data / name if data is not None else None
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
        try:
            with make(kept) as backend:
                rows += asyncio.run(measure(backend, count, LoadNote(kept / f"loaded-{count}.json" if kept else None)))
        except NoServerError as error:
            rows.append(Row("PostgreSQL", str(error)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("messages", nargs="?", default=f"{QUICK}")
    parser.add_argument("--data", type=Path, help="a folder that keeps what was loaded")
    parser.add_argument("--only", choices=BACKENDS)
    given = parser.parse_args()
    count = int(given.messages.replace(",", "").replace("_", ""))
    sys.stdout.write(markdown(f"store, {count:,} messages", run(count, given.data, given.only)))


if __name__ == "__main__":
    main()
