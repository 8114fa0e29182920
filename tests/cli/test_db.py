"""`everthread db …` against real stores, sound and damaged."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import apsw
import pytest

from everthread.store.records import NewMessage, NewSession
from everthread.store.store import Store
from tests.cli.conftest import Command, RunOnStore, configure

FILE = "everthread.db"


async def store_thread(store: Store) -> None:
    await store.create_session(NewSession(id="s"))
    await store.append(
        "s",
        [NewMessage({"role": "user", "content": f"words {n} " * 200}) for n in range(300)],
    )


@pytest.fixture
def file(run_on_store: RunOnStore, home: Path) -> Path:
    run_on_store(store_thread)
    return home / FILE


def execute_sql(file: Path, sql: str) -> None:
    connection = apsw.Connection(str(file))
    connection.execute(sql)
    connection.close()


class TestCheck:
    def test_reports_a_sound_store(self, everthread: Command, file: Path) -> None:
        output = everthread.succeeds("db check")
        assert output.startswith(f"{file}: sqlite, schema ")
        assert "1 session, 300 messages" in output
        assert output.endswith("\nsound\n")
        health = everthread.json("db check")
        assert (health["sessions"], health["messages"], health["problems"]) == (
            1,
            300,
            [],
        )
        assert health["size"] >= file.stat().st_size

    def test_an_unsound_store_is_reported(self, everthread: Command, file: Path) -> None:
        execute_sql(file, "DELETE FROM messages WHERE id = 7")
        result = everthread("db check")
        assert result.returncode == 1
        assert "problem: 1 " in result.stdout
        assert "not sound" in result.stdout
        result = everthread("db check --json")
        assert result.returncode == 1
        assert len(json.loads(result.stdout)["problems"]) >= 1

    def test_reports_a_damaged_file(self, everthread: Command, file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[4_096 * 3 : 4_096 * 30] = os.urandom(4_096 * 27)
        file.write_bytes(content)
        result = everthread("db check")
        assert result.returncode == 1
        assert "Traceback" not in result.stderr
        assert result.stdout or result.stderr.count("\n") == 1

    def test_checks_the_configured_store(
        self, everthread: Command, run_on_store: RunOnStore, home: Path, tmp_path: Path
    ) -> None:
        run_on_store(store_thread, tmp_path / "elsewhere.db")
        configure(home, f"store: {{url: 'sqlite:///{tmp_path / 'elsewhere.db'}'}}")
        assert "300 messages" in everthread("db check").stdout
        assert not (home / FILE).exists()


class TestNoStore:
    """A mistyped path creates no store; a home that never had one says that there is nothing yet."""

    READING = (
        ["sessions", "list"],
        ["sessions", "show", "x"],
        ["sessions", "tree", "x"],
        ["sessions", "search", "x"],
        ["sessions", "export", "--all"],
        ["sessions", "undo", "x"],
        ["sessions", "delete", "x", "--yes"],
        ["usage"],
        ["insights"],
        ["db", "check"],
        ["db", "backup", "copy.db"],
        ["db", "vacuum"],
    )

    @pytest.mark.parametrize("command", READING, ids=" ".join)
    def test_db_commands_make_no_store(
        self, everthread: Command, tmp_path: Path, command: list[str]
    ) -> None:
        empty = tmp_path / "empty.db"
        empty.touch()
        for place in (
            str(tmp_path / "no" / "typo.db"),
            f"sqlite:///{tmp_path / 'typo.db'}",
            str(empty),
        ):
            assert re.fullmatch(
                r"everthread: there is no store at .*\.db; .*\n",
                everthread.refuses(*command, f"--store {place}"),
            )
        assert list(tmp_path.iterdir()) == [empty]
        assert empty.stat().st_size == 0

    def test_a_missing_configured_store_is_an_error(
        self, everthread: Command, home: Path, tmp_path: Path
    ) -> None:
        configure(home, f"store: {{url: 'sqlite:///{tmp_path / 'typo.db'}'}}")
        for command in "sessions list", "usage", "insights":
            assert f"there is no store at {tmp_path / 'typo.db'}" in everthread.refuses(command)
        assert not (tmp_path / "typo.db").exists()

    def test_reading_commands_work_before_the_first_conversation(
        self, everthread: Command, home: Path
    ) -> None:
        for command, words in (
            ("sessions list", "no sessions yet"),
            ("usage", "no calls to a model are recorded"),
            ("insights", "no calls to a model are recorded"),
        ):
            result = everthread(command)
            assert (result.returncode, result.stderr) == (0, "")
            assert words in result.stdout
            assert everthread.json(command)
        assert everthread("usage x").returncode == 2
        assert everthread("db check").returncode == 2
        assert not home.exists()


class TestMigrate:
    def test_migrate_makes_a_store_once(self, everthread: Command, tmp_path: Path) -> None:
        new = str(tmp_path / "new.db")
        assert f"{new}: schema 0 -> " in everthread(f"db migrate --store {new}").stdout
        assert everthread(f"db migrate --store sqlite:///{new}").stdout.endswith("nothing to do\n")
        report = everthread.json(f"db migrate --store {new}")
        assert report["before"] == report["after"] > 0

    def test_a_newer_schema_is_refused(self, everthread: Command, file: Path) -> None:
        execute_sql(file, "INSERT INTO schema_version VALUES (9999, 'future')")
        result = everthread("db migrate")
        assert result.returncode == 1
        assert "9999" in result.stderr
        assert result.stderr.count("\n") == 1


class TestBackup:
    def test_a_backup_can_be_used_as_a_store(
        self, everthread: Command, file: Path, tmp_path: Path
    ) -> None:
        copy = tmp_path / "copy.db"
        everthread.succeeds(f"db backup {copy}")
        assert stat.S_IMODE(copy.stat().st_mode) == 0o600
        exported = everthread("sessions export --all").stdout
        assert everthread(f"sessions export --all --store {copy}").stdout == exported != ""
        assert file.exists()

    def test_prints_a_backup_as_json(self, everthread: Command, file: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy.db"
        report = everthread.json(f"db backup {copy}")
        assert report == {"file": str(copy), "size": copy.stat().st_size}
        assert file.exists()

    def test_a_backup_overwrites_nothing(
        self, everthread: Command, file: Path, tmp_path: Path
    ) -> None:
        before = file.read_bytes()
        result = everthread(f"db backup {file}")
        assert result.returncode in (1, 2)
        assert "exists" in result.stderr
        assert file.read_bytes() == before
        result = everthread(f"db backup {tmp_path / 'no' / 'copy.db'}")
        assert result.returncode in (1, 2)
        assert result.stderr.count("\n") == 1


class TestVacuum:
    def test_vacuum_frees_deleted_space(self, everthread: Command, file: Path) -> None:
        everthread("sessions delete s --yes")
        report = everthread.json("db vacuum")
        assert report["after"] < report["before"]
        assert " -> " in everthread("db vacuum").stdout
        assert everthread("db check").returncode == 0
        assert file.exists()

    def test_an_unsound_store_is_not_changed(self, everthread: Command, file: Path) -> None:
        execute_sql(file, "DELETE FROM messages WHERE id = 7")
        result = everthread("db vacuum")
        assert result.returncode == 1
        assert "is damaged" in result.stderr
