"""What outlives every conversation: MEMORY.md (what the agent learnt) and USER.md (what it knows of the user).

An entry is a list item, `- …`, its further lines indented; whatever else a person writes into the files stays where it
is. The files stand in the system prompt as they are when a session begins. Every change is written at once, whole or
not at all.
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
from everthread.core.redaction import redact
from everthread.errors import InputError
from everthread.store.models import DEFAULT_TENANT

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module that one platform lacks

Groups = list[list[str]]
"""A file's lines, those of one entry together."""
Shelf = Literal["memory", "user"]
SHELVES: tuple[Shelf, ...] = get_args(Shelf)
FILES: dict[Shelf, str] = {"memory": "MEMORY.md", "user": "USER.md"}
LIMITS: dict[Shelf, int] = {"memory": MEMORY_CHARS, "user": USER_CHARS}
LOCK = ".memory.lock"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def memory_folder(home: Path, tenant: str) -> Path:
    """Where a tenant's memory is. Whatever a tenant is called, it stays inside the home."""
    if tenant == DEFAULT_TENANT:
        return home
    name = tenant if _PLAIN_NAME.fullmatch(tenant) else hashlib.sha256(tenant.encode()).hexdigest()[:32]
    return home / "tenants" / name


@dataclass(frozen=True, slots=True)
class Change:
    """What a change did: the entry as it is kept, and whether a secret was taken out of it."""

    entry: str
    redacted: bool = False


class MemoryFiles:
    """The two files of one tenant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writing = asyncio.Lock()

    def entries(self, shelf: Shelf) -> list[str]:
        """What is kept, without secrets that a person may have written into the file."""
        return [redact(_said(lines)) for lines in _groups(self._read(shelf)) if _is_entry(lines)]

    def text(self, shelf: Shelf) -> str:
        """The file as the system prompt shows it: without secrets, and no longer than its limit."""
        whole, limit = redact(self._read(shelf)).strip(), LIMITS[shelf]
        if len(whole) <= limit:
            return whole
        return f"{whole[:limit].rstrip()}\n[{FILES[shelf]} is longer than {limit:,} characters; the rest is left out]"

    async def add(self, shelf: Shelf, text: str) -> Change:
        """Keep an entry; one that is there already is not kept twice."""
        entry, redacted = _clean(text)

        def added(groups: Groups) -> Groups:
            there = any(_is_entry(lines) and _said(lines) == entry for lines in groups)
            return groups if there else [*groups, _lines(entry)]

        await self._change(shelf, added)
        return Change(entry, redacted)

    async def replace(self, shelf: Shelf, old: str, text: str) -> Change:
        """Put another entry in place of the one that holds `old`, or has this number."""
        entry, redacted = _clean(text)

        def replaced(groups: Groups) -> Groups:
            place = _place(shelf, groups, old)
            return [*groups[:place], _lines(entry), *groups[place + 1 :]]

        await self._change(shelf, replaced)
        return Change(entry, redacted)

    async def remove(self, shelf: Shelf, old: str) -> Change:
        """Take out the entry that holds `old`, or has this number."""
        gone: list[str] = []

        def removed(groups: Groups) -> Groups:
            place = _place(shelf, groups, old)
            gone.append(_said(groups[place]))
            return [*groups[:place], *groups[place + 1 :]]

        await self._change(shelf, removed)
        return Change(gone[-1])

    async def settle(self) -> None:
        """Wait for changes under way."""
        async with self._writing:
            return

    # Inside

    def _read(self, shelf: Shelf) -> str:
        try:
            return (self.folder / FILES[shelf]).read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise InputError(f"{self.folder / FILES[shelf]} cannot be read: {error.strerror}") from error

    async def _change(self, shelf: Shelf, edit: Callable[[Groups], Groups]) -> None:
        async with self._writing:
            try:
                await asyncio.to_thread(self._changed, shelf, edit)
            except OSError as error:
                raise InputError(f"{self.folder / FILES[shelf]} cannot be written: {error.strerror}") from error

    def _changed(self, shelf: Shelf, edit: Callable[[Groups], Groups]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with _alone(self.folder / LOCK):
            before = list(_groups(self._read(shelf)))
            after = edit(before)
            if after == before:
                return
            size, limit = len(_text(after)), LIMITS[shelf]
            if size > limit and size > len(_text(before)):
                raise InputError(
                    f"{FILES[shelf]} would have {size:,} characters, and {limit:,} are the limit; "
                    "replace or remove an entry first, or say it shorter"
                )
            _write_whole(self.folder / FILES[shelf], f"{_text(after)}\n" if after else "")


def _place(shelf: Shelf, groups: Groups, old: str) -> int:
    entries = [place for place, lines in enumerate(groups) if _is_entry(lines)]
    wanted = old.strip()
    if wanted.isdecimal() and 1 <= int(wanted) <= len(entries):
        return entries[int(wanted) - 1]
    found = [place for place in entries if wanted and wanted.casefold() in _said(groups[place]).casefold()]
    exact = [place for place in found if _said(groups[place]) == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if found:
        raise InputError(f"{len(found)} entries of {FILES[shelf]} hold {wanted!r}; give more of the one you mean")
    raise InputError(f"no entry of {FILES[shelf]} holds {wanted!r}; it has {len(entries)} entries")


def _text(groups: Groups) -> str:
    return "\n".join(line for lines in groups for line in lines)


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Other processes that change the memory wait meanwhile, where the system has file locks."""
    if fcntl is None:
        yield
        return
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def _clean(text: str) -> tuple[str, bool]:
    entry = "\n".join(line.strip() for line in redact(text).strip().splitlines() if line.strip())
    entry = entry.removeprefix("-").strip() if entry == "-" or entry.startswith("- ") else entry
    if not entry:
        raise InputError("an empty entry cannot be kept; say what to remember")
    return entry, redact(text) != text


def _groups(text: str) -> Iterator[list[str]]:
    """The file's lines, those of one entry together, every other line by itself."""
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


def _said(lines: list[str]) -> str:
    return "\n".join([lines[0].removeprefix("- "), *(line.strip() for line in lines[1:])])


def _lines(entry: str) -> list[str]:
    first, *rest = entry.split("\n")
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _write_whole(path: Path, text: str) -> None:
    """The new file stands in the old one's place at once; a crash leaves one or the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    fresh = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        raise
