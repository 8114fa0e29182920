"""Memory across conversations: MEMORY.md (the agent's own notes) and USER.md (facts about the user).

An entry is a list item, `- …`, its further lines indented; other text in the files is not changed. The system prompt
shows the files in their state at the start of the session. Every change is atomic.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from everthread.agent import MEMORY_CHARS, USER_CHARS
from everthread.core.secrets.redaction import redact
from everthread.errors import InputError
from everthread.store.records import DEFAULT_TENANT

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module that one platform lacks

Groups = list[list[str]]
"""A file's lines, those of one entry together."""
MemoryKind = Literal["memory", "user"]
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
FILES: dict[MemoryKind, str] = {"memory": "MEMORY.md", "user": "USER.md"}
LIMITS: dict[MemoryKind, int] = {"memory": MEMORY_CHARS, "user": USER_CHARS}
LOCK = ".memory.lock"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def memory_folder(home: Path, tenant: str) -> Path:
    """Return the folder of a tenant's memory, always inside the home."""
    if tenant == DEFAULT_TENANT:
        return home
    name = (
        tenant
        if _PLAIN_NAME.fullmatch(tenant)
        else hashlib.sha256(tenant.encode()).hexdigest()[:32]
    )
    return home / "tenants" / name


@dataclass(frozen=True, slots=True)
class Change:
    """The entry that was stored or removed, and whether a secret was taken out of it."""

    entry: str
    redacted: bool = False


class MemoryFiles:
    """The two files of one tenant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = asyncio.Lock()

    def entries(self, shelf: MemoryKind) -> list[str]:
        """Return the entries of a file, without secrets that the user may have written into it."""
        return [
            redact(_entry_text(lines))
            for lines in _split_groups(self._read(shelf))
            if _is_entry(lines)
        ]

    def text(self, shelf: MemoryKind) -> str:
        """Return the file as the system prompt shows it: without secrets, and no longer than its limit."""
        content = redact(self._read(shelf)).strip()
        limit = LIMITS[shelf]
        if len(content) <= limit:
            return content
        return f"{content[:limit].rstrip()}\n[{FILES[shelf]} is longer than {limit:,} characters; the rest is left out]"

    async def add(self, shelf: MemoryKind, text: str) -> Change:
        """Store an entry, unless it is there already."""
        change = _clean_entry(text)

        def edit(groups: Groups) -> Groups:
            is_present = any(
                _is_entry(lines) and _entry_text(lines) == change.entry
                for lines in groups
            )
            return groups if is_present else [*groups, _entry_lines(change.entry)]

        await self._change(shelf, edit)
        return change

    async def replace(self, shelf: MemoryKind, old: str, text: str) -> Change:
        """Replace the entry that holds `old`, or has this number."""
        change = _clean_entry(text)
        await self._put_in_place(shelf, old, [_entry_lines(change.entry)])
        return change

    async def remove(self, shelf: MemoryKind, old: str) -> Change:
        """Remove the entry that holds `old`, or has this number."""
        return Change(await self._put_in_place(shelf, old, []))

    async def settle(self) -> None:
        """Wait for running changes."""
        async with self._writing:
            return

    # Inside

    async def _put_in_place(self, shelf: MemoryKind, old: str, new: Groups) -> str:
        """Replace an entry by other lines; return its text."""
        entries: list[str] = []

        def edit(groups: Groups) -> Groups:
            index = _find_entry(shelf, groups, old)
            entries.append(_entry_text(groups[index]))
            return [*groups[:index], *new, *groups[index + 1 :]]

        await self._change(shelf, edit)
        return entries[-1]

    def _read(self, shelf: MemoryKind) -> str:
        try:
            return (self.folder / FILES[shelf]).read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise InputError(
                f"{self.folder / FILES[shelf]} cannot be read: {error.strerror}"
            ) from error

    async def _change(
        self, shelf: MemoryKind, edit: Callable[[Groups], Groups]
    ) -> None:
        async with self._writing:
            try:
                await asyncio.to_thread(self._edit_file, shelf, edit)
            except OSError as error:
                raise InputError(
                    f"{self.folder / FILES[shelf]} cannot be written: {error.strerror}"
                ) from error

    def _edit_file(self, shelf: MemoryKind, edit: Callable[[Groups], Groups]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with _lock_file(self.folder / LOCK):
            before = list(_split_groups(self._read(shelf)))
            after = edit(before)
            if after == before:
                return
            size = len(_join_groups(after))
            limit = LIMITS[shelf]
            if size > limit and size > len(_join_groups(before)):
                raise InputError(
                    f"{FILES[shelf]} would have {size:,} characters, and {limit:,} are the limit; "
                    "replace or remove an entry first, or say it shorter"
                )
            _write_whole(
                self.folder / FILES[shelf], f"{_join_groups(after)}\n" if after else ""
            )


def _find_entry(shelf: MemoryKind, groups: Groups, old: str) -> int:
    entries = [index for index, lines in enumerate(groups) if _is_entry(lines)]
    query = old.strip()
    if query.isdecimal() and 1 <= int(query) <= len(entries):
        return entries[int(query) - 1]
    matches = [
        index
        for index in entries
        if query and query.casefold() in _entry_text(groups[index]).casefold()
    ]
    exact = [index for index in matches if _entry_text(groups[index]) == query]
    if len(exact or matches) == 1:
        return (exact or matches)[0]
    if matches:
        raise InputError(
            f"{len(matches)} entries of {FILES[shelf]} hold {query!r}; give more of the one you mean"
        )
    raise InputError(
        f"no entry of {FILES[shelf]} holds {query!r}; it has {len(entries)} entries"
    )


def _join_groups(groups: Groups) -> str:
    return "\n".join(line for lines in groups for line in lines)


@contextlib.contextmanager
def _lock_file(lock: Path) -> Iterator[None]:
    """Make other processes that change the memory wait, if the system has file locks."""
    if fcntl is None:
        yield
        return
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _clean_entry(text: str) -> Change:
    entry = "\n".join(
        line.strip() for line in redact(text).strip().splitlines() if line.strip()
    )
    entry = (
        entry.removeprefix("-").strip()
        if entry == "-" or entry.startswith("- ")
        else entry
    )
    if not entry:
        raise InputError("an empty entry cannot be stored; say what to remember")
    return Change(entry, redact(text) != text)


def _split_groups(text: str) -> Iterator[list[str]]:
    """Split a file into groups of lines: those of one entry together, every other line by itself."""
    group: list[str] = []
    for line in text.splitlines():
        if group and _is_entry(group) and line.startswith("  ") and line.strip():
            group.append(line)
            continue
        if group:
            yield group
        group = [line]
    if group:
        yield group


def _is_entry(lines: list[str]) -> bool:
    return lines[0].startswith("- ")


def _entry_text(lines: list[str]) -> str:
    return "\n".join(
        [lines[0].removeprefix("- "), *(line.strip() for line in lines[1:])]
    )


def _entry_lines(entry: str) -> list[str]:
    first, *rest = entry.split("\n")
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _write_whole(path: Path, text: str) -> None:
    """Replace a file atomically: a crash leaves the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
