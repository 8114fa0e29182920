"""Measure the store on both databases: appending, loading, searching, and their growth.

`python -m benchmarks.store [MESSAGES] [--data FOLDER] [--only sqlite|postgresql]`: 20,000 messages by default; a
million takes an hour. The folder keeps the loaded messages for the searches of the next run.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.store_databases import (
    THREAD,
    Backend,
    Body,
    postgresql,
    sqlite,
)
from benchmarks.store_queries import CORPUS, list_queries, list_questions
from benchmarks.store_recorded import measure_recorded
from benchmarks.table import Row, format_section
from everthread.factory import open_store
from everthread.store.records import NewCompaction, NewMessage, NewSession
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store
from tests.store.postgres_server import NoServerError

QUICK = 20_000
FIRST_SIZE = 10_000
"""Number of messages with which growth is compared."""
ROUNDS = 15
APPENDS = 20
WRITERS = 32
SEARCH_MS = {"SQLite": 15, "PostgreSQL": 50}
"""CPU limit for the median search of a kind."""
BACKENDS = {"sqlite": sqlite, "postgresql": postgresql}


@dataclass(frozen=True)
class LoadNote:
    """A note of the loaded threads in a folder; without a folder nothing is kept."""

    file: Path | None

    def read(self) -> list[str]:
        return (
            json.loads(self.file.read_text("utf-8"))
            if self.file is not None and self.file.exists()
            else []
        )

    def write(self, threads: list[str]) -> None:
        if self.file is not None:
            self.file.write_text(json.dumps(threads), "utf-8")


async def measure(backend: Backend, count: int, note: LoadNote) -> list[Row]:
    """Measure everything; on a store that was loaded before, only loading and searching."""
    store = open_store(backend.url)
    name = backend.name
    at = f"at {count:,} messages"
    try:
        if threads := note.read():
            loaded = await load(store, backend, threads[len(threads) // 2], at)
            return [loaded, *await measure_searches(store, backend, threads, at)]
        rows = await measure_appends(store, backend)
        rows.append(await measure_continuation(store, backend))
        start = backend.size()
        threads = await fill_store(store, 0, FIRST_SIZE)
        small = backend.size()
        before = await time_appends(store)
        threads += await fill_store(store, FIRST_SIZE, count)
        large = backend.size()
        after = await time_appends(store)
        grown = ((large - start) / count) / ((small - start) / FIRST_SIZE)
        span = f"{FIRST_SIZE:,} -> {count:,} messages"
        rows.append(
            make_ratio_row(f"{name}: {span}: time to append and index", after / before, "≤", 1.5)
        )
        rows.append(make_ratio_row(f"{name}: {span}: bytes a message", grown, "≤", 1.2))
        rows.append(
            Row(
                f"{name}: bytes a message, index included",
                f"{(large - start) / count:,.0f}",
            )
        )
        note.write(threads)
        rows.append(await load(store, backend, threads[len(threads) // 2], at))
        return rows + await measure_searches(store, backend, threads, at)
    finally:
        await store.close()


def make_ratio_row(what: str, value: float, sign: str, goal: float) -> Row:
    met = value >= goal if sign == "≥" else value <= goal
    return Row(what, f"{value:.2f} ×", f"{sign} {goal:g} ×", met)


async def measure_appends(store: Store, backend: Backend) -> list[Row]:
    """Measure durable appends per second against the plain loop, in turns, because a machine's speed varies."""
    await store.create_session(NewSession(id="appends"))
    bodies = CORPUS.messages(APPENDS, seed=0)
    rates: list[tuple[float, float, float]] = []

    async def one(some: list[Body]) -> None:
        for body in some:
            await store.append("appends", [new(body)])

    async def many() -> None:
        await asyncio.gather(*(one(bodies[:4]) for _ in range(WRITERS)))

    for number in range(ROUNDS):
        plain = await seconds(
            lambda: asyncio.to_thread(backend.insert, bodies, number * APPENDS)  # noqa: B023
        )
        single = await seconds(lambda: one(bodies))
        await wait_for_index(store)
        several = await seconds(many)
        await wait_for_index(store)
        rates.append((APPENDS / plain, APPENDS / single, WRITERS * 4 / several))
    plain = statistics.median(rate[0] for rate in rates)
    singly, together = (statistics.median(rate[way] / rate[0] for rate in rates) for way in (1, 2))
    return [
        Row(f"{backend.name}: plain loop of durable inserts", f"{plain:,.0f} a second"),
        make_ratio_row(
            f"{backend.name}: appends by one writer, against the plain loop",
            singly,
            "≥",
            0.5,
        ),
        make_ratio_row(
            f"{backend.name}: appends by {WRITERS} concurrent writers, against the plain loop",
            together,
            "≥",
            5,
        ),
    ]


async def measure_continuation(store: Store, backend: Backend) -> Row:
    """Measure the bytes that a compaction adds to a thread: summary, record, and positions of kept messages."""
    empty = backend.size()
    threads = await fill_store(store, -10 * THREAD, 0)
    full = backend.size()
    summary = " ".join(str(body["content"]) for body in CORPUS.messages(60, seed=1))
    for thread in threads:
        ids = [message.id for message in await store.list_messages(thread)]
        record = NewCompaction(covered=ids[4:-40], summary=summary)
        made = NewMessage({"role": "user", "content": summary}, "summary")
        kept: list[int | NewMessage] = [*ids[:4], made, *ids[-40:]]
        await store.continue_session(thread, kept, seen_count=len(ids), compaction=record)
    added = (backend.size() - full) / (full - empty)
    what = f"{backend.name}: a continuation of {THREAD:,} messages, a summary of {len(summary):,} characters, adds"
    return Row(what, f"{100 * added:.1f} %", "< 10 %", added < 0.1)


async def fill_store(store: Store, start: int, stop: int) -> list[str]:
    """Store and index threads of generated messages; return their ids."""
    threads = []
    for number in range(start, stop, THREAD):
        session = await store.create_session(NewSession(started=float(number)))
        bodies = CORPUS.messages(min(THREAD, stop - number), seed=number)
        await store.append(session.id, [new(body, created=float(number)) for body in bodies])
        await wait_for_index(store)
        threads.append(session.id)
    return threads


async def time_appends(store: Store) -> float:
    """Return the least seconds to append and index some messages."""
    session = await store.create_session(NewSession())
    taken = []
    for seed in range(30):
        messages = [new(body) for body in CORPUS.messages(100, seed=-seed)]
        start = time.perf_counter()
        await store.append(session.id, messages)
        await wait_for_index(store)
        taken.append(time.perf_counter() - start)
    return min(taken)


async def wait_for_index(store: Store) -> None:
    """Wait until all messages are indexed, as a search does."""
    await store.search(SearchQuery("", limit=0))


async def load(store: Store, backend: Backend, thread: str, at: str) -> Row:
    held = len(backend.read())
    backend.insert(CORPUS.messages(THREAD - held, seed=2), held)
    pairs = []
    for _ in range(9):
        plain = await seconds(lambda: asyncio.to_thread(backend.read))
        pairs.append((await seconds(lambda: store.list_messages(thread)), plain))
    taken, plain = (statistics.median(pair[way] for pair in pairs) for way in (0, 1))
    figure = f"{1000 * taken:.1f} ms, {taken / plain:.1f} × a plain select"
    return Row(
        f"{backend.name}: load of a thread of {len(await store.list_messages(thread)):,} messages, {at}",
        figure,
    )


async def measure_searches(
    store: Store, backend: Backend, threads: list[str], at: str
) -> list[Row]:
    """Measure searches: CPU of this process and the server, and in brackets the elapsed time."""
    rows = []
    medians = []
    most = SEARCH_MS[backend.name]
    asked: dict[str, list[Callable[[], Awaitable[Any]]]] = {
        kind: [functools.partial(store.search, query) for query in queries]
        for kind, queries in list_queries(threads).items()
    }
    asked["a question"] = [functools.partial(store.find, query) for query in list_questions()]
    for kind, calls in asked.items():
        taken = []
        used = []
        for call in calls * 3:
            begun = time.process_time() + backend.server_cpu()
            taken.append(1000 * await seconds(call))
            used.append(1000 * (time.process_time() + backend.server_cpu() - begun))
        medians.append(statistics.median(used))
        figure = f"{medians[-1]:.1f} ms CPU ({statistics.median(taken):.1f} ms, slowest {max(taken):.0f} ms)"
        rows.append(
            Row(
                f"{backend.name}: search {at}: {kind}",
                figure,
                f"≤ {most} ms",
                medians[-1] <= most,
            )
        )
    middle = statistics.median(medians)
    return [
        *rows,
        Row(
            f"{backend.name}: search {at}: median of these",
            f"{middle:.1f} ms CPU",
            f"≤ {most} ms",
            middle <= most,
        ),
    ]


def new(body: Body, **more: Any) -> NewMessage:
    return NewMessage(body, **more)  # type: ignore[arg-type]  # generated bodies are plain dicts


async def seconds(work: Callable[[], Awaitable[Any]]) -> float:
    start = time.perf_counter()
    await work()
    return time.perf_counter() - start


def run(count: int = QUICK, data: Path | None = None, only: str | None = None) -> list[Row]:
    rows = measure_recorded() if only != "postgresql" else []
    for name, make in BACKENDS.items():
        if only not in (None, name):
            continue
        kept = data / name if data is not None else None
        if kept is not None:
            kept.mkdir(parents=True, exist_ok=True)
        try:
            with make(kept) as backend:
                rows += asyncio.run(
                    measure(
                        backend,
                        count,
                        LoadNote(kept / f"loaded-{count}.json" if kept else None),
                    )
                )
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
    sys.stdout.write(
        format_section(f"store, {count:,} messages", run(count, given.data, given.only))
    )


if __name__ == "__main__":
    main()
