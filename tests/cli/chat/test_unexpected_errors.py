"""Unexpected errors in a chat are shown, logged and survived."""

from __future__ import annotations

import contextlib
import io
import stat
from pathlib import Path

import pytest
from rich.console import Console

from everthread import open_agent
from everthread.cli.chat.chat_loop import Chat
from everthread.cli.chat.presence import TerminalPresence
from everthread.cli.chat.screen import Screen
from everthread.cli.chat.status_line import ChatStatus
from everthread.cli.error_log import log_unexpected_error
from everthread.testing import ScriptedModel


class TypedReader:
    """A reader that gives these messages, then ends."""

    is_interactive = False

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)

    async def read(self) -> str:
        if not self.messages:
            raise EOFError
        return self.messages.pop(0)

    async def ask(self, question: str) -> str:  # noqa: ARG002 - as every reader
        raise EOFError

    def interrupt(self) -> None:
        """Do nothing: no read is waiting."""

    def hold_typing(
        self,
        *,
        as_one_message: bool = False,  # noqa: ARG002 - as every reader
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERTHREAD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


async def test_an_unexpected_error_is_shown_logged_and_survived(tmp_path: Path, home: Path) -> None:
    screen = Screen(Console(file=io.StringIO(), width=200))
    chat = Chat(
        screen,
        ChatStatus(),
        reader=TypedReader("one", "two"),
        presence=TerminalPresence(home),
    )
    model = ScriptedModel([ZeroDivisionError("with key sk-proj-" + "a1B2c3D4" * 6), "Better."])
    async with await open_agent(
        model=model,
        workspace=tmp_path,
        store=tmp_path / "s.db",
    ) as agent:
        await chat.read_and_answer(agent)
    assert isinstance(screen.console.file, io.StringIO)
    output = screen.console.file.getvalue()
    assert "✗ unexpected error: ZeroDivisionError" in output
    assert f"The details are in {home / 'errors.log'}" in output
    assert "Better." in output
    log = home / "errors.log"
    assert "Traceback (most recent call last)" in log.read_text("utf-8")
    assert "a1B2c3D4a1B2c3D4" not in log.read_text("utf-8") + output
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_without_a_log_the_traceback_is_shown(home: Path) -> None:
    home.write_text("no folder", "utf-8")
    assert "ZeroDivisionError: by nothing" in log_unexpected_error(ZeroDivisionError("by nothing"))


def test_a_large_log_starts_again(home: Path) -> None:
    home.mkdir()
    (home / "errors.log").write_text("x" * 1_000_001, "utf-8")
    log_unexpected_error(ValueError("odd"))
    assert (home / "errors.log").stat().st_size < 1_000
