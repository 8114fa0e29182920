"""Ask the user to approve a call, and show what it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from everthread.agent.approval import ApprovalAnswer, Denial
from everthread.agent.tool_interface import Permission
from everthread.cli.chat.input import InputReader
from everthread.cli.chat.screen import Screen
from everthread.cli.output import escape_controls

APPROVAL_QUESTION = "Allow it? [y]es, [n]o (or: n REASON), [a]lways: "


APPROVAL_ANSWERS: dict[str, ApprovalAnswer] = {
    "y": True,
    "yes": True,
    "n": False,
    "no": False,
    "": False,
    "a": "always",
    "always": "always",
}


PERMISSION_VERBS = {
    "command": "run",
    "write": "write",
    "cache": "give up the provider's cache",
}


MAX_PREVIEW_LINES = 60
"""Maximum lines of a change that are shown. The others are only counted."""


_DIFF_STYLES = (
    ("+++", "bold"),
    ("---", "bold"),
    ("@@", "cyan"),
    ("+", "green"),
    ("-", "red"),
)


class ApprovalPrompt:
    """An approver that asks the user. The end of the input is a no; Ctrl-C stops the whole turn."""

    def __init__(self, screen: Screen, reader: InputReader, stop: Callable[[], None]) -> None:
        self._screen = screen
        self._reader = reader
        self._stop = stop

    async def __call__(self, permission: Permission) -> ApprovalAnswer:
        self._screen.flush()
        self._screen.print(render_permission(permission))
        while True:
            try:
                reply_text = await self._reader.ask(APPROVAL_QUESTION)
            except EOFError:
                return False
            except KeyboardInterrupt:
                # A KeyboardInterrupt that leaves this task would end the event loop.
                self._stop()
                raise asyncio.CancelledError from None
            first_word, _, reason = reply_text.strip().partition(" ")
            if first_word.lower() in ("n", "no", "n:", "no:", "no,") and reason.strip():
                return Denial(reason.strip())
            answer = APPROVAL_ANSWERS.get(reply_text.strip().lower())
            if answer is not None:
                return answer
            self._screen.print(Text("Answer y, n or a; Ctrl-C stops the turn.", "dim"))


def render_permission(permission: Permission) -> RenderableType:
    """Show the whole action that the model asks for, with every control character visible."""
    verb = PERMISSION_VERBS[permission.kind]
    heading = Text.assemble(("⚠ The model wants to ", "yellow"), (verb, "bold yellow"))
    target_lines = escape_controls(permission.target).split("\n")
    target = Text("\n".join(f"  {line}" for line in target_lines), "bold")
    if not permission.detail.strip():
        return Group(heading, target)
    return Group(heading, target, _render_change(permission.detail))


def _render_change(detail: str) -> Text:
    rows = escape_controls(detail).rstrip("\n").split("\n")
    text = Text()
    for row in rows[:MAX_PREVIEW_LINES]:
        style = next((style for start, style in _DIFF_STYLES if row.startswith(start)), "dim")
        text.append(f"  {row}\n", style)
    if len(rows) > MAX_PREVIEW_LINES:
        text.append(f"  … {len(rows) - MAX_PREVIEW_LINES:,} more lines\n", "dim")
    text.rstrip()
    return text
