"""`everthread sessions export` and `import`: to files and back, and from other programs."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from everthread.store.records import NewSession
from tests.cli.conftest import STORE, Command
from tests.cli.sessions.conftest import StoreSession
from tests.cli.sessions.stored_thread import HOSTILE, StoredThread, text_message


class TestExportAndImport:
    def test_an_export_can_be_imported_into_another_store(
        self, everthread: Command, thread: StoredThread, tmp_path: Path
    ) -> None:
        first = str(tmp_path / "all.jsonl")
        other = str(tmp_path / "other.db")
        result = everthread(f"sessions export --all -o {first}")
        assert result.stdout.startswith("3 threads, ")
        assert stat.S_IMODE(Path(first).stat().st_mode) == 0o600
        assert "3 threads imported" in everthread(f"sessions import {first} --store {other}").stdout
        output = everthread(f"sessions export --all --store {other}").stdout
        assert sorted(output.splitlines()) == sorted(Path(first).read_text("utf-8").splitlines())
        here, there = (
            everthread.json(f"sessions show {thread.id} --context", where)["messages"]
            for where in ("", f"--store {other}")
        )
        assert [(m["kind"], m["body"], m["created"]) for m in here] == [
            (m["kind"], m["body"], m["created"]) for m in there
        ]

    def test_an_export_includes_subagents(self, everthread: Command, thread: StoredThread) -> None:
        lines = [
            json.loads(line)
            for line in everthread(f"sessions export {thread.tip[:12]}").stdout.splitlines()
        ]
        assert [line["thread"] for line in lines if line["type"] == "everthread"] == [
            thread.id,
            thread.subagent,
        ]

    def test_an_export_of_a_damaged_store_has_the_intact_part_and_says_so(
        self, everthread: Command, store_session: StoreSession, home: Path
    ) -> None:
        words = "some words that fill a page "
        messages = [text_message("user", f"{number} {words * 8}") for number in range(800)]
        store_session(NewSession(id="s"), *messages)
        content = bytearray((home / STORE).read_bytes())
        pages = [
            offset
            for offset in range(0, len(content), 4096)
            if words.encode() in content[offset : offset + 4096]
        ]
        for page in pages[10:20]:
            content[page : page + 8] = b"\xff" * 8
        (home / STORE).write_bytes(content)
        result = everthread("sessions export s")
        assert result.returncode == 1
        assert "could not be read, all else was written" in result.stderr
        kept_lines = [line for line in result.stdout.splitlines() if '"type": "message"' in line]
        assert len(messages) / 2 < len(kept_lines) < len(messages)

    def test_any_text_survives_export_and_import_through_a_pipe(
        self, everthread: Command, store_session: StoreSession, tmp_path: Path
    ) -> None:
        store_session(
            NewSession(id="s"),
            text_message("user", HOSTILE),
            text_message("assistant", [{"type": "text", "text": HOSTILE}]),
        )
        exported = everthread("sessions export s").stdout
        other = str(tmp_path / "other.db")
        result = everthread(
            f"sessions import - --store {other} --json",
            stdin=exported.encode(),
        )
        assert json.loads(result.stdout) == {
            "threads": ["s"],
            "skipped": [],
            "notes": [],
        }
        assert everthread(f"sessions export s --store {other}").stdout == exported

    @pytest.mark.parametrize(
        "garbage",
        [
            b"",
            b"[" * 50_000,
            b'{"no": "type"}',
        ],
        ids=lambda value: repr(value)[:24],
    )
    def test_a_bad_line_imports_nothing(
        self, everthread: Command, thread: StoredThread, tmp_path: Path, garbage: bytes
    ) -> None:
        lines = everthread(f"sessions export {thread.subagent}").stdout.encode().splitlines()
        file = tmp_path / "x.jsonl"
        other = str(tmp_path / "other.db")
        file.write_bytes(b"\n".join([*lines[:2], garbage, *lines[2:]]))
        everthread(f"db migrate --store {other}")
        error = everthread.refuses(f"sessions import {file} --store {other}")
        assert error.startswith(f"everthread: {file}: ")
        assert error.count("\n") == 1
        assert re.search(r"\bline 3\b", error)
        assert everthread(f"sessions list --store {other}").stdout == "no sessions yet\n"

    @pytest.mark.parametrize("given", [b"", b"\xff\xfe\n", b"hello", b'{"type": "session"}'])
    def test_a_file_that_is_not_an_export_is_refused(
        self, everthread: Command, given: bytes
    ) -> None:
        error = everthread.refuses("sessions import -", stdin=given)
        assert error.startswith("everthread: standard input: ")
        assert error.count("\n") == 1

    def test_existing_threads_and_files_are_not_overwritten(
        self, everthread: Command, thread: StoredThread, tmp_path: Path
    ) -> None:
        exported = everthread(f"sessions export {thread.id}").stdout
        result = everthread("sessions import -", stdin=exported.encode())
        assert result.returncode == 1
        assert "already" in result.stderr
        file = tmp_path / "x.jsonl"
        file.write_text("precious", "utf-8")
        assert everthread(f"sessions export {thread.id} -o {file}").returncode == 2
        assert file.read_text("utf-8") == "precious"

    def test_bad_options_are_refused(
        self, everthread: Command, thread: StoredThread, tmp_path: Path
    ) -> None:
        new = tmp_path / "new.jsonl"
        for arguments in (
            "export",
            f"export {thread.id} --all",
            f"export {thread.id} -o {tmp_path / 'no' / 'x'}",
            f"export {thread.id} nonsense -o {new}",
            f"import {tmp_path / 'absent'}",
            f"import {tmp_path}",
        ):
            assert everthread.refuses(f"sessions {arguments}").count("\n") == 1
        assert not new.exists()


class TestOtherPrograms:
    def test_sessions_of_claude_code_are_imported_and_searchable(
        self, everthread: Command, tmp_path: Path
    ) -> None:
        folder = tmp_path / "claude" / "projects" / "p"
        folder.mkdir(parents=True)
        entries = [
            {
                "type": "user",
                "sessionId": "s1",
                "message": {"role": "user", "content": "Mend the zeppelin."},
            },
            {
                "type": "assistant",
                "sessionId": "s1",
                "message": {"role": "assistant", "content": "Mended."},
            },
        ]
        (folder / "s1.jsonl").write_text("\n".join(map(json.dumps, entries)), "utf-8")
        (folder / "empty.jsonl").write_text('{"type": "summary"}', "utf-8")
        where = {"CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
        result = everthread("sessions import --from claude-code", env=where)
        assert result.returncode == 0, result.stderr
        assert "1 thread imported, 2 messages new" in result.stdout
        assert "skipped: " in result.stderr
        again = everthread("sessions import --from claude-code --json", env=where)
        assert len(json.loads(again.stdout)["threads"]) == 1
        assert "zeppelin" in everthread("sessions search zeppelin").stdout
        assert "0 messages new" in everthread(f"sessions import {folder / 's1.jsonl'}").stdout
        (listed,) = everthread.json("sessions list")["sessions"]
        assert listed["tokens"] > 0, "imported messages are counted"
        with (folder / "s1.jsonl").open("a", encoding="utf-8") as file:
            file.write('\n{"type": "assi')
        for command in (
            "tokens",
            "inspect",
            "compress --window 4000",
            "sessions import",
        ):
            result = everthread(f"{command} {folder / 's1.jsonl'}")
            assert result.returncode == 0, result.stderr
            assert "line 3: no JSON object; skipped" in result.stderr, (
                "every command says what it could not read"
            )

    def test_bad_imports_are_refused(self, everthread: Command) -> None:
        for arguments, words in (
            (
                "--from vim",
                "is unknown; use one of: claude-code, codex, pi, opencode",
            ),
            ("", "give the files to import, or --from"),
            ("--from codex", "no sessions of codex"),
        ):
            assert words in everthread.refuses(
                f"sessions import {arguments}", env={"CODEX_HOME": "/nowhere"}
            )
