"""Typing a message: completion, long pastes, `--resume` without an id."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from everthread.cli.chat.editor import ChatCompleter
from everthread.cli.chat.pastes import PasteExpandingHistory, Pastes
from everthread.cli.start_options import RESUME_WITHOUT_ID, fill_missing_ids


class TestCompleting:
    def offered(self, text: str, folder: Path, *, asked: bool = False) -> list[str]:
        completer = ChatCompleter(
            [("/compress", "compact"), ("/context", "what"), ("/new", "begin")], folder
        )
        event = CompleteEvent(text_inserted=not asked, completion_requested=asked)
        return [item.text for item in completer.get_completions(Document(text), event)]

    def test_commands(self, tmp_path: Path) -> None:
        assert self.offered("/co", tmp_path) == ["/compress", "/context"]
        assert self.offered("/compress", tmp_path) == ["/compress"]
        assert self.offered("say /compr", tmp_path) == [], (
            "commands are completed at the start of a message only"
        )

    def test_paths(self, tmp_path: Path) -> None:
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "main.py").touch()
        (tmp_path / "src" / ".hidden").touch()
        (tmp_path / "setup.py").touch()
        assert self.offered("look at src/m", tmp_path) == ["main.py"]
        assert self.offered("look at s", tmp_path) == []
        assert self.offered("look at s", tmp_path, asked=True) == ["setup.py", "src/"]
        assert self.offered("look at src/", tmp_path) == ["main.py"]
        assert self.offered("look at nowhere/x", tmp_path) == []


@pytest.mark.parametrize(
    ("given_words", "meant"),
    [
        (["--resume"], ["--resume", RESUME_WITHOUT_ID]),
        (["--resume", "--yes"], ["--resume", RESUME_WITHOUT_ID, "--yes"]),
        (["-r", "abc", "--yes"], ["-r", "abc", "--yes"]),
        (["--", "--resume"], ["--", "--resume"]),
    ],
)
def test_resume_needs_no_id(given_words: list[str], meant: list[str]) -> None:
    assert fill_missing_ids(given_words) == meant


class TestPastes:
    def test_a_long_paste_is_folded_and_sent_whole(self, tmp_path: Path) -> None:
        pastes = Pastes()
        long = "\n".join(f"line {number}" for number in range(120))
        folded = pastes.fold(long)
        assert folded == "[paste 1: 120 lines]"
        assert pastes.fold("x" * 900) == "[paste 2: 900 characters]"
        assert pastes.fold("short\nstays") == "short\nstays"
        typed = f"Explain {folded} please"
        assert pastes.expand_placeholders(typed) == f"Explain {long} please"
        history = PasteExpandingHistory(str(tmp_path / "history"), pastes)
        history.append_string(typed)
        [stored] = PasteExpandingHistory(str(tmp_path / "history"), Pastes()).load_history_strings()
        assert stored == f"Explain {long} please"
