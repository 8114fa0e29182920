"""The question whether a call is allowed."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from rich.console import Console

from everthread.agent.approval import Denial
from everthread.agent.tool_interface import Permission
from everthread.cli.chat.approval_prompt import ApprovalPrompt, render_permission
from everthread.cli.chat.screen import Screen


class ScriptedReader:
    """A reader that returns these answers in turn."""

    is_interactive = True

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def read(self) -> str:
        raise EOFError

    async def ask(self, question: str) -> str:
        assert "[y]es" in question
        if not self.answers:
            raise EOFError
        return self.answers.pop(0)

    def interrupt(self) -> None:
        """Do nothing: no read is waiting."""

    def hold_typing(
        self,
        *,
        as_one_message: bool = False,  # noqa: ARG002 - as every reader
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def print_to_text(renderable: Any) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["y"], True),
        (["n"], False),
        ([""], False),
        (["a"], "always"),
        (["what", "YES"], True),
        ([], False),
        (["n use the other file"], Denial("use the other file")),
        (["No, later"], Denial("later")),
    ],
)
async def test_an_unclear_answer_is_asked_again(typed: list[str], expected: object) -> None:
    asker = ApprovalPrompt(
        Screen(Console(file=io.StringIO())), ScriptedReader(*typed), lambda: None
    )
    assert await asker(Permission("command", "ls")) == expected


def test_a_permission_is_shown_completely() -> None:
    screen = print_to_text(
        render_permission(Permission("command", "ls\nrm -rf /\x1b[8m # \u202ehidden"))
    )
    assert "rm -rf /␛[8m # \\u202ehidden" in screen
    diff = print_to_text(
        render_permission(
            Permission("write", "a.py", "--- a.py\n+++ a.py\n-old\n+new\n" + "+x\n" * 100)
        )
    )
    assert "write" in diff
    assert "+new" in diff
    assert "… 44 more lines" in diff
