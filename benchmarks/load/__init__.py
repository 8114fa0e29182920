"""Send load to a proxy from processes that do not share its interpreter.

`requests.c` sends prepared requests and times the answers; `upstream.c` answers immediately. Both are compiled on first
use. On a machine without a compiler `python_load.py` takes their place, in a separate Python process.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.threads import ANSWER_TEXT
from benchmarks.peers.proxies import Server

HERE = Path(__file__).parent
MAX_RUN_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Answered:
    """One answered request; times in milliseconds."""

    connection: int
    status: int
    first_byte: float
    last_byte: float


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The answers of one run, in the order of the servers."""

    answers: Sequence[Sequence[Answered]]
    seconds: float


def describe_load() -> str:
    """Return the names of the programs that send and answer the requests on this machine."""
    return "C programs" if _compile("requests") else "Python processes of their own"


def send_requests(
    bodies: Mapping[int, Sequence[bytes]],
    servers: Sequence[Server],
    *,
    pause_ms: int = 0,
) -> LoadResult:
    """Send each connection's bodies in order, each to all servers in turn. Raise if an answer is not 200."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "requests"
        _write_requests(file, bodies)
        ports = [server.url.rpartition(":")[2] for server in servers]
        arguments = [str(file), str(len(bodies)), str(pause_ms), *ports]
        finished = subprocess.run(  # noqa: S603 - our own program
            [*_command("requests"), *arguments],
            capture_output=True,
            text=True,
            timeout=MAX_RUN_SECONDS,
            check=False,
        )
    if finished.returncode:
        raise RuntimeError(f"the load broke off: {finished.stderr.strip()}")
    return _read_result(finished.stdout, len(servers))


@contextmanager
def serve_at_once() -> Iterator[Server]:
    """Start an upstream that answers immediately."""
    command = [*_command("upstream"), ANSWER_TEXT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own program
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Server(f"http://127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()


def _write_requests(file: Path, bodies: Mapping[int, Sequence[bytes]]) -> None:
    with file.open("wb") as out:
        for connection, sent in bodies.items():
            for body in sent:
                out.write(b"%d %d\n" % (connection, len(body)))
                out.write(body)


def _read_result(printed: str, servers: int) -> LoadResult:
    *lines, last = printed.splitlines()
    answers: list[list[Answered]] = [[] for _ in range(servers)]
    for line in lines:
        connection, server, status, first, end = line.split()
        if status != "200":
            raise RuntimeError(f"a server answered with status {status}")
        answers[int(server)].append(
            Answered(
                int(connection),
                int(status),
                first_byte=float(first) / 1_000,
                last_byte=float(end) / 1_000,
            )
        )
    return LoadResult(answers, float(last.split()[1]))


def _command(name: str) -> list[str]:
    compiled = _compile(name)
    if compiled is not None:
        return [str(compiled)]
    return [sys.executable, str(HERE / "python_load.py"), name]


@functools.cache
def _compile(name: str) -> Path | None:
    """Return the compiled program; None if there is no C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    program = _build_folder() / name
    source = HERE / f"{name}.c"
    command = [compiler, "-O2", "-pthread", "-o", str(program), str(source)]
    subprocess.run(command, check=True)  # noqa: S603 - our own source
    return program


@functools.cache
def _build_folder() -> Path:
    """Return a folder that is removed when the process ends."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return Path(folder)
