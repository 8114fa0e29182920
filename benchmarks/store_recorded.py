"""Measure recorded conversations in a SQLite store: CPU per message, size against text, and the import of a large log.

The messages are those of the shared transcripts, or of the shipped session if these are absent. The log has the form of
Claude Code's, with about 100 MB of the same messages.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.shared import find_shared
from benchmarks.store_databases import Body, Sqlite
from benchmarks.table import Row
from everthread.core.search.indexed_terms import make_index_text
from everthread.core.secrets.redaction import redact
from everthread.factory import open_store
from everthread.store.records import NewMessage, NewSession
from everthread.store.search.text_chunks import searchable_text
from everthread.store.search_records import SearchQuery
from everthread.store.store import Store

MESSAGES = 5_000
APPENDED_TOGETHER = 2
"""A request and its answer."""
CPU_MICROSECONDS = 250
SIZE_TIMES_TEXT = 2.5
LOG_MEGABYTES = 100
IMPORT_SECONDS = 20
IMPORT_MEGABYTES = 200
IMPORT = """
import asyncio, json, resource, sys, time
from everthread.factory import open_store
from everthread.lab.importers.read_logs import open_lines, stream_log
from everthread.lab.importers.thread_import import import_stream
from everthread.store.search_records import SearchQuery

async def work(log, folder):
    store = open_store(f"sqlite:///{folder}/import.db")
    _, messages = await import_stream(store, stream_log(open_lines(log), log))
    used = time.process_time()
    await store.search(SearchQuery("error"))
    search = time.process_time() - used
    await store.close()
    return messages, used, search

messages, used, search = asyncio.run(work(*sys.argv[1:]))
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([messages, used, search, memory]))
"""


def load_threads() -> tuple[str, list[list[Body]]]:
    """Return the recorded conversations, and their name."""
    folder = find_shared("transcripts")
    if folder is not None:
        files = sorted(folder.glob("*.json"))
        bodies = [json.loads(file.read_text("utf-8"))["messages"] for file in files]
        return "the shared transcripts", bodies
    shipped = Path(__file__).parents[1] / "examples" / "long_session.json"
    return "the shipped session", [json.loads(shipped.read_text("utf-8"))["messages"]]


def measure_recorded() -> list[Row]:
    """Measure recorded messages in new SQLite stores."""
    name, threads = load_threads()
    with tempfile.TemporaryDirectory(prefix="everthread-bench-") as folder:
        database = Sqlite(folder)
        rows = asyncio.run(_measure_store(database, name, threads))
        database.plain.close()
        rows += _measure_import(Path(folder), threads)
    return rows


async def _measure_store(database: Sqlite, name: str, threads: list[list[Body]]) -> list[Row]:
    some = list(islice(cycle(threads), MESSAGES * len(threads) // sum(map(len, threads))))
    count = sum(map(len, some))
    text = sum(len(searchable_text(body).encode()) for thread in some for body in thread)
    store = open_store(database.url)
    try:
        await _store_threads(store, some[:1])  # patterns are compiled, tables are read
        before = database.size()
        used = time.process_time()
        await _store_threads(store, some)
        each = 1e6 * (time.process_time() - used) / count
        times = (database.size() - before) / text
    finally:
        await store.close()
    what = f"SQLite: {count:,} messages of {name}, {text / count:.0f} bytes of text each"
    return [
        Row(
            f"{what}: CPU to store and index one",
            f"{each:.0f} µs",
            f"≤ {CPU_MICROSECONDS} µs",
            each <= CPU_MICROSECONDS,
        ),
        Row(
            f"{what}: of that before the database",
            _measure_preparation(some[0]),
        ),
        Row(
            f"{what}: the database against its text",
            f"{times:.2f} ×",
            f"≤ {SIZE_TIMES_TEXT:g} ×",
            times <= SIZE_TIMES_TEXT,
        ),
    ]


async def _store_threads(store: Store, threads: list[list[Body]]) -> None:
    for thread in threads:
        session = await store.create_session(NewSession())
        for start in range(0, len(thread), APPENDED_TOGETHER):
            bodies: list[Any] = thread[start : start + APPENDED_TOGETHER]
            await store.append(session.id, [NewMessage(body) for body in bodies])
        await store.search(SearchQuery("", limit=0))


def _measure_preparation(thread: list[Body]) -> str:
    """Return the CPU of redaction and terms for a message."""
    texts = [searchable_text(body) for body in thread]
    figures = []
    for name, work in (("redaction", redact), ("terms", make_index_text)):
        start = time.process_time()
        for text in texts:
            work(text)
        each = 1e6 * (time.process_time() - start) / len(texts)
        figures.append(f"{name} {each:.0f} µs")
    return ", ".join(figures)


def _measure_import(folder: Path, threads: list[list[Body]]) -> list[Row]:
    log = folder / "log.jsonl"
    size = _write_log(log, threads)
    done = subprocess.run(  # noqa: S603 - a program of our own
        [sys.executable, "-c", IMPORT, str(log), str(folder)],
        check=True,
        capture_output=True,
    )
    messages, used, search, memory = json.loads(done.stdout)
    what = f"SQLite: import of a log of {size / 1e6:.0f} MB, {messages:,} messages"
    return [
        Row(
            f"{what}: CPU, index included",
            f"{used:.1f} s",
            f"≤ {IMPORT_SECONDS} s",
            used <= IMPORT_SECONDS,
        ),
        Row(
            f"{what}: memory",
            f"{memory:.0f} MB",
            f"≤ {IMPORT_MEGABYTES} MB",
            memory <= IMPORT_MEGABYTES,
        ),
        Row(f"{what}: the first search after it", f"{1000 * search:.0f} ms CPU"),
    ]


def _write_log(path: Path, threads: list[list[Body]]) -> int:
    size = 0
    with path.open("wb") as file:
        for line in _log_lines(threads):
            size += file.write(line)
            if size >= LOG_MEGABYTES * 1e6:
                break
    return size


def _log_lines(threads: list[list[Body]]) -> Iterator[bytes]:
    """Yield lines as Claude Code writes them: a result is there twice, for the model and for the screen."""
    parent: str | None = None
    for number, body in enumerate(body for thread in cycle(threads) for body in thread):
        text = searchable_text(body)
        role = "assistant" if body["role"] == "assistant" else "user"
        line: dict[str, Any] = {
            "type": role,
            "uuid": f"line-{number}",
            "parentUuid": parent,
            "sessionId": "benchmark",
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(1.7e9 + number)),
            "message": {"role": role, "content": f"{number} {text}"},
        }
        if body["role"] == "tool":
            line["toolUseResult"] = {"stdout": text, "stderr": "", "interrupted": False}
        parent = f"line-{number}"
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
