"""The one folder in which file tools work, and how its files are opened so that nothing leads out of it.

A path is resolved first: what it really names must be inside. Then every component of the resolved path is opened in
the one before it without following links, so that a link put there meanwhile is refused, not followed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import stat
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from everthread.errors import InputError

MAX_PATH_CHARS = 4_096
"""Characters of a path."""
WRITING = threading.Lock()
"""Held from reading a file to replacing it: of two changes at once neither is lost."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Workspace:
    """A folder that its file tools cannot leave."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))

    def resolve(self, name: str) -> Path:
        """What a path really names, links followed. `InputError` where that is outside, or is no path."""
        if not name.strip():
            raise InputError('the path is empty; give one inside the workspace, "." for all of it')
        if "\0" in name or len(name) > MAX_PATH_CHARS:
            raise InputError(
                f"{quote_name(name)} is no path: it has a NUL in it, or more than {MAX_PATH_CHARS:,} characters"
            )
        plain = os.path.expanduser(name) if name == "~" or name.startswith("~/") else name  # noqa: PTH111 - Path would drop what a name may hold
        try:
            os.fsencode(plain)
            real = Path(os.path.realpath(self.root / plain))
        except (UnicodeEncodeError, RecursionError) as error:
            raise InputError(f"{quote_name(name)} is no path that can be followed: {type(error).__name__}") from error
        if not real.is_relative_to(self.root):
            raise InputError(
                f"{quote_name(name)} is outside the workspace ({quote_name(str(self.root))}); "
                "file tools work inside it only"
            )
        return real

    def relative(self, path: Path) -> str:
        """A resolved path as people and rules write it: relative to the workspace."""
        return path.relative_to(self.root).as_posix()

    def status(self, path: Path) -> os.stat_result | None:
        """The status of a resolved path; None where nothing is there."""
        try:
            if path == self.root:
                return os.stat(self.root)  # noqa: PTH116 - the same call as below
            with self._open_folder(path.parent) as folder:
                return os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextlib.contextmanager
    def open_file(self, path: Path) -> Iterator[BinaryIO]:
        """Open an ordinary file at a resolved path for reading. A pipe or a device is refused."""
        if path == self.root:
            raise InputError("the workspace itself is a folder; name a file in it")
        with self._open_folder(path.parent) as folder:
            number = os.open(path.name, _READ, dir_fd=folder)
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            os.close(number)
            what = "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
            raise InputError(f"{quote_name(self.relative(path))} is {what}")
        with os.fdopen(number, "rb") as file:
            yield file

    def entries(self, path: Path) -> list[str]:
        """The names in a folder, sorted; those of folders end in `/`."""
        with self._open_folder(path) as folder, os.scandir(folder) as scan:
            return sorted(f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in scan)

    def replace(self, path: Path, data: bytes) -> None:
        """Write a file at a resolved path, whole or not at all. Its folders are made, its mode is kept."""
        if path == self.root:
            raise InputError("the workspace itself is a folder; name a file in it")
        with self._open_folder(path.parent, create=True) as folder:
            before = _status(path.name, folder)
            if before is not None:
                self._check_replaceable(path, before)
            temporary = f".{secrets.token_hex(8)}.tmp"
            number = os.open(temporary, _NEW, 0o666, dir_fd=folder)
            try:
                with os.fdopen(number, "wb") as file:
                    if before is not None:
                        os.fchmod(number, before.st_mode & 0o777)
                    file.write(data)
                    file.flush()
                    os.fsync(number)
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def check_writable(self, path: Path, home: Path) -> None:
        """Refuse Everthread's own files, such as its approval rules, where the workspace contains them."""
        real = Path(os.path.realpath(home))
        if real != self.root and real.is_relative_to(self.root) and path.is_relative_to(real):
            name = quote_name(self.relative(path))
            raise InputError(f"{name} belongs to Everthread itself; file tools do not write there")

    def _check_replaceable(self, path: Path, status: os.stat_result) -> None:
        name = quote_name(self.relative(path))
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{name} is a folder; name a file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{name} is no ordinary file; it was not touched")
        if not status.st_mode & 0o222:
            raise InputError(f"{name} is read-only; change its mode first to write it")

    @contextlib.contextmanager
    def _open_folder(self, path: Path, *, create: bool = False) -> Iterator[int]:
        number = os.open(self.root, _FOLDER)
        try:
            for part in path.relative_to(self.root).parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=number)
                inner = os.open(part, _FOLDER, dir_fd=number)
                os.close(number)
                number = inner
            yield number
        finally:
            os.close(number)


@contextlib.contextmanager
def explain_os_errors(name: str) -> Iterator[None]:
    """Turn an `OSError` about a path into an `InputError` with a sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{quote_name(name)} cannot be used: {error.strerror or error}") from error


def quote_name(text: str, limit: int = 200, *, keep: str = "") -> str:
    """A name or path in one printable line."""
    safe = "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text[:limit]
    )
    return f"{safe}…" if len(text) > limit else safe


def _status(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


@functools.lru_cache(1_024)
def path_glob(pattern: str) -> re.Pattern[str]:
    """Compile a glob for a whole path. Never raises: what is not a pattern is taken literally."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        expression, position = _translate_piece(pattern, position)
        parts.append(expression)
    return re.compile("".join(parts), re.DOTALL)


def _translate_piece(pattern: str, position: int) -> tuple[str, int]:
    """The expression for the piece at a position, and the position of the next."""
    begins = position == 0 or pattern[position - 1] == "/"
    if begins and pattern.startswith("**/", position):
        return r"(?:[^/]+/)*", position + 3
    if begins and pattern[position:] == "**":
        return r".+", position + 2
    char = pattern[position]
    if char == "*":
        while pattern.startswith("*", position + 1):
            position += 1
        return r"[^/]*", position + 1
    if char == "?":
        return r"[^/]", position + 1
    if char == "[":
        return _translate_class(pattern, position)
    if char == "\\" and position + 1 < len(pattern):
        return re.escape(pattern[position + 1]), position + 2
    return re.escape(char), position + 1


def _translate_class(pattern: str, position: int) -> tuple[str, int]:
    end = pattern.find("]", position + 2 + pattern.startswith(("!", "^"), position + 1))
    if end < 0:
        return r"\[", position + 1
    inside = pattern[position + 1 : end]
    negated = inside[:1] in ("!", "^")
    ranges = "".join(f"\\{char}" if char in "\\[]^&~|" else char for char in inside[negated:])
    expression = f"(?!/)[{'^' if negated else ''}{ranges}]"
    try:
        with warnings.catch_warnings(action="error"):
            re.compile(expression)
    except (re.error, FutureWarning):
        return r"\[", position + 1
    return expression, end + 1
