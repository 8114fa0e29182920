"""The folder in which file tools work; its files are opened so that no link leads out of it.

A path is resolved first: its real target must be inside. Then every component of the resolved path is opened in the one
before it without following links, so that a link put there meanwhile is refused, not followed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import threading
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO

from everthread.errors import InputError

MAX_PATH_CHARS = 4_096
"""Maximum characters of a path."""
WRITE_LOCK = threading.Lock()
"""Held from reading a file to replacing it, so that concurrent changes are not lost."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Workspace:
    """A folder that file tools cannot leave."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))

    def resolve(self, name: str) -> Path:
        """Return the real path, links followed. Raise `InputError` if it is outside, or is not a path."""
        if not name.strip():
            raise InputError('the path is empty; give one inside the workspace, "." for all of it')
        if "\0" in name or len(name) > MAX_PATH_CHARS:
            raise InputError(
                f"{quote_name(name)} is no path: it has a NUL in it, or more than {MAX_PATH_CHARS:,} characters"
            )
        expanded_name = (
            os.path.expanduser(name) if name == "~" or name.startswith("~/") else name  # noqa: PTH111
        )
        try:
            os.fsencode(expanded_name)
            real_path = Path(os.path.realpath(self.root / expanded_name))
        except (UnicodeEncodeError, RecursionError) as error:
            raise InputError(
                f"{quote_name(name)} is no path that can be followed: {type(error).__name__}"
            ) from error
        if not real_path.is_relative_to(self.root):
            raise InputError(
                f"{quote_name(name)} is outside the workspace ({quote_name(str(self.root))}); "
                "file tools work inside it only"
            )
        return real_path

    def make_relative_name(self, path: Path) -> str:
        """Return a resolved path relative to the workspace."""
        return path.relative_to(self.root).as_posix()

    def find_status(self, path: Path) -> os.stat_result | None:
        """Return the status of a resolved path, or None if nothing is there."""
        try:
            if path == self.root:
                return os.stat(self.root)  # noqa: PTH116 - the same call as below
            with self.open_folder(path.parent) as folder:
                return os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextlib.contextmanager
    def open_file(self, path: Path) -> Iterator[BinaryIO]:
        """Open an ordinary file at a resolved path for reading. A pipe or a device is refused."""
        if path == self.root:
            raise InputError("the workspace itself is a folder; name a file in it")
        with self.open_folder(path.parent) as folder:
            descriptor = os.open(path.name, _READ_FLAGS, dir_fd=folder)
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            os.close(descriptor)
            description = "a folder" if stat.S_ISDIR(mode) else "no ordinary file"
            raise InputError(f"{quote_name(self.make_relative_name(path))} is {description}")
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def list_entries(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted. Names of folders end in `/`."""
        with self.open_folder(path) as folder, os.scandir(folder) as scan:
            return sorted(
                f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                for entry in scan
            )

    def replace(self, path: Path, data: bytes) -> None:
        """Write a file at a resolved path atomically. Create its folders and keep its mode."""
        if path == self.root:
            raise InputError("the workspace itself is a folder; name a file in it")
        with self.open_folder(path.parent, create=True) as folder:
            old_status = _read_status(path.name, folder)
            if old_status is not None:
                self._check_replaceable(path, old_status)
            temporary = f".{secrets.token_hex(8)}.tmp"
            descriptor = os.open(temporary, _CREATE_FLAGS, 0o666, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    if old_status is not None:
                        os.fchmod(descriptor, old_status.st_mode & 0o777)
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise

    def check_writable(self, path: Path, home: Path) -> None:
        """Refuse Everthread's own files, such as its approval rules, if the workspace contains them."""
        real_path = Path(os.path.realpath(home))
        if (
            real_path != self.root
            and real_path.is_relative_to(self.root)
            and path.is_relative_to(real_path)
        ):
            name = quote_name(self.make_relative_name(path))
            raise InputError(f"{name} belongs to Everthread itself; file tools do not write there")

    def _check_replaceable(self, path: Path, status: os.stat_result) -> None:
        name = quote_name(self.make_relative_name(path))
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"{name} is a folder; name a file")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{name} is no ordinary file; it was not touched")
        if not status.st_mode & 0o222:
            raise InputError(f"{name} is read-only; change its mode first to write it")

    @contextlib.contextmanager
    def open_folder(self, path: Path, *, create: bool = False) -> Iterator[int]:
        """Open a folder at a resolved path; `create` makes it, and those above it."""
        descriptor = os.open(self.root, _FOLDER_FLAGS)
        try:
            for part in path.relative_to(self.root).parts:
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=descriptor)
                child = os.open(part, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = child
            yield descriptor
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def explain_os_errors(name: str) -> Iterator[None]:
    """Turn an `OSError` about a path into an `InputError` with a sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{quote_name(name)} cannot be used: {error.strerror or error}") from error


def quote_name(text: str, limit: int = 200, *, kept_characters: str = "") -> str:
    """Return a name or path as one printable line."""

    def make_printable(char: str) -> str:
        if char.isprintable() or char in kept_characters:
            return char
        return char.encode("unicode_escape").decode()

    printable = "".join(map(make_printable, text[:limit]))
    return f"{printable}…" if len(text) > limit else printable


def _read_status(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def match_path(pattern: str, path: str) -> bool:
    """Match a whole path: `*`, `?` and `[…]` stay within one part of it, `**` is any number of parts, `\\` escapes.

    Other characters are matched literally.
    """
    pattern_parts = re.sub(r"\\(.)", r"[\1]", pattern).replace("[^", "[!").split("/")
    parts = path.split("/")
    matched_lengths = {0}
    """How many leading parts of the path the pattern read so far can match."""
    for position, pattern_part in enumerate(pattern_parts, 1):
        if pattern_part == "**":
            # At the end it is a file, not the folder itself.
            minimum = min(matched_lengths) + (position == len(pattern_parts))
            matched_lengths = set(range(minimum, len(parts) + 1))
        else:
            matched_lengths = {
                count + 1
                for count in matched_lengths
                if count < len(parts) and fnmatchcase(parts[count], pattern_part)
            }
        if not matched_lengths:
            return False
    return len(parts) in matched_lengths
