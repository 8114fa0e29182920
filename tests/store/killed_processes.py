"""Processes to be killed. A small one is started once and forked for every child: that takes milliseconds.

Commands come as lines of JSON on its standard input, answers go to its standard output. A child writes what it asked
for and what was confirmed to a log, a line at a time, straight to the file: what is in there happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import psycopg
from psycopg_pool import NullConnectionPool

from everthread.errors import EverthreadError, NothingToUndoError
from everthread.factory import open_store
from everthread.store.database import Tx
from everthread.store.postgres import PostgresConnection, PostgresDatabase
from everthread.store.records import NewCompaction, NewMessage, NewSession, new_id
from everthread.store.schema import Migration, apply_migrations, load_migrations
from everthread.store.sqlite import SqliteDatabase
from everthread.store.store import Store

ROOT = Path(__file__).parents[2]
LOADED = (Store, PostgresDatabase, SqliteDatabase)
"""Imports that every child needs, made before forking, though `open_store` would make them."""


@functools.cache
def _forking_process() -> subprocess.Popen[str]:
    """One process for all tests of a worker: its imports cost more than most tests. It ends with its input."""
    command = [sys.executable, "-m", "tests.store.killed_processes"]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


class ForkServer:
    """The process that forks the children."""

    def __enter__(self) -> ForkServer:
        self.process = _forking_process()
        self.alive: set[int] = set()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in list(self.alive):
            self.kill(pid)

    def start(self, role: str, **arguments: Any) -> int:
        pid = self._ask({"role": role, "arguments": arguments})
        self.alive.add(pid)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.wait(pid)

    def wait(self, pid: int) -> int:
        """Return the exit code of a child, negative for a signal."""
        self.alive.discard(pid)
        return self._ask({"wait": pid})

    def _ask(self, question: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(question), file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        assert answer, f"the process that starts children has ended: {self.process.wait()}"
        return int(answer)


def serve(questions: IO[str]) -> None:
    for line in questions:
        question = json.loads(line)
        if "wait" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                become(question["role"], question["arguments"])
        print(answer, flush=True)


def become(role: str, arguments: dict[str, Any]) -> None:
    """Run as the child; never return."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        ROLES[role](**arguments)
        code = 0
    except BaseException as error:
        print(
            f"{role} {os.getpid()}: {type(error).__name__}: {error}",
            file=sys.stderr,
            flush=True,
        )
        raise
    finally:
        os._exit(code)


@dataclass
class Log:
    """Requests of a child (`ask`) and confirmations (`ack`)."""

    path: Path
    file: int = field(init=False)

    def __post_init__(self) -> None:
        self.file = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def __call__(self, *words: str) -> None:
        os.write(self.file, (" ".join(words) + "\n").encode())


# Talking, compacting, undoing


@dataclass(frozen=True)
class Speaker:
    """A client that writes to threads: until `amount` messages are stored, or for ever."""

    log: Log
    name: str
    threads: list[str]
    amount: int | None
    undo: float
    """The share of steps that undo a compaction."""

    async def speak(self, store: Store) -> None:
        chance = random.Random(self.name)  # noqa: S311 - chance, not secrecy
        said = 0
        while self.amount is None or said < self.amount:
            thread = chance.choice(self.threads)
            dice = chance.random()
            if dice < self.undo:
                with contextlib.suppress(NothingToUndoError):
                    await store.undo(thread)
            elif dice < self.undo + 0.12:
                await _compact(store, thread, self.name)
            else:
                texts = [f"{self.name}.{said + number}" for number in range(chance.randint(1, 3))]
                said += len(texts)
                self.log("ask", thread, *texts)
                await store.append(thread, [_message(text) for text in texts])
                self.log("ack", thread, *texts)


def talk(
    *,
    url: str,
    log: str,
    seed: int,
    threads: list[str],
    amount: int | None = None,
    undo: float = 0.03,
) -> None:
    """Two speakers in one process."""
    file = Log(Path(log))

    async def all_speak() -> None:
        store = open_store(url)
        await asyncio.gather(
            *(
                Speaker(
                    file,
                    f"{seed}.{number}",
                    threads,
                    amount,
                    undo,
                ).speak(store)
                for number in range(2)
            )
        )
        await store.close()

    asyncio.run(all_speak())


def _message(text: str) -> NewMessage:
    return NewMessage({"role": "user", "content": text}, event=text)


async def _compact(store: Store, thread: str, name: str) -> None:
    tip = await store.get_compression_tip(thread)
    messages = await store.messages(tip)
    if len(messages) < 8:
        return
    summary = NewMessage(
        {"role": "user", "content": f"summary by {name}"},
        kind="summary",
        event=f"s{new_id()}",
    )
    await store.continue_session(
        tip,
        [messages[0].id, summary, *(message.id for message in messages[-3:])],
        seen_count=len(messages),
        compaction=NewCompaction(covered=[message.id for message in messages[1:-3]]),
    )


# Migrating


def migrate(url: str) -> None:
    """Open a store that may be empty."""
    store = open_store(url)
    asyncio.run(store.close())


class KilledAtStatement:
    """A transaction that kills the process after this number of statements."""

    def __init__(self, tx: Tx, statements: int) -> None:
        self.tx = tx
        self.left = statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tx, name)

    def run(self, sql: str, values: Any = ()) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        self.tx.run(sql, values)


LATER = Migration(
    2, "later", ("CREATE TABLE later (id TEXT)", "CREATE INDEX later_id ON later (id)")
)
"""A migration of a later version."""


def migrate_and_die(url: str, statements: int) -> None:
    """Migrate as a store does, but be killed on the way."""
    connection: Any
    if url.startswith("sqlite"):
        path = Path(url.removeprefix("sqlite:///"))
        path.touch()
        connection = SqliteDatabase(path).connect_writer()
    else:
        connection = PostgresConnection(
            psycopg.connect(url, autocommit=True), NullConnectionPool(url, open=False)
        )
    tx: Any = KilledAtStatement(connection, statements)
    connection.begin()
    apply_migrations(tx, [*load_migrations(connection.dialect.name), LATER])
    connection.commit()


# If nothing was written


def write_as_nobody(*, url: str, log: str, session: str | None) -> None:
    """Try to open and write a store without root's rights, and print the outcome."""
    # The interpreter may be in a folder that only root reads.
    importlib.import_module("importlib.readers")
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)

    async def write() -> None:
        store = open_store(url)
        try:
            await store.append(
                session or (await store.create_session(NewSession())).id,
                [_message("x")],
            )
        finally:
            await store.close()

    told = {"error": None, "text": ""}
    try:
        asyncio.run(write())
    except EverthreadError as error:
        told = {"error": type(error).__name__, "text": str(error)}
    Path(log).write_text(json.dumps(told))


def fill(*, url: str, log: str, grow: str | None = None, limit: int | None = None) -> None:
    """Write until the disk is full: on a small disk that can `grow`, or with a limit on the size of files."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    def make_room() -> None:
        if grow is not None:
            subprocess.run(["mount", "-o", "remount,size=64m", grow], check=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    async def write() -> dict[str, Any]:
        store = open_store(url)
        session = await store.create_session(NewSession())
        confirmed: list[str] = []
        errors: list[str] = []
        for number in range(2_000):
            texts = [f"{number}.{part} " + "x" * 2_000 for part in range(8)]
            results = await asyncio.gather(
                *(store.append(session.id, [_message(text)]) for text in texts),
                return_exceptions=True,
            )
            for text, result in zip(texts, results, strict=True):
                if isinstance(result, BaseException):
                    errors.append(type(result).__name__)
                else:
                    confirmed.append(text)
            if errors:
                break
        make_room()
        await store.append(session.id, [_message("there is room again")])
        stored = [str(message.body["content"]) for message in await store.history(session.id)]
        problems = (await store.check()).problems
        await store.close()
        return {
            "confirmed": confirmed,
            "errors": errors,
            "stored": stored,
            "problems": problems,
        }

    Path(log).write_text(json.dumps(asyncio.run(write())))


ROLES: dict[str, Any] = {
    "talk": talk,
    "migrate": migrate,
    "migrate_and_die": migrate_and_die,
    "write_as_nobody": write_as_nobody,
    "fill": fill,
}

if __name__ == "__main__":
    serve(sys.stdin)
