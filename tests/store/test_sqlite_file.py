"""The SQLite file: private, never damaged further, with clear errors about damage."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from everthread.config import Config
from everthread.errors import (
    NoStoreError,
    StoreDamagedError,
    StoreError,
    StoreReadOnlyError,
)
from everthread.factory import open_store, store_url
from tests.store.conftest import close_sound, open_at
from tests.store.fork_server import ForkServer
from tests.store.messages import (
    new_thread,
    new_user_message,
    numbered_messages,
    numbered_texts,
    numbered_thread,
    read_history,
    texts_of,
    user_messages,
)
from tests.store.searching import search


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_files_are_private_to_the_user(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "new" / "home" / "store.db"
        store = open_store(path)
        await new_thread(store, "private")
        await store.backup(str(tmp_path / "copy.db"))
        files = {file.name: mode(file) for file in path.parent.iterdir()}
        assert files == {
            "store.db": 0o600,
            "store.db-wal": 0o600,
            "store.db-shm": 0o600,
        }
        assert mode(path.parent) == 0o700
        assert mode(tmp_path / "copy.db") == 0o600
        await store.close()
    finally:
        os.umask(before)


async def test_a_backup_is_a_whole_store(tmp_path: Path) -> None:
    store = open_at(f"sqlite:///{tmp_path}/a.db")
    thread = await numbered_thread(store, 500)
    writing = asyncio.ensure_future(store.append(thread, numbered_messages(501, 900)))
    await store.backup(str(tmp_path / "copy.db"))
    await writing
    copy = open_at(f"sqlite:///{tmp_path}/copy.db")
    copied_texts = texts_of(await copy.load_history(thread))
    assert copied_texts[:500] == numbered_texts(1, 500)
    assert len(copied_texts) in (500, 900)
    health = await copy.check()
    assert health.problems == ()
    for target in (tmp_path / "copy.db", tmp_path / "no" / "folder.db"):
        with pytest.raises(StoreError, match=str(target)):
            await store.backup(str(target))
    await copy.close()
    await store.close()


async def test_vacuum_frees_space(tmp_path: Path) -> None:
    store = open_at(f"sqlite:///{tmp_path}/a.db")
    keep = await new_thread(store, "kept words")
    gone = await new_thread(store, *(new_user_message("padding " * 50) for _ in range(500)))
    await search(store, "padding")
    await store.delete_thread(gone)
    before = (await store.check()).size
    await store.vacuum()
    health = await store.check()
    assert health.size < before / 2
    assert await read_history(store, keep) == "kept words"
    hits = await search(store, "kept")
    assert len(hits) == 1
    await store.close()


# Damage


@pytest.mark.parametrize(
    "content",
    [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4080, b"x"],
)
def test_garbage_is_reported_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"store\.db.*damaged"):
        open_store(path)
    assert path.read_bytes() == content


async def damage(tmp_path: Path) -> tuple[Path, str]:
    """Create a store with a thread and close it, so that all of it is in one file."""
    path = tmp_path / "store.db"
    store = open_store(path)
    thread = await new_thread(
        store, *(new_user_message(WORDS * 8) for _ in range(DAMAGED_MESSAGES))
    )
    await search(store, "words")
    await store.close()
    return path, thread


DAMAGED_MESSAGES = 800
WORDS = "some words that fill a page "
"""Words of a message that is short enough to be stored uncompressed."""


def pages_with_words(whole: bytes | bytearray) -> list[int]:
    """Return the offsets of the pages that hold messages."""
    return [at for at in range(0, len(whole), 4096) if WORDS.encode() in whole[at : at + 4096]]


async def everything(path: Path, session: str) -> list[str]:
    """Read everything; return the problems that are reported without an error."""
    store = open_store(path)
    try:
        await store.load_history(session)
        await search(store, "words")
        return list((await store.check()).problems)
    finally:
        await store.close()


async def test_torn_pages_are_reported_and_left_alone(tmp_path: Path) -> None:
    path, session = await damage(tmp_path)
    whole = path.read_bytes()
    for page in pages_with_words(whole)[::7]:
        torn = whole[: page + 1000] + os.urandom(3096) + whole[page + 4096 :]
        path.write_bytes(torn)
        try:
            problems = await everything(path, session)
        except StoreDamagedError as error:
            problems = [str(error)]
        assert problems
        assert path.read_bytes() == torn


async def test_the_intact_part_of_a_damaged_store_is_exported(tmp_path: Path) -> None:
    path, session = await damage(tmp_path)
    broken = bytearray(path.read_bytes())
    pages = pages_with_words(broken)
    for page in pages[10:20]:
        broken[page : page + 8] = b"\xff" * 8
    path.write_bytes(broken)
    store = open_store(path)
    with pytest.raises(StoreDamagedError):
        await store.export(session)
    lines, lost = await store.salvage(session)
    await store.close()
    assert lost
    kept = [line for line in lines if line["type"] == "message"]
    assert len(kept) + sum("message " in words for words in lost) == DAMAGED_MESSAGES
    assert len(kept) > DAMAGED_MESSAGES / 2
    again = open_store(tmp_path / "again.db")
    assert await again.import_lines(lines) == [session]
    history = await again.load_history(session)
    assert [message.body for message in history] == [line["body"] for line in kept]
    health = await again.check()
    assert health.problems == ()
    await again.close()


async def test_check_finds_a_changed_word(tmp_path: Path) -> None:
    """The database does not notice, but the checksums do."""
    path, session = await damage(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"fill a page", b"kill a page"))
    assert [
        problem
        for problem in await everything(path, session)
        if "has changed since it was stored" in problem
    ]


async def test_a_file_cut_short_is_reported_and_left_alone(tmp_path: Path) -> None:
    path, session = await damage(tmp_path)
    cut = path.read_bytes()[: 4096 * 20]
    path.write_bytes(cut)
    with pytest.raises(StoreDamagedError):
        await everything(path, session)
    assert path.read_bytes() == cut


async def test_a_damaged_store_is_not_written_to(tmp_path: Path) -> None:
    path, session = await damage(tmp_path)
    broken = bytearray(path.read_bytes())
    for page in pages_with_words(broken):
        broken[page : page + 8] = b"\xff" * 8
    path.write_bytes(broken)
    store = open_store(path)
    results = await asyncio.gather(
        *(store.append(session, user_messages("x")) for _ in range(3)),
        return_exceptions=True,
    )
    assert all(isinstance(result, StoreDamagedError) for result in results)
    await store.close()


async def test_a_file_that_is_gone_does_not_come_back_empty(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db")
    (tmp_path / "store.db").unlink()
    with pytest.raises(StoreReadOnlyError):
        await store.list_sessions()
    with pytest.raises(StoreReadOnlyError):
        await new_thread(store)
    assert not (tmp_path / "store.db").exists()
    await store.close()


# Places that cannot be written


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Create a folder that every user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="etro-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def outcome(log: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(log.read_text())
    return found


def test_reports_a_folder_that_cannot_be_written(open_folder: Path, tmp_path: Path) -> None:
    log = open_folder / "log"
    log.touch()
    log.chmod(0o666)
    open_folder.chmod(0o555)
    with ForkServer() as fork_server:
        child = fork_server.start(
            "write_as_nobody",
            url=f"sqlite:///{open_folder}/store.db",
            log=str(log),
            session=None,
        )
        assert fork_server.wait(child) == 0
    assert outcome(log)["error"] == "StoreReadOnlyError"
    assert "store.db" in outcome(log)["text"]


async def test_reports_a_file_that_cannot_be_written(open_folder: Path) -> None:
    path = open_folder / "store.db"
    store = open_at(f"sqlite:///{path}")
    thread = await new_thread(store, "kept")
    await store.close()
    log = open_folder / "log"
    log.touch()
    log.chmod(0o666)
    path.chmod(0o444)
    open_folder.chmod(0o555)
    before = path.read_bytes()
    with ForkServer() as fork_server:
        child = fork_server.start(
            "write_as_nobody",
            url=f"sqlite:///{path}",
            log=str(log),
            session=thread,
        )
        assert fork_server.wait(child) == 0
    assert outcome(log)["error"] == "StoreReadOnlyError"
    assert path.read_bytes() == before
    open_folder.chmod(0o755)
    path.chmod(0o600)
    again = open_at(f"sqlite:///{path}")
    assert await read_history(again, thread) == "kept"
    await close_sound(again)


# No room


def fill(url: str, log: Path, **how: Any) -> dict[str, Any]:
    with ForkServer() as fork_server:
        assert fork_server.wait(fork_server.start("fill", url=url, log=str(log), **how)) == 0
    return outcome(log)


def test_full_disk_loses_nothing(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)],
        check=False,
        capture_output=True,
    )
    if mount.returncode:
        pytest.skip(f"no small disk can be made here: {mount.stderr.decode().strip()}")
    try:
        found = fill(f"sqlite:///{disk}/store.db", tmp_path / "log", grow=str(disk))
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert found["errors"] == ["StoreFullError"] * len(found["errors"])
    assert_nothing_is_lost(found)


def test_file_size_limit_loses_nothing(tmp_path: Path) -> None:
    found = fill(f"sqlite:///{tmp_path}/store.db", tmp_path / "log", limit=1_500_000)
    assert set(found["errors"]) <= {"StoreFullError", "StoreError"}
    assert_nothing_is_lost(found)


def assert_nothing_is_lost(found: dict[str, Any]) -> None:
    assert len(found["errors"]) >= 8, "many concurrent writers saw the error"
    assert found["problems"] == []
    assert len(found["confirmed"]) > 10
    assert set(found["confirmed"]) <= set(found["stored"])
    assert len(found["stored"]) == len(set(found["stored"]))
    assert found["stored"][-1] == "there is room again"


async def test_opens_a_home_with_a_percent_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "100%25 mine"
    monkeypatch.setenv("EVERTHREAD_HOME", str(home))
    await open_store(store_url(Config())).close()
    assert [path.name for path in tmp_path.iterdir()] == [home.name]
    assert (home / "everthread.db").is_file()


async def test_a_reader_creates_no_files(
    kind: str, new_url: Callable[..., str], tmp_path: Path
) -> None:
    url = new_url(kind, empty=True)
    for _ in range(2):
        with pytest.raises(NoStoreError, match="there is no store at"):
            open_store(url, create=False)
    assert list(tmp_path.iterdir()) == []
    await open_store(url).close()
    await open_store(url, create=False).close()
