"""Find the slash command that a line names, and run it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from everthread.agent.loop import Agent
from everthread.conversation.conversation import Conversation
from everthread.errors import EverthreadError
from everthread.store.store import Store

ALIASES = {
    "clear": "new",
    "cost": "usage",
    "compact": "compress",
    "history": "sessions",
}
"""Names that other programs use."""
_COMMAND = re.compile(r"/([A-Za-z][A-Za-z_-]*)(?:\s+(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The conversation, store and agent that a command works on."""

    conversation: Conversation
    store: Store
    agent: Agent | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The answer of a command."""

    text: str
    """Markdown, readable without rendering."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The same as JSON values."""
    switch: str | None = None
    """The session to continue in."""
    failed: bool = False


Handler = Callable[[CommandScope, str], Awaitable[CommandResult]]


@dataclass(frozen=True, slots=True)
class Command:
    """A slash command: its name without the slash, its usage, its help."""

    name: str
    usage: str
    help: str
    handler: Handler
    changes: bool = False
    """It changes what the model sees, so it cannot run during a turn."""


COMMANDS: list[Command] = []
"""In the order of `/help`."""


def command(
    usage: str, text: str, *, changes: bool = False
) -> Callable[[Handler], Handler]:
    """Make a function a command."""

    def register(handler: Handler) -> Handler:
        COMMANDS.append(
            Command(
                usage.split(maxsplit=1)[0].removeprefix("/"),
                usage,
                text,
                handler,
                changes,
            )
        )
        return handler

    return register


def parse(text: str) -> tuple[str, str] | None:
    """Return the command's own name and its argument; None for a message. A path (`/etc/hosts`) is a message."""
    match = _COMMAND.fullmatch(text.strip())
    return (_resolve_name(match[1]), (match[2] or "").strip()) if match else None


def _resolve_name(name: str) -> str:
    return ALIASES.get(name.lower(), name.lower())


async def run(agent: Agent | Conversation, store: Store, text: str) -> CommandResult:
    """Run a command. An error is part of the result."""
    parsed = parse(text)
    if parsed is None:
        return CommandResult(
            f"{text.strip()[:80]!r} is not a command; /help lists them.", failed=True
        )
    name, argument = parsed
    known = next((one for one in COMMANDS if one.name == name), None)
    if known is None:
        return _unknown(name)
    owner = agent if isinstance(agent, Agent) else None
    if owner is not None and owner.busy and known.changes:
        return CommandResult(
            f"A turn is running: stop it, or repeat /{name} when it is over.",
            failed=True,
        )
    scope = CommandScope(owner.conversation if owner else agent, store, owner)  # type: ignore[arg-type]  # one or the other
    try:
        return await known.handler(scope, argument)
    except EverthreadError as error:
        return CommandResult(
            f"/{name} failed: {error}", {"error": str(error)}, failed=True
        )


def _unknown(name: str) -> CommandResult:
    names = [one.name for one in COMMANDS]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    near += [other for other in names if other.startswith(name) and other not in near]
    hint = (
        f" Did you mean {' or '.join(f'/{other}' for other in near)}?" if near else ""
    )
    return CommandResult(
        f"There is no command /{name}.{hint} /help lists them all.",
        {"near": near},
        failed=True,
    )


def paragraphs(*blocks: str | Sequence[str]) -> str:
    """Join Markdown blocks with a blank line between them; a list is one block, empty blocks are left out."""
    texts = [
        block if isinstance(block, str) else "\n".join(f"- {item}" for item in block)
        for block in blocks
    ]
    return "\n\n".join(text for text in texts if text)


@command("/help [COMMAND]", "list the commands")
async def show_help(_scope: CommandScope, argument: str) -> CommandResult:
    name = _resolve_name(argument.lstrip("/"))
    listed = [one for one in COMMANDS if name in ("", one.name)]
    if not listed:
        return _unknown(name)
    lines = [f"- `{one.usage}`: {one.help}" for one in listed]
    data = {
        "commands": [
            {"name": one.name, "usage": one.usage, "help": one.help} for one in listed
        ]
    }
    return CommandResult("\n".join(lines), data)
