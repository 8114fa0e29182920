"""Asking a person for approval: the command or the change is shown, then yes, no (with a reason) or always."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from everthread.agent.approval import No, Said
from everthread.agent.base import Permission
from everthread.cli.chat.input import InputReader
from everthread.cli.chat.render import Screen
from everthread.cli.output import visible

QUESTION = "Allow it? [y]es, [n]o (or: n REASON), [a]lways: "
ANSWERS: dict[str, Said] = {
    "y": True, "yes": True, "n": False, "no": False, "": False, "a": "always", "always": "always",
}  # fmt: skip
LINES = 60
"""Of a change that is shown; the rest is counted."""
_DIFF = (("+++", "bold"), ("---", "bold"), ("@@", "cyan"), ("+", "green"), ("-", "red"))


class Asker:
    """Puts the questions. The end of the input is a no; Ctrl-C stops the whole turn."""

    def __init__(self, screen: Screen, reader: InputReader, stop: Callable[[], None]) -> None:
        self._screen, self._reader, self._stop = screen, reader, stop

    async def __call__(self, permission: Permission) -> Said:
        self._screen.settle()
        self._screen.print(shown(permission))
        while True:
            try:
                typed = await self._reader.ask(QUESTION)
            except EOFError:
                return False
            except KeyboardInterrupt:
                # It must not leave this task: the event loop would end with it.
                self._stop()
                raise asyncio.CancelledError from None
            first, _, reason = typed.strip().partition(" ")
            if first.lower() in ("n", "no", "n:", "no:", "no,") and reason.strip():
                return No(reason.strip())
            said = ANSWERS.get(typed.strip().lower())
            if said is not None:
                return said
            self._screen.print(Text("Answer y, n or a; Ctrl-C stops the turn.", "dim"))


def shown(permission: Permission) -> RenderableType:
    """What is asked for, as a person must see it before saying yes: nothing hidden, every odd character visible."""
    verb = {"command": "run", "write": "write", "cache": "give up the provider's cache"}[permission.kind]
    head = Text.assemble(("⚠ The model wants to ", "yellow"), (verb, "bold yellow"))
    body = Text("\n".join(f"  {line}" for line in visible(permission.what).split("\n")), "bold")
    return Group(head, body, _detail(permission.detail)) if permission.detail.strip() else Group(head, body)


def _detail(detail: str) -> Text:
    rows = visible(detail).rstrip("\n").split("\n")
    text = Text()
    for row in rows[:LINES]:
        style = next((style for start, style in _DIFF if row.startswith(start)), "dim")
        text.append(f"  {row}\n", style)
    if len(rows) > LINES:
        text.append(f"  … {len(rows) - LINES:,} more lines\n", "dim")
    text.rstrip()
    return text
