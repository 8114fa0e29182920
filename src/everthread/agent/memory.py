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

from everthread.agent import MAX_MEMORY_CHARS, MAX_USER_CHARS
from everthread.core.secrets.redaction import redact
from everthread.errors import InputError
from everthread.store.records import DEFAULT_TENANT

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # a module that one platform lacks

LineGroups = list[list[str]]
"""A file's lines, grouped by entry."""
MemoryKind = Literal["memory", "user"]
MEMORY_KINDS: tuple[MemoryKind, ...] = get_args(MemoryKind)
FILE_NAMES: dict[MemoryKind, str] = {"memory": "MEMORY.md", "user": "USER.md"}
CHAR_LIMITS: dict[MemoryKind, int] = {
    "memory": MAX_MEMORY_CHARS,
    "user": MAX_USER_CHARS,
}
LOCK_FILE = ".memory.lock"
_SAFE_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


def get_tenant_memory_folder(home: Path, tenant: str) -> Path:
    """Return the folder of a tenant's memory, always inside the home."""
    if tenant == DEFAULT_TENANT:
        return home
    name = (
        tenant
        if _SAFE_NAME_PATTERN.fullmatch(tenant)
        else hashlib.sha256(tenant.encode()).hexdigest()[:32]
    )
    return home / "tenants" / name


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """The entry that was stored or removed, and whether a secret was taken out of it."""

    entry: str
    was_redacted: bool = False


class MemoryFiles:
    """The two files of one tenant."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._write_lock = asyncio.Lock()

    def read_entries(self, kind: MemoryKind) -> list[str]:
        """Return the entries of a file, without secrets that the user may have written into it."""
        return [
            redact(_parse_entry(lines))
            for lines in _split_groups(self._read(kind))
            if _is_entry(lines)
        ]

    def read_text(self, kind: MemoryKind) -> str:
        """Return the file's text for the system prompt, without secrets and cut to its limit."""
        content = redact(self._read(kind)).strip()
        limit = CHAR_LIMITS[kind]
        if len(content) <= limit:
            return content
        note = f"[{FILE_NAMES[kind]} is longer than {limit:,} characters; the rest is left out]"
        return f"{content[:limit].rstrip()}\n{note}"

    async def add(self, kind: MemoryKind, text: str) -> MemoryChange:
        """Store an entry, unless it is there already."""
        change = _clean_entry(text)

        def edit(groups: LineGroups) -> LineGroups:
            is_present = any(
                _is_entry(lines) and _parse_entry(lines) == change.entry for lines in groups
            )
            return groups if is_present else [*groups, _format_entry(change.entry)]

        await self._change_file(kind, edit)
        return change

    async def replace(self, kind: MemoryKind, old_text: str, text: str) -> MemoryChange:
        """Replace the entry that contains `old_text`, or has this number."""
        change = _clean_entry(text)
        await self._replace_entry(kind, old_text, [_format_entry(change.entry)])
        return change

    async def remove(self, kind: MemoryKind, old_text: str) -> MemoryChange:
        """Remove the entry that contains `old_text`, or has this number."""
        return MemoryChange(await self._replace_entry(kind, old_text, []))

    async def wait_for_changes(self) -> None:
        """Wait for running changes."""
        async with self._write_lock:
            return

    async def _replace_entry(self, kind: MemoryKind, old_text: str, new_groups: LineGroups) -> str:
        """Replace an entry with other lines; return its old text."""
        entries: list[str] = []

        def edit(groups: LineGroups) -> LineGroups:
            index = _find_entry(kind, groups, old_text)
            entries.append(_parse_entry(groups[index]))
            return [*groups[:index], *new_groups, *groups[index + 1 :]]

        await self._change_file(kind, edit)
        return entries[-1]

    def _read(self, kind: MemoryKind) -> str:
        try:
            return (self.folder / FILE_NAMES[kind]).read_text("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise InputError(
                f"{self.folder / FILE_NAMES[kind]} cannot be read: {error.strerror}"
            ) from error

    async def _change_file(
        self, kind: MemoryKind, edit: Callable[[LineGroups], LineGroups]
    ) -> None:
        async with self._write_lock:
            try:
                await asyncio.to_thread(self._edit_file, kind, edit)
            except OSError as error:
                raise InputError(
                    f"{self.folder / FILE_NAMES[kind]} cannot be written: {error.strerror}"
                ) from error

    def _edit_file(self, kind: MemoryKind, edit: Callable[[LineGroups], LineGroups]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with _lock_file(self.folder / LOCK_FILE):
            old_groups = list(_split_groups(self._read(kind)))
            new_groups = edit(old_groups)
            if new_groups == old_groups:
                return
            size = len(_join_groups(new_groups))
            limit = CHAR_LIMITS[kind]
            if size > limit and size > len(_join_groups(old_groups)):
                raise InputError(
                    f"{FILE_NAMES[kind]} would have {size:,} characters, and {limit:,} are the limit; "
                    "replace or remove an entry first, or say it shorter"
                )
            _write_atomically(
                self.folder / FILE_NAMES[kind],
                f"{_join_groups(new_groups)}\n" if new_groups else "",
            )


def _find_entry(kind: MemoryKind, groups: LineGroups, old: str) -> int:
    entries = [index for index, lines in enumerate(groups) if _is_entry(lines)]
    query = old.strip()
    if query.isdecimal() and 1 <= int(query) <= len(entries):
        return entries[int(query) - 1]
    matches = [
        index
        for index in entries
        if query and query.casefold() in _parse_entry(groups[index]).casefold()
    ]
    exact_matches = [index for index in matches if _parse_entry(groups[index]) == query]
    if len(exact_matches or matches) == 1:
        return (exact_matches or matches)[0]
    if matches:
        raise InputError(
            f"{len(matches)} entries of {FILE_NAMES[kind]} hold {query!r}; give more of the one you mean"
        )
    raise InputError(
        f"no entry of {FILE_NAMES[kind]} holds {query!r}; it has {len(entries)} entries"
    )


def _join_groups(groups: LineGroups) -> str:
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


def _clean_entry(text: str) -> MemoryChange:
    entry = "\n".join(line.strip() for line in redact(text).strip().splitlines() if line.strip())
    entry = entry.removeprefix("-").strip() if entry == "-" or entry.startswith("- ") else entry
    if not entry:
        raise InputError("an empty entry cannot be stored; say what to remember")
    return MemoryChange(entry, redact(text) != text)


def _split_groups(text: str) -> Iterator[list[str]]:
    """Yield groups of lines: the lines of an entry together, every other line alone."""
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


def _parse_entry(lines: list[str]) -> str:
    return "\n".join([lines[0].removeprefix("- "), *(line.strip() for line in lines[1:])])


def _format_entry(entry: str) -> list[str]:
    first_line, *other_lines = entry.split("\n")
    return [f"- {first_line}", *(f"  {line}" for line in other_lines)]


def _write_atomically(path: Path, text: str) -> None:
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
