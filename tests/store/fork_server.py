"""A server that forks processes to be killed. It is started once, because its imports take longer than a fork.

Commands come as lines of JSON on its standard input, answers go to its standard output. A child writes its requests and
their confirmations to a log, each line directly to the file, so that a kill loses none.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from everthread.store.postgres import PostgresDatabase
from everthread.store.sqlite import SqliteDatabase
from everthread.store.store import Store
from tests.store.migrating_process import migrate, migrate_and_die
from tests.store.refused_writes import fill, write_as_nobody
from tests.store.talking_process import talk

ROOT = Path(__file__).parents[2]
LOADED = (Store, PostgresDatabase, SqliteDatabase)
"""Imports that every child needs. They are made before forking, because `open_store` makes them late."""


@functools.cache
def _forking_process() -> subprocess.Popen[str]:
    """Start one process for all tests of a worker. It ends with its input."""
    command = [sys.executable, "-m", "tests.store.fork_server"]
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
                run_child(question["role"], question["arguments"])
        print(answer, flush=True)


def run_child(role: str, arguments: dict[str, Any]) -> None:
    """Run as the child; never return."""
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        TASKS[role](**arguments)
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


TASKS: dict[str, Any] = {
    "talk": talk,
    "migrate": migrate,
    "migrate_and_die": migrate_and_die,
    "write_as_nobody": write_as_nobody,
    "fill": fill,
}

if __name__ == "__main__":
    serve(sys.stdin)
