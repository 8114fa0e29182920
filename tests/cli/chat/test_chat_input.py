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
    def complete(self, text: str, folder: Path, *, is_requested: bool = False) -> list[str]:
        commands = [("/compress", "compact"), ("/context", "what"), ("/new", "begin")]
        completer = ChatCompleter(commands, folder)
        event = CompleteEvent(text_inserted=not is_requested, completion_requested=is_requested)
        completions = completer.get_completions(Document(text), event)
        return [completion.text for completion in completions]

    def test_completes_commands_at_the_start_only(self, tmp_path: Path) -> None:
        assert self.complete("/co", tmp_path) == ["/compress", "/context"]
        assert self.complete("/compress", tmp_path) == ["/compress"]
        assert self.complete("say /compr", tmp_path) == [], (
            "commands are completed at the start of a message only"
        )

    def test_completes_paths(self, tmp_path: Path) -> None:
        (tmp_path / "src").mkdir()
        (tmp_path / "src" / "main.py").touch()
        (tmp_path / "src" / ".hidden").touch()
        (tmp_path / "setup.py").touch()
        assert self.complete("look at src/m", tmp_path) == ["main.py"]
        assert self.complete("look at s", tmp_path) == []
        assert self.complete("look at s", tmp_path, is_requested=True) == ["setup.py", "src/"]
        assert self.complete("look at src/", tmp_path) == ["main.py"]
        assert self.complete("look at nowhere/x", tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "filled_arguments"),
    [
        (["--resume"], ["--resume", RESUME_WITHOUT_ID]),
        (["--resume", "--yes"], ["--resume", RESUME_WITHOUT_ID, "--yes"]),
        (["-r", "abc", "--yes"], ["-r", "abc", "--yes"]),
        (["--", "--resume"], ["--", "--resume"]),
    ],
)
def test_resume_needs_no_id(arguments: list[str], filled_arguments: list[str]) -> None:
    assert fill_missing_ids(arguments) == filled_arguments


class TestPastes:
    def test_a_long_paste_is_folded_and_sent_whole(self, tmp_path: Path) -> None:
        pastes = Pastes()
        pasted = "\n".join(f"line {number}" for number in range(120))
        folded = pastes.fold(pasted)
        assert folded == "[paste 1: 120 lines]"
        assert pastes.fold("x" * 900) == "[paste 2: 900 characters]"
        assert pastes.fold("short\nstays") == "short\nstays"
        typed = f"Explain {folded} please"
        assert pastes.expand_placeholders(typed) == f"Explain {pasted} please"
        file = str(tmp_path / "history")
        PasteExpandingHistory(file, pastes).append_string(typed)
        later_history = PasteExpandingHistory(file, Pastes())
        (stored,) = later_history.load_history_strings()
        assert stored == f"Explain {pasted} please"
