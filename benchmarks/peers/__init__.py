"""Run other software for comparison, each in its own environment under `.venv-peers/`."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-peers"
MAX_INSTALL_SECONDS = 900
"""Time after which the package index counts as unreachable."""


class PeerAbsentError(Exception):
    """The peer cannot be installed or started here; the message says why."""


class Peer:
    """A peer's process, which reads and writes lines of JSON."""

    def __init__(self, name: str) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(  # noqa: S603 - our own script in our own environment
            [str(create_environment(name)), str(HERE / f"{name}_peer.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )

    def ask(
        self,
        line: dict[str, Any],
        answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> Any:
        """Return the peer's answer. `answer`: answers a question of the peer (a line with `ask`)."""
        while True:
            process = self._process
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps(line) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # the process has ended: its errors are read below
            heard = process.stdout.readline()
            if not heard:
                raise PeerAbsentError(self._last_words())
            found = json.loads(heard)
            if "ask" not in found or answer is None:
                return found
            line = answer(found)

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        return self._errors.read().strip().split("\n")[-1] or f"it ended with code {code}"


@functools.cache
def get_peer(name: str) -> Peer:
    """Return a peer that lives as long as this process, because it takes seconds to start."""
    return Peer(name)


SUMMARISERS = {
    "langchain": "LangChain",
    "headroom": "Headroom",
    "pydantic_harness": "Pydantic AI harness",
    "hermes": "Hermes",
}
"""Peers that make a history smaller, with their display names."""


@functools.cache
def find_absent_peers() -> dict[str, str]:
    """Return the peers that cannot be measured here, each with the reason."""
    absent = {}
    for name in SUMMARISERS:
        try:
            peer = Peer(name)
            peer.ask({"do": "trim", "most": 1, "keep": 1, "users": False, "messages": []})
            peer.close()
        except PeerAbsentError as error:
            absent[name] = str(error)
    return absent


def find_present_peers() -> frozenset[str]:
    return frozenset(SUMMARISERS) - find_absent_peers().keys()


def fetch_source(name: str) -> Path:
    """Download a peer's source, with suites and data that its wheel leaves out; return the folder."""
    wanted = (HERE / f"{name}.txt").read_text("utf-8").strip()
    folder = ENVIRONMENTS / f"{name}-source" / wanted.replace("==", "-")
    if not folder.is_dir():
        fetch = [
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--no-binary",
            name,
            "--dest",
            str(folder.parent),
        ]
        _run([str(create_environment(name)), *fetch, wanted])
        with tarfile.open(folder.parent / f"{folder.name}.tar.gz") as archive:
            archive.extractall(folder.parent, filter="data")
    return folder


def create_environment(name: str, requirements: Path | None = None, *besides: str) -> Path:
    """Return the Python of a peer's environment; create it on first use. `besides`: more arguments for pip."""
    folder = ENVIRONMENTS / name
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    listed = requirements or HERE / f"{name}.txt"
    wanted = listed.read_text("utf-8")
    ready = folder / "installed.txt"
    if ready.exists() and ready.read_text("utf-8") == wanted:
        return python
    try:
        venv.create(folder, with_pip=True, clear=True)
    except OSError as error:
        raise PeerAbsentError(str(error)) from error
    _run([str(python), "-m", "pip", "install", "--quiet", *besides, "-r", str(listed)])
    ready.write_text(wanted, "utf-8")
    return python


def _run(command: list[str]) -> None:
    try:
        subprocess.run(  # noqa: S603
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=MAX_INSTALL_SECONDS,
        )
    except subprocess.CalledProcessError as error:
        raise PeerAbsentError(error.stderr.strip().split("\n")[-1]) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerAbsentError(str(error)) from error
